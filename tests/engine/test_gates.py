"""Limits hold steps before the queue: at most n at once, per task, queue and key; rates; turns between keys."""

import asyncio
from collections import Counter

import msgspec
import pytest

from weft import DefinitionError, InvalidArguments, InvalidOption
from weft.core.model import ErrorRecord
from weft.engine.gates import admit
from weft.ids import partition_of
from weft.store.gates import read_gate
from weft.store.runs import RunRow, end_run, read_runs


class Stage:
    """Counts who is on stage, and lets steps stay there until they are told to go."""

    def __init__(self) -> None:
        self.on: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[str] = []
        self.exit = asyncio.Event()

    async def act(self, who: str) -> None:
        self.order.append(who)
        for name in (who, "*"):
            self.on[name] += 1
            self.most[name] = max(self.most[name], self.on[name])
        try:
            await self.exit.wait()
        finally:
            for name in (who, "*"):
                self.on[name] -= 1


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def results(runs):
    return await asyncio.gather(*(run.result(20) for run in runs))


async def test_a_task_runs_at_most_so_many_at_once_and_the_rest_burns_no_slot(app, stage, start_worker, eventually):
    @app.task(concurrency=2)
    async def narrow() -> None:
        await stage.act("narrow")

    @app.task
    async def wide() -> str:
        return "through"

    await start_worker(concurrency=3)
    runs = await narrow.enqueue_many([()] * 10)
    await eventually(lambda: stage.on["narrow"] == 2)

    assert await (await wide.enqueue()).result(10) == "through"
    assert (await runs[5].explain()).reason == "concurrency"
    stage.exit.set()
    await results(runs)

    assert stage.most["narrow"] == 2
    assert len(stage.order) == 10


async def test_waiting_steps_come_in_order_higher_priority_first(app, one_home, start_worker):
    order: list[int] = []

    @app.task(concurrency=1)
    async def note(n: int) -> None:
        order.append(n)

    first = await note.enqueue_many([(n,) for n in range(30)])
    urgent = await note.options(priority=9).enqueue(99)
    await start_worker(concurrency=10)
    await results([*first, urgent])

    # The very first was let through before the urgent one came.
    assert order == [0, 99, *range(1, 30)]


async def test_a_key_runs_at_most_so_many_at_once_and_keeps_no_other_key_waiting(app, stage, start_worker, eventually):
    @app.task(concurrency_key=lambda who: who, concurrency_per_key=1)
    async def one(who: str) -> None:
        await stage.act(who)

    await start_worker(concurrency=4)
    runs = [await one.enqueue("ann") for _ in range(5)] + [await one.enqueue("bob")]
    await eventually(lambda: stage.on["*"] == 2)

    assert stage.on == {"ann": 1, "bob": 1, "*": 2}
    waits = await runs[2].explain()
    assert waits.reason == "concurrency"
    assert waits.text == f"concurrency key ann of task one is full (1 of 1): held by {runs[0].id}"
    assert waits.holders == [runs[0].id]
    stage.exit.set()
    await results(runs)

    assert stage.most["ann"] == 1
    assert Counter(stage.order) == {"ann": 5, "bob": 1}


async def test_keys_take_turns_at_a_common_limit(app, one_home, start_worker):
    order: list[str] = []

    @app.task(concurrency=1, concurrency_key=lambda who: who)
    async def note(who: str) -> None:
        order.append(who)

    runs = await note.enqueue_many([("big",)] * 50 + [("small",)] * 2 + [("tiny",)])
    await start_worker(concurrency=10)
    await results(runs)

    assert order.index("small") <= 2 * 3
    assert order.index("tiny") <= 2 * 3
    assert max(i for i, who in enumerate(order) if who == "small") <= 2 * 2 * 3


async def test_a_key_with_hundreds_waiting_at_two_limits_is_served_and_lets_others_have_their_turn(app, start_worker):
    order: list[str] = []
    go = asyncio.Event()

    @app.task(concurrency=1, concurrency_key=lambda who, n: who, concurrency_per_key=1)
    async def note(who: str, n: int) -> None:
        order.append(who)
        await go.wait()

    await start_worker(concurrency=10)
    first = await note.enqueue("cold", 0)
    runs = await note.enqueue_many([("hot", n) for n in range(200)] + [("cold", n) for n in range(1, 4)])
    go.set()
    await results([first, *runs])

    assert Counter(order) == {"hot": 200, "cold": 4}
    assert max(i for i, who in enumerate(order) if who == "cold") <= 4 * 4


