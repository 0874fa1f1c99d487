"""A workflow loses its store in the middle of everything it can do: rebuilt, it has what it had, and comes to the same end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from weft import AlreadyRunning, Context, InvalidArguments, RunCancelled, StepFailed, Weft
from weft.core.approvals import State
from weft.core.model import SPEC_DECODER, RunStatus
from weft.errors import Conflict, PartitionLost
from weft.ids import partition_of
from weft.sdk.checking import check_runs
from weft.store import flows as flow_store

pytestmark = [pytest.mark.leaves("history", "open runs"), pytest.mark.usefixtures("quick")]


@pytest.fixture
def database_url(tmp_path) -> str:
    """SQLite only: what is looked at here is the store."""
    return f"sqlite:///{tmp_path / 'archive.sqlite'}"


def stand(app: Weft, raw: Any, run: str) -> dict[str, Any]:
    """Returns what the store has of a workflow run, as far as it is no token and no pointer into the log."""
    keys, p = app.engine().ns.keys, partition_of(run)
    own = {name.decode(): value for name, value in raw.hgetall(keys.run(p, run)).items()}
    updates = raw.hgetall(keys.updates(p, run))
    return {
        "spec": SPEC_DECODER.decode(own["spec"]),
        "fields": {name: own.get(name) for name in ("born", "state", "lived", "deadline", "overdue", "approvals")},
        "journal": raw.lrange(keys.journal(p, run), 0, -1),
        "mail": raw.lrange(keys.mail(p, run), 0, -1),
        "ledger": raw.hgetall(keys.ledger(p, run)),
        "belongings": raw.smembers(keys.belongings(p, run)),
        "signals": raw.hgetall(keys.signals(p, run)),
        # Whoever waits for an answer says so again.
        "updates": {name: value[:1] if value[:1] == b"?" else value for name, value in updates.items()},
        "deadline": raw.zscore(keys.timers(p), f"deadline:{run}"),
        "approvals": [_approval(raw.hgetall(key)) for key in sorted(raw.scan_iter(match=keys.approval(p, f"{run}/*")))],
        "pending": raw.zrange(keys.pending_approvals(p), 0, -1, withscores=True),
        "waits": [pair for pair in raw.zrange(keys.timers(p), 0, -1, withscores=True) if pair[0].startswith(b"wait:")],
    }


def _approval(fields: dict[bytes, bytes]) -> dict[bytes, Any]:
    return {**fields, b"state": msgspec.json.decode(fields[b"state"], type=State)}


@pytest.fixture
def lose(app: Weft, archive, archivers, raw) -> Callable[..., Any]:
    """Archives everything, empties the store as FLUSHALL would, rebuilds it; what runs have must be what they had."""

    async def lost(*runs: str) -> None:
        await archive()
        before = {run: stand(app, raw, run) for run in runs}
        raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
        for each in await archivers():
            assert await each._recover()
        for run, had in before.items():
            has = stand(app, raw, run)
            for what, value in had.items():
                assert has[what] == value, (run, what)

    return lost


class Effects(list[str]):
    """What steps did outside of the store."""

    async def note(self, word: str) -> str:
        self.append(word)
        return word


@pytest.fixture
def effects() -> Effects:
    return Effects()


async def settled(run: Any, eventually: Any) -> None:
    async def waits() -> bool:
        return bool((await run.info()).status == RunStatus.WAITING)

    await eventually(waits)


async def test_a_later_life_with_signals_and_updates_that_nobody_took(app, lose, start_worker, eventually, effects):
    @app.workflow
    async def lives(ctx: Context, n: int = 0, text: str = "") -> list[Any]:
        await ctx.step(effects.note, f"life {n}")
        ctx.set_state(**{f"life{n}": len(text)})
        await ctx.receive("next")
        if n < 2:
            ctx.continue_as_new(n + 1, "x" * 9_000)
        ctx.on_update("ask", lambda word: f"{word}!")
        await ctx.receive("end")
        return [n, len(text), await ctx.receive("early"), await ctx.receive("early")]

    worker = await start_worker()
    run = await lives.start()
    await settled(run, eventually)
    for value in (1, 2):
        await run.signal("early", value, request_id=f"e,{value}|%")
    await settled(run, eventually)
    asked = asyncio.create_task(run.update("ask", "who", id="u 1", timeout=20))
    await run.signal("next")

    async def second() -> bool:
        return "life1" in await run.state()

    await eventually(second)
    await settled(run, eventually)
    await worker.stop()

    await lose(run.id)

    assert await run.state() == {"life0": 0, "life1": 9_000}
    await run.signal("early", 1, request_id="e,1|%")  # it came before the loss
    await start_worker()
    for _ in range(2):
        await run.signal("next")
    assert await asked == "who!"
    await run.signal("end")
    assert await run.result(30) == [2, 9_000, 1, 2]
    assert effects == ["life 0", "life 1", "life 2"]


async def test_whoever_waits_for_an_answer_waits_while_the_store_is_rebuilt(app, start_worker, monkeypatch):
    @app.workflow
    async def desk(ctx: Context) -> int:
        ctx.on_update("add", lambda n: n + 1)
        await ctx.receive("end")
        return 0

    honest, calls = flow_store.read_answer, []

    async def closed(*args):
        calls.append(1)
        if len(calls) <= 2:
            raise PartitionLost("the store lost partition 0, which is being rebuilt")
        return await honest(*args)

    monkeypatch.setattr(flow_store, "read_answer", closed)
    await start_worker()
    run = await desk.start()

    assert await run.update("add", 1, timeout=20) == 2
    assert len(calls) > 2
    await run.signal("end")
    assert await run.result(20) == 0


async def test_updates_before_and_after_their_answers(app, lose, start_worker, eventually, effects, monkeypatch):
    monkeypatch.setattr("weft.engine.waiting.RECHECK", 0.02)  # whoever waits looks while the store is rebuilt, too

    @app.workflow
    async def desk(ctx: Context) -> int:
        asked: list[int] = []

        async def add(n: int) -> int:
            await ctx.step(effects.note, f"add {n}")
            if n == 3:
                await ctx.receive("allow")
            if n < 0:
                raise KeyError(n)
            asked.append(n)
            return sum(asked)

        def check(n: int) -> None:
            if n == 0:
                raise ValueError("nothing to add")

        ctx.on_update("add", add, validate=check)
        await ctx.receive("end")
        return sum(asked)

    worker = await start_worker()
    run = await desk.start()
    assert await run.update("add", 1, id="one", timeout=20) == 1
    with pytest.raises(StepFailed):
        await run.update("add", -1, id="bad, |%", timeout=20)
    with pytest.raises(InvalidArguments):
        await run.update("add", 0, id="refused", timeout=20)
    under_way = asyncio.create_task(run.update("add", 3, id="three", timeout=20))
    while "add 3" not in effects:
        await asyncio.sleep(0.01)
    await settled(run, eventually)
    await worker.stop()
    queued = asyncio.create_task(run.update("add", 5, id="five", timeout=20))
    while not any(e.type == "update_received" and e.data["id"] == "five" for e in await run.history()):
        await asyncio.sleep(0.01)

    await lose(run.id)

    # What was answered is answered the same, by nobody's work.
    assert await run.update("add", 1, id="one", timeout=20) == 1
    with pytest.raises(StepFailed, match="KeyError"):
        await run.update("add", -1, id="bad, |%", timeout=20)
    with pytest.raises(InvalidArguments, match="nothing to add"):
        await run.update("add", 0, id="refused", timeout=20)
    await start_worker()
    assert await queued == 6
    await run.signal("allow")
    assert await under_way == 9
    await run.signal("end")
    assert await run.result(30) == 9
    assert effects == ["add 1", "add -1", "add 3", "add 5"]


async def test_a_run_whose_deadline_has_passed_goes_on_with_its_clean_up(app, lose, start_worker, eventually, effects):
    @app.workflow(deadline="300ms")
    async def late(ctx: Context) -> None:
        try:
            await ctx.receive("never")
        finally:
            async with ctx.shield():
                await ctx.step(effects.note, "clean up")
                await ctx.receive("done")

    worker = await start_worker()
    run = await late.start()

    async def told() -> bool:
        return effects == ["clean up"]

    await eventually(told)
    await settled(run, eventually)
    await worker.stop()

    await lose(run.id)

    await start_worker()
    await run.signal("done")
    with pytest.raises(StepFailed, match="deadline"):
        await run.result(30)
    assert effects == ["clean up"]


def versions(app: Weft, effects: Effects) -> tuple[Any, Any]:
    async def old(ctx: Context) -> list[str]:
        big = await ctx.step(effects.note, "x" * 9_000)
        paid = await ctx.options(name="pay").step(effects.note, "pay")
        ctx.set_state(at="paid")
        await ctx.receive("go")
        return [paid, str(len(big))]

    async def new(ctx: Context) -> list[str]:
        checked = await ctx.options(name="check").step(effects.note, "check")
        paid = await ctx.options(name="pay").step(effects.note, "pay")
        await ctx.receive("go")
        return [checked, paid]

    return old, new


async def parked(app, start_worker, eventually, effects) -> tuple[Any, Weft]:
    """A run whose code does not fit its journal, and an app with that code."""
    old, new = versions(app, effects)
    run = await app.workflow(name="flow")(old).start()
    worker = await start_worker()
    await settled(run, eventually)
    await worker.stop()
    other = Weft("new", redis_url=app._redis_url, namespace=app._namespace)
    other.workflow(name="flow")(new)
    async with other.worker():
        await run.signal("go", request_id="go")

        async def diverged() -> bool:
            return bool((await run.explain()).reason == "diverged")

        await eventually(diverged)
    return run, other


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("action", ["pin", "accept", "fork"])
async def test_a_run_that_was_parked_and_resolved(app, lose, start_worker, eventually, effects, raw, action, before):
    run, other = await parked(app, start_worker, eventually, effects)
    meant = other.workflows["flow"].run(run.id)
    goes_on = run
    if before:
        goes_on = await meant.resolve(action)

    await lose(*{run.id, goes_on.id})

    if not before:
        assert (await run.explain()).reason == "diverged"
        goes_on = await meant.resolve(action)
    # With a pin the code it had goes on; else the code that the resolution fitted.
    async with (app if action == "pin" else other).worker():
        assert await goes_on.result(30) == (["pay", "9000"] if action == "pin" else ["check", "pay"])
        if action == "fork":
            assert (await run.status()) == RunStatus.WAITING
    await other.close()
    assert sorted(word[:5] for word in effects) == sorted(["xxxxx", "pay", *(["check"] if action != "pin" else [])])


async def test_a_version_that_was_taken_over_and_a_pin_of_a_start(app, lose, start_worker, eventually, effects):
    first, second = "v1", "v2"

    async def code(ctx: Context) -> str:
        await ctx.step(effects.note, "pay")
        await ctx.receive("a")
        await ctx.receive("go")
        return "done"

    flow = app.workflow(name="flow", version=first)(code)
    pinned, free = await flow.options(version="pin").start(), await flow.start()
    worker = await start_worker()
    for run in (pinned, free):
        await settled(run, eventually)
    await worker.stop()
    app.workflow(name="flow", version=second)(code)
    worker = await start_worker()
    for run in (pinned, free):
        await run.signal("a")

    async def taken() -> bool:
        return "version_changed" in [e.type for e in await free.history()]

    await eventually(taken)
    for run in (pinned, free):
        await settled(run, eventually)
    await worker.stop()

    await lose(pinned.id, free.id)

    assert (await pinned.info()).version == first
    await start_worker()
    for run in (pinned, free):
        await run.signal("go")
        assert await run.result(30) == "done"
    assert [e.data["version"] for e in await free.history() if e.type == "version_changed"] == [second]
    assert effects == ["pay", "pay"]


async def test_children_ids_and_a_cancellation_on_its_way(app, lose, start_worker, eventually, effects):
    @app.workflow
    async def below(ctx: Context, n: int) -> int:
        await ctx.step(effects.note, f"below {n}")
        await ctx.receive("go")
        return n

    @app.workflow
    async def above(ctx: Context) -> list[int]:
        first, other = ctx.child(below, 1), ctx.options(on_parent_close="leave").child(below, 2)
        try:
            return [await first, await other]
        except asyncio.CancelledError:
            async with ctx.shield():
                await ctx.step(effects.note, "undo")
            raise

    async with app.worker():
        over = await below.options(id="over").start(0)
        await over.signal("go")
        assert await over.result(20) == 0
        run = await above.options(id="one").start()
        while {"below 1", "below 2"} - set(effects):
            await asyncio.sleep(0.01)
        await settled(run, eventually)
    await run.cancel()

    await lose(run.id)

    with pytest.raises(AlreadyRunning):
        await above.options(id="one").start()
    again = await below.options(id="over").start(7)  # its run is over: so is its hold on the id
    await start_worker()
    with pytest.raises(RunCancelled):
        await run.result(30)
    await again.signal("go")
    assert await again.result(30) == 7
    children = {run.id: run for run in await app.runs.list(name="below")}
    ended = {run.status for run in children.values()}
    assert RunStatus.CANCELLED in ended
    assert sorted(effects) == ["below 0", "below 1", "below 2", "below 7", "undo"]


async def test_an_approval_keeps_its_votes_its_time_and_who_may_decide(app, lose, start_worker, eventually, effects):
    @app.workflow
    async def ask(ctx: Context) -> list[Any]:
        decided = await ctx.approve(
            "pay", show={"sum": 5}, approvers=["ann", "bo", "cy"], quorum=2, timeout="1h", reminders=["30m"]
        )
        return [decided["decision"], sorted(vote["by"] for vote in decided["votes"])]

    worker = await start_worker()
    run = await ask.start()

    async def asked() -> bool:
        return bool(await app.approvals.list(run=run.id))

    await eventually(asked)
    await settled(run, eventually)
    await worker.stop()
    (approval,) = await app.approvals.list(run=run.id)
    await app.approvals.approve(approval.id, by="ann", digest=approval.digest, request_id="first")
    await app.approvals.delegate(approval.id, by="bo", to=["di"])

    await lose(run.id)

    # Without any worker it is there, with what was said.
    (after,) = await app.approvals.list(run=run.id)
    assert [vote["by"] for vote in after.votes] == ["ann"] and after.approvers == ["ann", "cy", "di"]
    assert (after.opened_at, after.due_at, after.digest) == (approval.opened_at, approval.due_at, approval.digest)
    await app.approvals.approve(approval.id, by="ann", digest=approval.digest, request_id="first")
    with pytest.raises(Conflict, match="one vote"):
        await app.approvals.approve(approval.id, by="ann", digest=approval.digest)
    await app.approvals.approve(approval.id, by="di", digest=approval.digest)
    await start_worker()
    assert await run.result(30) == ["approved", ["ann", "di"]]


async def test_a_run_that_waited_behind_a_change_goes_the_old_way_still(app, lose, start_worker, eventually, effects):
    version = 1

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.step(effects.note, "begun")
        if version == 2 and ctx.changed("tax"):
            await ctx.step(effects.note, "new")
        ctx.set_state(phase="waits")
        await ctx.receive("go")
        return "new" if version == 2 and ctx.changed("tax") else "old"

    worker = await start_worker()
    before = await flow.start()
    await settled(before, eventually)
    await worker.stop()
    version = 2
    await lose(before.id)

    assert [one.verdict for one in await check_runs(app)] == ["compatible"]
    await start_worker()
    after = await flow.start()
    for run in (before, after):
        await settled(run, eventually)
        assert await run.state() == {"phase": "waits"}
        await run.signal("go")
    assert [await run.result(30) for run in (before, after)] == ["old", "new"]
    assert sorted(effects) == ["begun", "begun", "new"]
