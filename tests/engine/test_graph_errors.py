"""Nodes that fail: dead letters of steps, and runs that undo what they did before they fail."""

from __future__ import annotations

import asyncio

import pytest

from weft import Conflict, NotFound, RunStatus, StepFailed, Weft
from weft.errors import DefinitionError


@pytest.fixture
async def worker(start_worker):
    return await start_worker()


# --- dead letters ---------------------------------------------------------------------------------


@pytest.fixture
def mailing(app: Weft):
    mailing = app.graph("mailing")

    @mailing.node(on_error="dead_letter", retries=1, retry_delay="1ms")
    async def render(page: int) -> str:
        if page < 0:
            raise ValueError(f"no page {page}") from KeyError(page)
        return f"page {page}"

    @mailing.node(after=render, map="[1, 2, 3]", on_error="dead_letter")
    async def send(item: int, input: dict) -> int:
        if item == input.get("bad"):
            raise ValueError("bounced")
        return item

    @mailing.node(after=send)
    async def report(render: str | None, send: list, status: dict, errors: dict) -> dict:
        return {"render": render, "send": send, "status": status["render"], "errors": errors}

    return mailing


async def test_a_step_becomes_a_dead_letter_and_the_run_goes_on(app, mailing, worker, quiet):
    run = await mailing.start({"page": -7})

    found = await run.result(timeout=30)

    assert found == {
        "render": None,
        "send": [1, 2, 3],
        "status": "failed",
        "errors": {"render": {"type": "ValueError", "message": "no page -7"}, "send": None},
    }
    (letter,) = await app.dlq.list()
    assert (letter.id, letter.run_id, letter.step) == (f"{run.id}/render", run.id, "render")
    whole = await app.dlq.get(letter.id)
    assert (whole.task, whole.attempts, whole.input) == ("mailing.render", 2, {"page": -7})
    assert whole.error["causes"] == [{"type": "KeyError", "message": "-7"}] and "Traceback" in whole.error["traceback"]
    assert whole.worker.startswith("s-")
    await quiet()


async def test_an_item_of_a_map_becomes_a_dead_letter_of_its_own(app, mailing, worker, quiet):
    run = await mailing.start({"page": 1, "bad": 2})

    found = await run.result(timeout=30)

    assert found["send"] == [1, None, 3]
    assert found["errors"]["send"] == [{"index": 1, "type": "ValueError", "message": "bounced"}]
    assert [letter.id for letter in await app.dlq.list()] == [f"{run.id}/send#1"]
    await quiet()


async def test_a_replay_of_a_step_is_a_run_of_its_own(app, mailing, worker, quiet):
    run = await mailing.start({"page": -7})
    await run.result(timeout=30)
    letter = f"{run.id}/render"

    again = await app.dlq.replay(letter)

    with pytest.raises(StepFailed, match="no page -7"):
        await again.result(timeout=30)
    info = await again.info()
    assert (info.name, info.kind, info.replay_of) == ("mailing.render", "task", letter)
    assert (await app.dlq.get(letter)).replayed_as == again.id
    assert (await run.info()).status == RunStatus.COMPLETED
    with pytest.raises(Conflict, match="replayed before"):
        await app.dlq.replay(letter)
    await quiet()


async def test_letters_of_steps_are_listed_marked_and_purged_like_others(app, mailing, worker, quiet):
    run = await mailing.start({"page": -7, "bad": 3})
    await run.result(timeout=30)

    await app.dlq.investigate(f"{run.id}/render", "the page was deleted")

    assert [letter.step for letter in await app.dlq.list(investigated=True)] == ["render"]
    assert await app.dlq.purge(ids=[f"{run.id}/render"]) == 1
    assert [letter.step for letter in await app.dlq.list()] == ["send#2"]
    with pytest.raises(NotFound):
        await app.dlq.get(f"{run.id}/render")
    await quiet()


