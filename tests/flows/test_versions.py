"""Versions of a workflow's code: pinned runs, and runs whose code does not fit what they did."""

from __future__ import annotations

import re
from typing import Any

import pytest

from weft import Conflict, Context, DefinitionError, InvalidOption, NotFound, RunCancelled, RunStatus, StepFailed, Weft
from weft.sdk.checking import check_runs
from weft.sdk.versions import version_of

pytestmark = pytest.mark.leaves("open runs")

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


async def charge(n: int = 1) -> str:
    ran.append("charge")
    return f"paid {n}"


async def check() -> str:
    ran.append("check")
    return "checked"


async def old(ctx: Context, n: int = 1) -> list[str]:
    paid = await ctx.step(charge, n)
    await ctx.receive("go")
    return [paid]


async def new(ctx: Context, n: int = 1) -> list[str]:
    checked = await ctx.step(check)
    paid = await ctx.step(charge, n)
    await ctx.receive("go")
    return [checked, paid]


def beside(app: Weft, name: str) -> Weft:
    """Returns another app on the same store."""
    return Weft(name, redis_url=app._redis_url, namespace=app._namespace)


async def differing(app: Weft, eventually: Any, **options: Any) -> tuple[Any, Weft]:
    """Starts a run with the old code and lets it wait; returns it, and an app with the new code."""
    run = await app.workflow(name="flow", **options)(old).start()
    async with app.worker():
        await waits(run, eventually)
    other = beside(app, "new")
    other.workflow(name="flow")(new)
    return run, other


async def waits(run: Any, eventually: Any) -> None:
    async def waiting() -> bool:
        return bool((await run.info()).status == RunStatus.WAITING)

    await eventually(waiting)


async def diverges(run: Any, eventually: Any) -> str:
    async def diverged() -> bool:
        return bool((await run.explain()).reason == "diverged")

    await eventually(diverged)
    return str((await run.explain()).text)


def test_a_version_is_that_of_the_code_not_of_its_looks():
    def like() -> Any:
        # A comment.
        async def old(ctx: Context, n: int = 1) -> list[str]:
            """And a docstring."""
            paid = await ctx.step(charge, n)

            await ctx.receive("go")
            return [paid]

        return old

    assert version_of(old) == version_of(like())
    assert version_of(old) != version_of(new)


async def test_versions_of_a_definition_are_checked(app: Weft):
    app.workflow(name="flow", version="1")(old)
    with pytest.raises(DefinitionError, match="already has version '1'"):
        app.workflow(name="flow", version="1")(new)
    with pytest.raises(DefinitionError, match="already has a workflow"):
        app.workflow(name="flow")(new)
    with pytest.raises(InvalidOption, match="belongs to a start"):
        app.workflow(name="flow", version="pin")(new)
    with pytest.raises(InvalidOption, match="version"):
        app.workflows["flow"].options(version="a b")


async def test_a_workflow_that_got_another_name_goes_on_with_runs_of_the_old_one(app: Weft, eventually):
    flow = app.workflow(name="flow", version="1")(old)
    waiting, pinned = await flow.start(), await flow.options(version="pin").start()
    async with app.worker():
        await waits(waiting, eventually)
        await waits(pinned, eventually)
    queued = await flow.start()
    other = beside(app, "new")
    renamed = other.workflow(name="renamed", aliases=["flow"], version="1")(old)
    async with other, other.worker():
        for run in (waiting, pinned, queued, await renamed.start()):
            await run.signal("go")
            assert await run.result(timeout=20) == ["paid 1"]
    assert (await queued.info()).name == "flow"
    assert ran == ["charge"] * 4

    assert other.workflow(name="renamed", version="2")(new).aliases == ("flow",)
    assert other.workflows["flow"].version == "2"
    for name, aliases in (("flow", []), ("third", ["flow"]), ("third", ["renamed"])):
        with pytest.raises(DefinitionError, match="already has a workflow"):
            other.workflow(name=name, aliases=aliases)(old)


async def test_a_pinned_run_goes_on_with_its_version_and_no_other(app: Weft, eventually):
    flow = app.workflow(name="flow", version="1")(old)
    pinned = await flow.options(version="pin").start()
    async with app.worker():
        await waits(pinned, eventually)
    app.workflow(name="flow", version="2")(new)  # the old one stays beside it
    async with app.worker():
        fresh = await app.workflows["flow"].start()
        await pinned.signal("go")
        await fresh.signal("go")
        assert await pinned.result(timeout=10) == ["paid 1"]
        assert await fresh.result(timeout=10) == ["checked", "paid 1"]
    assert (await pinned.info()).version == "1"