async def test_a_rate_lets_so_many_through_in_any_window(app, one_home, advance, start_worker, eventually):
    began: list[int] = []

    @app.task(rate_limit="2/h")
    async def call(n: int) -> None:
        began.append(n)

    await start_worker()
    runs = await call.enqueue_many([(n,) for n in range(5)])
    await results(runs[:2])
    waits = await runs[2].explain()

    assert waits.reason == "rate"
    assert waits.limit == "2/h"
    assert "resets in" in waits.text
    await advance(3_600_000 // 2)
    await asyncio.sleep(0.05)
    assert began == [0, 1]
    await advance(3_600_000 + 3_600_000 // 50 + 1000)
    await results(runs[2:4])
    assert began == [0, 1, 2, 3]
    await runs[4].cancel()


async def test_a_rate_is_counted_in_units_and_per_key(app, one_home, advance, start_worker):
    began: list[tuple[str, int]] = []

    @app.task(rate_limit="1000/m", rate_key=lambda who, tokens: who, rate_cost=lambda who, tokens: tokens)
    async def ask(who: str, tokens: int) -> None:
        began.append((who, tokens))

    await start_worker()
    runs = [await ask.enqueue("ann", 600), await ask.enqueue("ann", 600), await ask.enqueue("bob", 900)]
    await results([runs[0], runs[2]])

    assert (await runs[1].explain()).gate == "rate|ask|ann"
    with pytest.raises(InvalidArguments, match=r"rate_cost of task ask returned 1500: .* from 1 to 1000"):
        await ask.enqueue("ann", 1500)
    await advance(62_000)
    await runs[1].result(10)
    assert began == [("ann", 600), ("bob", 900), ("ann", 600)]


async def test_a_call_without_a_key_has_no_limit(app, start_worker):
    @app.task(rate_limit="1/h", rate_key=lambda who: who, concurrency_key=lambda who: who, concurrency_per_key=1)
    async def ask(who: str | None) -> None: ...

    @app.task
    async def told(who: str | None) -> None: ...

    graph = app.graph("asking")
    graph.task("ask", told, rate_limit="1/h", rate_key="${input.who}", with_={"who": "${input.who}"})
    await start_worker()
    for run in [await ask.enqueue(None), await ask.enqueue(None), await ask.enqueue("ann")]:
        await run.result(10)
    late = await ask.enqueue("ann")
    assert (await late.explain()).reason == "rate"
    await late.cancel()
    for run in [await graph.start({"who": None}), await graph.start({"who": None})]:
        await run.result(10)


async def test_what_a_lowered_rate_never_lets_through_keeps_nobody_waiting(app, one_home, advance, start_worker):
    ran: list[int] = []

    @app.task(rate_limit="10/m", rate_cost=lambda cost: cost)
    async def ask(cost: int) -> int:
        ran.append(cost)
        return cost

    # Given one call in line, and one in the queue, that cost more than what the rate is lowered to.
    queued = await ask.enqueue(9)
    lined, cheap = await ask.enqueue(8), await ask.enqueue(1)
    await app.controls.limit(task="ask", rate="5/m")
    await start_worker()
    # Then others pass them,
    assert await cheap.result(10) == 1
    assert await (await ask.enqueue(2)).result(10) == 2
    for run in (queued, lined):
        why = await run.explain()
        assert (why.reason, why.until) == ("rate", None) and "raise it, or cancel the run" in why.text
    # and they go on when it is raised, or lifted.
    await advance(70_000)
    assert await app.controls.unlimit(task="ask")
    assert await queued.result(10) == 9
    await advance(70_000)
    assert await lined.result(10) == 8
    assert ran == [1, 2, 9, 8]


async def test_a_back_off_gives_the_slot_back_and_takes_one_again(app, one_home, advance, start_worker, eventually):
    began: list[str] = []

    @app.task(concurrency=1, retries=1, retry_delay="1h", max_delay="1h", jitter=False)
    async def shaky(who: str) -> str:
        began.append(who)
        if who == "first" and began.count(who) == 1:
            raise ValueError("not yet")
        return who

    await start_worker()
    first, second = await shaky.enqueue("first"), await shaky.enqueue("second")

    assert await second.result(10) == "second"
    assert (await first.explain()).reason == "retrying"
    await advance(3_600_000)
    assert await first.result(10) == "first"
    assert began == ["first", "second", "first"]


async def test_cancelling_a_holder_lets_the_next_one_through_and_a_waiter_leaves_the_line(
    app, stage, start_worker, eventually
):
    @app.task(concurrency=1)
    async def hold(who: str) -> None:
        await stage.act(who)

    await start_worker()
    first, second, third = [await hold.enqueue(who) for who in ("first", "second", "third")]
    await eventually(lambda: stage.on["first"])
    assert await second.cancel()
    assert await first.cancel()
    await eventually(lambda: stage.on["third"])
    stage.exit.set()
    await third.result(10)

    assert stage.order == ["first", "third"]


@pytest.mark.parametrize(
    "options", [{"concurrency_key": lambda who: who, "concurrency_per_key": 1}, {"concurrency": 1}], ids=["key", "task"]
)
async def test_a_waiter_that_is_let_through_while_it_is_cancelled_takes_no_slot_along(app, one_home, options):
    @app.task(**options)
    async def bill(who: str) -> None: ...

    # Given a waiter that somebody has read in order to cancel it, and that then gets the slot it waits for.
    first, waiter = await bill.enqueue("ann"), await bill.enqueue("ann")
    ns, p = app.engine().ns, partition_of(waiter.id)
    (seen,) = await read_runs(ns, p, [waiter.id])
    await first.cancel()
    assert await admit(ns, p) == 1

    async def end(row: RunRow) -> tuple[str, bool]:
        error = msgspec.msgpack.encode(ErrorRecord("RunCancelled", "over"))
        return await end_run(ns, p, row, kind="cancelled", value=error, keep_ms=60_000, by="c-1")

    # Then the canceller has to look again,
    assert await end(seen) == ("again", False)
    (now,) = await read_runs(ns, p, [waiter.id])
    assert await end(now) == ("cancelled", True)
    # and the slot is free.
    assert seen.line and await read_gate(ns, p, seen.line, shown=5) == (0, [], 0)


async def test_a_step_that_is_over_its_time_gives_the_slot_back(app, stage, start_worker):
    @app.task(concurrency=1, timeout="50ms")
    async def slow(who: str) -> str:
        if who == "first":
            await asyncio.sleep(30)
        return who

    await start_worker()
    first, second = await slow.enqueue("first"), await slow.enqueue("second")
    assert await second.result(10) == "second"
    assert (await first.info()).status == "failed"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"concurrency": 0}, InvalidOption, "from 1 to"),
        ({"concurrency": True}, InvalidOption, "from 1 to"),
        ({"concurrency_key": "to", "concurrency_per_key": 1}, InvalidOption, "takes a function"),
        ({"concurrency_per_key": 2}, DefinitionError, "needs concurrency_key"),
        ({"concurrency_key": lambda to: to}, DefinitionError, "limits nothing by itself"),
        ({"rate_limit": "many"}, InvalidOption, '"100/m"'),
        ({"rate_limit": "0/s"}, InvalidOption, "1 to"),
        ({"rate_limit": "5/y"}, InvalidOption, '"100/m"'),
        ({"rate_limit": 5}, InvalidOption, '"100/m"'),
        ({"rate_key": lambda to: to}, DefinitionError, "need rate_limit"),
        ({"rate_cost": 3}, DefinitionError, "need rate_limit"),
        ({"rate_limit": "5/s", "rate_cost": 6}, InvalidOption, "from 1 to 5"),
    ],
)
async def test_limits_that_cannot_be_meant_are_refused_at_definition(app, options, error, text):
    with pytest.raises(error, match=text):

        @app.task(**options)
        async def send(to: str) -> None: ...

    assert app.tasks == {}