@pytest.mark.parametrize("step", ["", "a b", "a:b", "a*", "x/y", "../run", "a\n"])
async def test_what_names_no_step_is_not_found(app, step):
    with pytest.raises(NotFound):
        await app.dlq.get(f"r0-0000000000000000000000/{step}")


async def test_a_step_that_cannot_even_begin_is_a_dead_letter_too(app, worker, quiet):
    graph = app.graph("odd")

    @graph.node
    async def first() -> dict:
        return {}

    @graph.node(after=first, on_error="dead_letter", with_={"n": "${first.missing}"})
    async def second(n: int) -> int:
        return n

    graph.transform("last", "${status.second}", after=second)
    run = await graph.start()

    assert await run.result(timeout=30) == "failed"
    letter = await app.dlq.get(f"{run.id}/second")
    assert letter.task == "odd.second" and "missing" in letter.error["message"]
    await quiet()


async def test_what_makes_no_call_cannot_become_a_letter(app):
    graph = app.graph("inline")
    graph.transform("value", "${input.x}", on_error="dead_letter")

    with pytest.raises(DefinitionError, match="a transform makes none"):
        await graph.start({})


# --- compensations --------------------------------------------------------------------------------


@pytest.fixture
def undone(app: Weft) -> list[str]:
    """What was undone, in order."""
    found: list[str] = []

    @app.task
    async def undo(what: str) -> str:
        if what == "stubborn":
            raise ValueError("it will not go")
        found.append(what)
        return what

    return found


async def test_what_completed_is_undone_in_reverse_and_the_run_fails_with_its_own_error(app, undone, worker, quiet):
    trip = app.graph("trip")

    @trip.node(compensate={"call": "undo", "with": {"what": "${flight.code}"}})
    async def flight() -> dict:
        return {"code": "LH1"}

    @trip.node(after=flight, compensate={"call": "undo", "with": {"what": "hotel of ${flight.code}"}})
    async def hotel() -> str:
        return "h"

    @trip.node(after=hotel, compensate={"call": "undo", "with": {"what": "never"}})
    async def car() -> str:
        raise ValueError("no car")

    run = await trip.start()

    with pytest.raises(StepFailed, match="no car") as failure:
        await run.result(timeout=30)

    assert undone == ["hotel of LH1", "LH1"]
    assert failure.value.type == "ValueError" and not failure.value.causes
    nodes = (await run.graph())["nodes"]
    assert [one["status"] for one in nodes["flight"]["compensation"]] == ["completed"]
    assert "compensation" not in nodes["car"]
    last = (await run.history())[-1]
    assert (last.type, last.data["compensated"], last.data["uncompensated"]) == ("failed", 2, 0)
    await quiet()


async def test_items_of_a_map_are_undone_one_by_one_and_only_those_that_completed(app, undone, worker, quiet):
    graph = app.graph("seats")

    @graph.node(map="input.seats", max_parallel=1, compensate={"call": "undo", "with": {"what": "${item}=${seat}"}})
    async def seat(item: str) -> int:
        if item == "c":
            raise ValueError("taken")
        return ord(item)

    run = await graph.start({"seats": ["a", "b", "c", "d"]})

    with pytest.raises(StepFailed, match="taken"):
        await run.result(timeout=30)
    assert undone == ["b=98", "a=97"]
    await quiet()


async def test_every_iteration_of_a_loop_is_undone(app, undone, worker, quiet):
    graph = app.graph("rounds")

    @graph.node(compensate={"call": "undo", "with": {"what": "${body}"}})
    async def body(iteration: int) -> str:
        return f"round {iteration}"

    graph.loop("again", after="body", to="body", while_="true", max_iterations=3)
    run = await graph.start()

    with pytest.raises(StepFailed, match="still wanted to go on"):
        await run.result(timeout=30)
    assert undone == ["round 2", "round 1", "round 0"]
    await quiet()