async def test_a_worker_without_the_version_does_not_take_the_run_and_explain_says_so(app: Weft, eventually):
    run = await app.workflow(name="flow", version="1")(old).options(version="pin").start()
    other = beside(app, "new")
    other.workflow(name="flow", version="2")(new)
    async with other, other.worker():

        async def explained() -> bool:
            return "no live worker of queue default has version 1 of workflow flow" in (await run.explain()).text

        await eventually(explained)
        assert "they have 2" in (await run.explain()).text
        assert ran == []
        async with app.worker():  # beside the other: the run finds it
            await waits(run, eventually)
            await run.signal("go")
            assert await run.result(timeout=20) == ["paid 1"]


async def test_a_waiting_run_that_is_pinned_tells_that_nobody_has_its_version(app: Weft, eventually):
    run = await app.workflow(name="flow", version="1")(old).options(version="pin").start()
    async with app.worker():
        await waits(run, eventually)
    text = (await run.explain()).text
    assert text.startswith("its code waits for receive signal:go at")
    assert "no live worker of queue default has version 1" in text


async def test_the_diff_says_what_was_expected_what_was_found_and_where(app: Weft, eventually):
    run, other = await differing(app, eventually)
    async with other, other.worker():
        await run.signal("go")
        text = await diverges(run, eventually)
    line = new.__code__.co_firstlineno + 1
    assert "entry 2 is\n  - step charge, completed\n" in text
    assert re.search(rf"  \+ step check \(\S*test_versions\.py:{line}\)", text)
    assert f"weft runs resolve {run.id} pin|fork|accept" in text


async def test_in_the_middle_of_a_deploy_runs_go_on_with_the_code_they_had(app: Weft, eventually):
    run, other = await differing(app, eventually)
    more = [await app.workflows["flow"].start() for _ in range(3)]
    async with app.worker():
        for one in more:
            await waits(one, eventually)
    async with other, other.worker(), app.worker():
        for one in (run, *more):
            await one.signal("go")
        for one in (run, *more):
            assert await one.result(timeout=20) == ["paid 1"]
            assert "diverged" not in [event.type for event in await one.history()]


async def test_a_run_that_does_not_fit_is_cancelled_like_any_other(app: Weft, eventually):
    run, other = await differing(app, eventually)
    async with other, other.worker():
        await run.signal("go")
        await diverges(run, eventually)
        assert await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)


async def test_pin_has_a_run_go_on_with_the_code_it_had(app: Weft, eventually):
    run, other = await differing(app, eventually)
    async with other, other.worker():
        await run.signal("go")
        await diverges(run, eventually)
        assert await run.resolve("pin") == run
        assert (await run.info()).version == version_of(old)

        async def nobody() -> bool:
            return "no live worker" in (await run.explain()).text

        await eventually(nobody)
        async with app.worker():
            assert await run.result(timeout=20) == ["paid 1"]
    assert ran == ["charge"]
    assert next(e.data for e in await run.history() if e.type == "resolved")["action"] == "pin"


async def test_accept_goes_on_with_the_new_code_and_does_nothing_twice(app: Weft, eventually, memory):
    run, other = await differing(app, eventually)
    async with other, other.worker():
        await run.signal("go")
        await diverges(run, eventually)
        assert await other.workflows["flow"].run(run.id).resolve("accept") == run
        assert await run.result(timeout=10) == ["checked", "paid 1"]
    assert ran == ["charge", "check"]


async def test_what_was_accepted_survives_the_death_of_the_memory(app: Weft, eventually):
    run, other = await differing(app, eventually)
    async with other:
        async with other.worker():
            await run.signal("other")
            await diverges(run, eventually)
            await other.workflows["flow"].run(run.id).resolve("accept")
            await waits(run, eventually)
        async with other.worker():  # another one, which knows only the journal
            await run.signal("go")
            assert await run.result(timeout=10) == ["checked", "paid 1"]
    assert ran == ["charge", "check"]


async def test_a_signal_before_the_beginning_changes_nothing_about_versions(app: Weft, eventually):
    run = await app.workflow(name="flow")(old).options(delay="10ms").start()
    await run.signal("early")
    async with app.worker():
        await waits(run, eventually)
    other = beside(app, "new")
    other.workflow(name="flow")(new)
    async with other, other.worker():
        await run.signal("go")
        await diverges(run, eventually)
        forked = await other.workflows["flow"].run(run.id).resolve("fork")
        assert await forked.result(timeout=10) == ["checked", "paid 1"]
        await run.resolve("pin")
    async with app.worker():
        assert await run.result(timeout=10) == ["paid 1"]


