"""Parents and children that live in different partitions lose their store: both come to their end, and no child runs twice."""

from __future__ import annotations

from typing import Any

import pytest

from weft import Context, RunStatus, Weft
from weft.ids import partition_of

pytestmark = [pytest.mark.leaves("history", "open runs"), pytest.mark.usefixtures("quick")]


@pytest.fixture
def partitions() -> int:
    return 4


@pytest.fixture
def database_url(tmp_path) -> str:
    """SQLite only: what is looked at here is the store."""
    return f"sqlite:///{tmp_path / 'archive.sqlite'}"


def family(app: Weft, ran: list[str]) -> tuple[Any, Any]:
    async def note(id: str) -> None:
        ran.append(id)

    @app.workflow
    async def below(ctx: Context, id: str) -> str:
        await ctx.step(note, id)
        await ctx.receive("go")
        return id * 5_000

    @app.workflow
    async def above(ctx: Context, id: str) -> int:
        child = ctx.options(id=id).child(below, id)
        ctx.set_state(child=child.id)
        return len(await child)

    return above, below


async def settled(runs: list[Any], eventually: Any) -> None:
    async def wait() -> bool:
        return all([await run.status() == RunStatus.WAITING for run in runs])

    await eventually(wait)


@pytest.mark.parametrize("told", ["before", "after"])
async def test_a_parent_hears_of_a_child_that_lives_elsewhere(
    app: Weft, archive, archivers, raw, start_worker, eventually, monkeypatch: pytest.MonkeyPatch, told: str
):
    ran: list[str] = []
    above, below = family(app, ran)
    async with app.worker():
        runs = [await above.start(id) for id in "abcd"]
        await settled(runs, eventually)
        children = [below.run((await run.state())["child"]) for run in runs]
        await settled(children, eventually)
        elsewhere = [r for r, c in zip(runs, children, strict=True) if partition_of(r.id) != partition_of(c.id)]
        assert elsewhere
        if told == "before":
            # The children end, and what they tell their parents is lost.

            async def nobody(ns: Any, rows: list[Any], **options: Any) -> list[None]:
                return [None] * len(rows)

            monkeypatch.setattr("weft.engine.housekeeping.flows.tell_parents", nobody)
            for child in children:
                await child.signal("go")
                await child.result(10)
    await archive()
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
    for each in await archivers():
        assert await each._recover()
    monkeypatch.undo()

    await start_worker()
    if told == "after":
        for child in children:
            await child.signal("go")
    for run in runs:
        assert await run.result(30) == 5_000
    assert sorted(ran) == list("abcd")