async def test_a_compensation_that_fails_does_not_stop_the_others_and_is_told(app, undone, worker, quiet):
    graph = app.graph("stuck")

    @graph.node(compensate={"call": "undo", "with": {"what": "first"}})
    async def first() -> None: ...

    @graph.node(after=first, compensate={"call": "undo", "with": {"what": "stubborn"}})
    async def second() -> None: ...

    @graph.node(after=second, compensate={"call": "undo", "with": {"what": "${second.nothing}"}})
    async def third() -> None: ...

    @graph.node(after=third, on_error="compensate")
    async def fourth() -> None:
        raise ValueError("the end")

    run = await graph.start()

    with pytest.raises(StepFailed, match="the end") as failure:
        await run.result(timeout=30)
    assert undone == ["first"]
    told = sorted(cause["message"] for cause in failure.value.causes)
    assert len(told) == 2
    assert told[0] == "second could not be undone: ValueError: it will not go" and told[1].startswith("third could not")
    last = (await run.history())[-1]
    assert (last.data["compensated"], last.data["uncompensated"]) == (1, 2)
    await quiet()


async def test_arguments_of_a_compensation_are_found_by_name(app, worker, quiet):
    seen: list[tuple] = []

    @app.task
    async def release(book: dict, before: int, amount: int = 0) -> None:
        seen.append((book, before, amount))

    graph = app.graph("named")

    @graph.node
    async def before() -> int:
        return 5

    @graph.node(after=before, compensate=release)
    async def book() -> dict:
        return {"id": 1}

    @graph.node(after=book)
    async def fail() -> None:
        raise ValueError("x")

    run = await graph.start({"amount": 3})
    with pytest.raises(StepFailed):
        await run.result(timeout=30)
    assert seen == [({"id": 1}, 5, 3)]
    await quiet()


async def test_a_node_that_still_runs_is_stopped_before_anything_is_undone(app, undone, worker, quiet):
    begun, stopped = asyncio.Event(), asyncio.Event()
    graph = app.graph("two")

    @graph.node(compensate={"call": "undo", "with": {"what": "done"}})
    async def done() -> None: ...

    @graph.node(after=done, compensate={"call": "undo", "with": {"what": "slow"}})
    async def slow() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    @graph.node(after=done)
    async def bad() -> None:
        await begun.wait()
        raise ValueError("bad")

    run = await graph.start()
    with pytest.raises(StepFailed, match="bad"):
        await run.result(timeout=30)
    await asyncio.wait_for(stopped.wait(), 10)
    assert undone == ["done"]
    await quiet()


async def test_a_run_that_completes_undoes_nothing(app, undone, worker, quiet):
    graph = app.graph("fine")

    @graph.node(compensate={"call": "undo", "with": {"what": "x"}})
    async def one() -> int:
        return 1

    run = await graph.start()
    assert await run.result(timeout=30) == 1
    assert undone == []
    await quiet()


async def test_a_run_can_be_cancelled_while_it_undoes(app, worker, quiet):
    begun = asyncio.Event()

    @app.task
    async def forever() -> None:
        begun.set()
        await asyncio.sleep(60)

    graph = app.graph("long")

    @graph.node(compensate=forever)
    async def one() -> int:
        return 1

    @graph.node(after=one)
    async def two() -> None:
        raise ValueError("two")

    run = await graph.start()
    await asyncio.wait_for(begun.wait(), 30)
    told = await run.graph()
    assert told["failing"]["message"] == "two"

    assert await run.cancel()

    assert await run.status() == RunStatus.CANCELLED
    await quiet()


@pytest.mark.parametrize(
    ("compensate", "why"),
    [
        ("nobody", "has no task 'nobody'"),
        ({"call": "undo"}, "nothing provides parameter what"),
        ({"call": "undo", "with": {"what": "x", "more": 1}}, "has no parameter"),
    ],
)
async def test_a_compensation_that_cannot_be_called_is_refused_at_the_start(app, undone, compensate, why):
    graph = app.graph("wrong", input={"type": "object", "properties": {}})

    @graph.node(compensate=compensate)
    async def one() -> int:
        return 1

    with pytest.raises(DefinitionError, match=why):
        await graph.start({})