async def test_fork_goes_on_in_a_run_of_its_own_and_leaves_the_other(app: Weft, eventually, memory):
    run, other = await differing(app, eventually)
    async with other, other.worker():
        await run.signal("go")
        await diverges(run, eventually)
        forked = await other.workflows["flow"].run(run.id).resolve("fork")
        assert forked != run
        assert await forked.result(timeout=10) == ["checked", "paid 1"]
        assert (await forked.info()).replay_of == run.id
        assert (await run.status()) == RunStatus.WAITING
        assert ran == ["charge", "check"]
        await run.resolve("pin")
        async with app.worker():
            assert await run.result(timeout=20) == ["paid 1"]
    assert ran == ["charge", "check"]


async def test_calls_children_and_chance_go_with_what_is_accepted_or_forked(app: Weft, eventually):
    changed = False
    big = "x" * 20_000

    @app.task
    async def pack(name: str) -> str:
        ran.append(f"pack {name}")
        return big

    @app.task(queue="later")
    async def slow() -> str:
        ran.append("slow")
        return "slow"

    @app.workflow
    async def below(ctx: Context) -> str:
        ran.append("below")
        return "child"

    @app.workflow
    async def flow(ctx: Context) -> list[Any]:
        id = ctx.uuid()
        extra = [await ctx.step(check)] if changed else []
        packed, child = await ctx.gather(ctx.call(pack, "a"), ctx.child(below))
        await ctx.sleep("5ms")
        late = ctx.call(slow)
        await ctx.receive("go")
        return [*extra, len(packed), child, await late, str(id)]

    async with app.worker(queues=["default"]):
        run = await flow.start()

        async def late() -> bool:
            return "call slow, receive signal:go" in (await run.explain()).text

        await eventually(late)
    changed = True
    async with app.worker(queues=["default"]):
        await run.signal("other")
        await diverges(run, eventually)
    forked = await run.resolve("fork")
    await run.resolve("accept")
    ids = []
    async with app.worker(queues=["default", "later"]):
        for one in (run, forked):
            await one.signal("go")
            *rest, id = await one.result(timeout=10)
            assert rest == ["checked", len(big), "child", "slow"]
            ids.append(id)
    assert ids[0] == ids[1]
    # What was done is not done again; the call that was open is each run's own.
    assert sorted(ran) == ["below", "check", "check", "pack a", "slow", "slow"]


async def test_there_is_nothing_to_resolve_about_most_runs(app: Weft, eventually):
    flow = app.workflow(name="flow")(old)

    @app.task
    async def job() -> None: ...

    run = await flow.start()
    with pytest.raises(Conflict, match="has not begun"):
        await run.resolve("pin")
    async with app.worker():
        await waits(run, eventually)
        with pytest.raises(InvalidOption, match="pin, fork, accept"):
            await run.resolve("ignore")
        for action in ("fork", "accept"):
            with pytest.raises(Conflict, match="does not wait because of its code"):
                await run.resolve(action)
        await run.resolve("pin")  # ahead of a deploy
        await run.signal("go")
        assert await run.result(timeout=10) == ["paid 1"]
        with pytest.raises(Conflict, match="has ended"):
            await run.resolve("accept")
        task = await job.enqueue()
        await task.result(timeout=10)
        with pytest.raises(Conflict, match="none of a workflow"):
            await flow.run(task.id).resolve("pin")


async def test_code_that_must_be_at_hand_is_named(app: Weft, eventually):
    run, other = await differing(app, eventually)
    async with other, other.worker():
        await run.signal("go")
        await diverges(run, eventually)
    bare = beside(app, "bare")
    async with bare:
        found: Any = await bare.runs.get(run.id)
        with pytest.raises(NotFound, match="has no workflow 'flow'"):
            await found.resolve("accept")


def stored(app: Weft, raw: Any) -> dict[bytes, bytes]:
    """Returns all that is stored of runs, as it is."""
    keys, found = app.engine().ns.keys, []
    for p in range(app.engine().ns.partitions):
        for pattern in (keys.run(p, "*"), keys.journal(p, "*"), keys.mail(p, "*"), keys.log(p), keys.timers(p)):
            found += list(raw.scan_iter(pattern))
    return {key: raw.dump(key) for key in found}