@pytest.mark.parametrize("bad", [lambda to: 1 / 0, lambda to: ["no"], lambda to: "", lambda to: "x" * 600])
async def test_a_key_that_cannot_be_used_is_an_error_at_enqueue(app, raw, namespace, bad):
    @app.task(concurrency_key=bad, concurrency_per_key=1)
    async def send(to: str) -> None: ...

    with pytest.raises(InvalidArguments, match="concurrency_key of task send"):
        await send.enqueue("bob")
    with pytest.raises(InvalidArguments, match="concurrency_key of task send"):
        await send.enqueue_many([("bob",)])
    assert not list(raw.scan_iter(f"{namespace}:*run:*"))


async def test_no_key_means_no_limit(app, stage, start_worker, eventually):
    @app.task(concurrency_key=lambda who: None, concurrency_per_key=1)
    async def free(who: str) -> None:
        await stage.act(who)

    await start_worker(concurrency=5)
    runs = await free.enqueue_many([("a",)] * 3)
    await eventually(lambda: stage.on["a"] == 3)
    stage.exit.set()
    await results(runs)


async def test_what_waits_for_a_worker_does_not_begin_in_one_burst(app, one_home, advance, start_worker, eventually):
    began: list[int] = []

    @app.task(queue="late", rate_limit="4/h")
    async def call(n: int) -> None:
        began.append(n)

    await start_worker(queues=["other"])
    runs = await call.enqueue_many([(n,) for n in range(12)])
    for _ in range(3):
        await advance(2 * 3_600_000)
        await asyncio.sleep(0.05)
    await start_worker(queues=["late"])
    await results(runs[:4])
    await asyncio.sleep(0.2)

    assert began == [0, 1, 2, 3]
    await advance(3_600_000 + 3_600_000 // 50 + 1000)
    await results(runs[4:8])
    await asyncio.sleep(0.2)
    assert began == list(range(8))
    for run in runs[8:]:
        await run.cancel()


async def test_a_cancelled_reservation_lets_another_one_through(app, one_home, start_worker, eventually):
    @app.task(queue="late", rate_limit="1/h")
    async def call(n: int) -> int:
        return n

    first, second = await call.enqueue(1), await call.enqueue(2)
    await start_worker(queues=["other"])
    assert (await second.explain()).reason in ("rate", "no_worker")
    await first.cancel()
    await eventually(lambda: _queued(second))
    await start_worker(queues=["late"])
    assert await second.result(10) == 2


async def _queued(run) -> bool:
    return (await run.explain()).reason != "rate"