# --- what failed, as a whole ----------------------------------------------------------------------


async def test_status_and_errors_as_a_whole_tell_of_all_nodes_before(app: Weft, worker):
    graph = app.graph("whole", output="${[last, told, asked, status, errors]}")

    @app.task
    async def fails() -> None:
        raise ValueError("no")

    @app.task
    async def one() -> int:
        return 1

    graph.task("bad", fails, on_error="continue")
    graph.task("between", one, after="bad")
    graph.transform("never", 1, when="false")
    graph.transform("told", "${[status, errors]}", after=["between", "never"])
    graph.transform("asked", "yes", after="between", when="errors.exists(id, errors[id] != null)")
    graph.task("beside", one, after="bad")

    @graph.node(after="between")
    async def last(status: dict, errors: dict) -> list:
        return [status, errors]

    error = {"type": "ValueError", "message": "no"}
    before = {"bad": "failed", "between": "completed"}
    run = await graph.start()
    found = await run.result(timeout=20)

    assert found[0] == [before, {"bad": error, "between": None}]
    assert found[1] == [{**before, "never": "skipped"}, {"bad": error, "between": None, "never": None}]
    assert found[2] == "yes"
    everything = dict.fromkeys(("between", "told", "asked", "beside", "last"), "completed")
    assert found[3] == {"bad": "failed", "never": "skipped", **everything}
    assert found[4] == {**dict.fromkeys(found[3]), "bad": error}


async def test_a_compensation_may_ask_for_all_errors(app: Weft, worker):
    told = []

    @app.task
    async def undo(errors: dict, why: dict) -> None:
        told.append((errors, why))

    @app.task
    async def one() -> int:
        return 1

    @app.task
    async def fails() -> None:
        raise ValueError("no")

    graph = app.graph("undone")
    graph.task("done", one, compensate={"call": undo, "with": {"why": "${status}"}})
    graph.task("bad", fails, after="done")
    run = await graph.start()
    with pytest.raises(StepFailed, match="no"):
        await run.result(timeout=20)
    errors = {"done": None, "bad": {"type": "ValueError", "message": "no"}}
    assert told == [(errors, {"done": "completed", "bad": "failed"})]


async def test_what_is_being_undone_is_neither_forked_nor_retried_and_explain_says_so(app: Weft, worker):
    began, go = asyncio.Event(), asyncio.Event()

    @app.task(timeout="60s")
    async def undo() -> None:
        began.set()
        await go.wait()

    @app.task
    async def one() -> int:
        return 1

    @app.task
    async def fails() -> None:
        raise ValueError("no")

    graph = app.graph("slow")
    graph.task("done", one, compensate=undo)
    graph.task("bad", fails, after="done")
    run = await graph.start()
    await asyncio.wait_for(began.wait(), 20)

    why = await run.explain()
    assert why.step == "done" and why.text.startswith("done: is undone, since the run fails: running on worker")
    with pytest.raises(Conflict, match=r"has begun to undo what it did \(done\): start it anew"):
        await run.fork(from_step="bad")

    # Cut off in the middle: nobody knows how far it came.
    await run.cancel()
    for verb in (run.retry, lambda: run.fork(from_step="bad")):
        with pytest.raises(Conflict, match=r"has begun to undo what it did \(done\)"):
            await verb()
    go.set()


@pytest.mark.parametrize("delay", [None, "soon", -1])
async def test_a_wait_whose_duration_turns_out_to_be_none_fails_and_does_not_wait_for_nothing(
    app, worker, quiet, delay
):
    graph = app.graph("pausing")
    graph.wait("rest", duration="${input.delay}")
    run = await graph.start({"delay": delay})
    with pytest.raises(StepFailed, match="duration of node rest: ") as failure:
        await run.result(timeout=30)
    assert failure.value.type == "InvalidOption"