async def test_check_tells_which_stored_runs_fit_the_code(app: Weft, eventually, raw):
    run, other = await differing(app, eventually)
    queued = await app.workflows["flow"].start(2)

    async with other:
        before = stored(app, raw)
        (fresh, waiting) = await check_runs(other)
        assert (fresh.id, fresh.verdict) == (queued.id, "compatible")
        assert (waiting.id, waiting.verdict, waiting.version) == (run.id, "needs pin", version_of(old))
        assert "  - step charge, completed" in waiting.text
        assert "+ step check (" in waiting.text
        assert ran == ["charge"]
        assert stored(app, raw) == before
        assert [one.verdict for one in await check_runs(app)] == ["compatible", "compatible"]
        assert len(await check_runs(other, last=1)) == 1
        assert await check_runs(other, name="none") == []
        await run.resolve("pin")
        (_, pinned) = await check_runs(other)
        assert "pinned to version" in pinned.text

    empty = beside(app, "empty")
    async with empty:
        assert {one.verdict for one in await check_runs(empty)} == {"breaks"}


async def test_check_tells_of_arguments_and_of_code_that_fails_where_the_run_is(app: Weft, eventually, raw):
    run, _ = await differing(app, eventually)

    async def failing(ctx: Context, n: int = 1) -> None:
        await ctx.step(charge, n)
        raise ValueError("no")

    async def narrower(ctx: Context) -> None: ...

    async def later(ctx: Context, n: int = 1) -> list[str]:
        await ctx.step(charge, n)
        await ctx.receive("go")
        raise ValueError("no")

    await app.workflows["flow"].start(n=5)
    found = []
    for code in (failing, narrower, later):
        other = beside(app, "new")
        other.workflow(name="flow")(code)
        async with other:
            found.append({one.id: one for one in await check_runs(other)}[run.id])
            fresh = (await check_runs(other))[0]
            assert fresh.verdict == ("breaks" if code is narrower else "compatible")
    assert [one.verdict for one in found] == ["needs pin", "needs pin", "compatible"]
    assert "  + it has failed with ValueError: no" in found[0].text
    # A run that was rebuilt does not know what it waited for.
    ns = app.engine().ns
    raw.hset(ns.keys.run(0, run.id), "turn", "recovered")
    other = beside(app, "new")
    other.workflow(name="flow")(failing)
    async with other:
        (rebuilt,) = [one for one in await check_runs(other) if one.id == run.id]
    assert (rebuilt.verdict, "the code fails where the run is: ValueError: no" in rebuilt.text) == ("needs pin", True)


async def test_a_failed_run_is_checked_when_asked_for(app: Weft):
    @app.workflow
    async def fails(ctx: Context) -> None:
        await ctx.step(charge)
        raise ValueError("no")

    run = await fails.start()
    async with app.worker():
        with pytest.raises(StepFailed):
            await run.result(timeout=10)
    assert await check_runs(app) == []
    ((found),) = await check_runs(app, ended=True)
    assert (found.status, found.verdict) == ("failed", "compatible")


async def test_a_later_life_is_checked_accepted_and_forked_as_it_is(app: Weft, eventually):
    changed = False

    @app.workflow
    async def flow(ctx: Context, text: str) -> list[Any]:
        if len(text) < 20_000:
            await ctx.step(charge)
            ctx.set_state(grown=True)
            await ctx.continue_as_new("x" * 20_000)  # too much to stand in the journal
        extra = [await ctx.step(check)] if changed else []
        paid = await ctx.step(charge, 2)
        chance = ctx.random()
        await ctx.receive("go")
        return [*extra, paid, len(text), chance]

    async with app.worker():
        run = await flow.start("x")
        await waits(run, eventually)
    changed = True
    (report,) = await check_runs(app, last=10)
    assert (report.run_id, report.verdict) == (run.id, "breaks")  # the same version, as far as one can tell
    async with app.worker():
        await run.signal("other")
        await diverges(run, eventually)
    forked = await run.resolve("fork")
    await run.resolve("accept")
    given = []
    async with app.worker():
        for one in (run, forked):
            await one.signal("go")
            given.append(await one.result(timeout=20))
            assert await one.state() == {"grown": True}
    assert given[0][:3] == ["checked", "paid 2", 20_000] and given[0] == given[1]
    assert ran == ["charge", "charge", "check", "check"]
