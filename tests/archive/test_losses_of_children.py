"""The store is lost around the end of a child: it does not run again, and its parent hears how it ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weft import Context, RunStatus, StepFailed, Weft
from weft.engine import flows as verbs
from weft.errors import PartitionLost
from weft.ids import partition_of

pytestmark = [pytest.mark.leaves("history", "open runs"), pytest.mark.usefixtures("quick")]


@pytest.fixture
def database_url(tmp_path) -> str:
    """SQLite only: what is looked at here is the store."""
    return f"sqlite:///{tmp_path / 'archive.sqlite'}"


async def lose(app: Weft, archivers: Any, raw: Any) -> None:
    """Empties the store as FLUSHALL would, and rebuilds it from what was archived by then."""
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
    for each in await archivers():
        assert await each._recover()


def family(app: Weft, ran: list[str], id: str = "") -> tuple[Any, Any]:
    async def note(word: str) -> None:
        ran.append(word)

    @app.workflow
    async def below(ctx: Context) -> str:
        await ctx.step(note, "below")
        await ctx.receive("go")
        return "below"

    @app.workflow(queue="above")
    async def above(ctx: Context) -> str:
        child = ctx.options(id=id).child(below) if id else ctx.child(below)
        ctx.set_state(child=child.id)
        return await child

    return above, below


async def settled(run: Any, eventually: Any) -> None:
    async def waits() -> bool:
        return bool(await run.status() == RunStatus.WAITING)

    await eventually(waits)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "let go"])
async def test_a_child_whose_end_is_in_the_mail_does_not_run_again(
    app: Weft, archive, archivers, raw, start_worker, eventually, lost: bool
):
    ran: list[str] = []
    above, below = family(app, ran)
    run = await above.start()
    worker = await start_worker(queues=["above"])
    other = await start_worker(queues=["default"])
    await settled(run, eventually)
    child = below.run((await run.state())["child"])
    await settled(child, eventually)
    await worker.stop()  # nobody takes the parent's mail from here on
    await child.signal("go")
    await child.result(10)
    keys, p = app.engine().ns.keys, partition_of(run.id)

    async def told() -> bool:
        return bool(raw.llen(keys.mail(p, run.id)))

    await eventually(told)
    await other.stop()
    await archive()
    if lost:
        await lose(app, archivers, raw)
    else:
        raw.delete(keys.run(p, child.id))  # as when it was kept long enough
    await start_worker(queues=["default", "above"])
    assert await run.result(20) == "below"
    assert ran == ["below"]
    assert [event.type for event in await child.history()].count("completed") == 1


@pytest.mark.parametrize("lives", [1, 2])
async def test_a_parent_that_was_sent_back_hears_of_a_child_that_ended_before_it_asks_for_it(
    app: Weft, archive, archivers, raw, start_worker, eventually, lives: int
):
    """A worker begins a child that the rebuilt parent asks for later; by then the child has ended."""

    @app.workflow
    async def failing(ctx: Context) -> None:
        raise KeyError("no")

    @app.workflow
    async def above(ctx: Context, life: int = 1) -> str:
        await ctx.receive("go")
        if life < lives:
            ctx.continue_as_new(life + 1)
        try:
            await ctx.child(failing)
        except StepFailed as error:
            return error.type
        return ""

    run = await above.start()
    worker = await start_worker()
    await settled(run, eventually)
    await archive()
    early: list[tuple[Any, ...]] = []
    honest = verbs.start_child

    async def later(ns: Any, *child: Any, **more: Any) -> str:
        early.append(child)
        return await honest(ns, *child, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(verbs, "start_child", later)
        for _ in range(lives):
            await run.signal("go")
        assert await run.result(20) == "KeyError"
    await worker.stop()
    # Nothing of that is archived: the parent is where it has not asked for the child, in its first life.
    await lose(app, archivers, raw)
    await start_worker()
    await settled(run, eventually)
    (child,) = early
    await honest(app.engine().ns, *child, id="", by="test")
    with pytest.raises(StepFailed):
        await failing.run(child[0]).result(10)
    keys, p = app.engine().ns.keys, partition_of(run.id)

    async def heard() -> bool:
        return any(b" ended " in entry for entry in raw.lrange(keys.journal(p, run.id), 0, -1))

    await eventually(heard)
    for _ in range(lives):
        await run.signal("go")
    assert await run.result(20) == "KeyError"


async def test_a_worker_begins_no_child_for_a_run_that_was_rebuilt_meanwhile(
    app: Weft, archive, archivers, raw, start_worker, eventually, monkeypatch
):
    above, _ = family(app, [])
    asked, rebuilt, started = asyncio.Event(), asyncio.Event(), list[str]()
    honest = verbs.start_child

    async def away(*args: Any, **more: Any) -> str:
        """The store is away when a child is to be started, and comes back rebuilt."""
        if not asked.is_set():
            asked.set()
            await rebuilt.wait()
            raise PartitionLost("the store was lost")
        started.append(args[1])
        return await honest(*args, **more)

    monkeypatch.setattr(verbs, "start_child", away)
    await above.start()
    await archive()
    worker = await start_worker(queues=["above"])
    await asyncio.wait_for(asked.wait(), 10)
    for lane in worker.lanes:
        await lane.stop_claiming()  # so that it does not go on with the rebuilt run
    await lose(app, archivers, raw)
    rebuilt.set()

    async def let_go() -> bool:
        return not worker.running

    await eventually(let_go)
    assert not started
