"""Lists and counts by filters of all kinds while runs move from the hot store to the archive: none twice, none left out."""

from __future__ import annotations

import asyncio
import itertools
import random
from datetime import UTC, datetime

import pytest

from weft import Context, StepFailed, Weft
from weft.store.runs import scan_runs

pytestmark = pytest.mark.leaves("history", "pending")


class Coded(Exception):
    code = "no_funds"


async def ends(*runs):
    await asyncio.gather(*(run.result(20) for run in runs), return_exceptions=True)


@pytest.fixture
async def made(app: Weft, start_worker, quiet):
    """Some of everything that filters tell apart, ended; returns a moment in between."""
    tries: list[int] = []

    @app.task
    async def add(a: int, text: str = "") -> str:
        return f"{a} {text}"

    @app.task
    async def bad(kind: str) -> None:
        raise {"lookup": LookupError, "value": ValueError, "coded": Coded}[kind](f"about {kind}")

    @app.task(debounce="30ms", unique_key=lambda text: "same")
    async def settles(text: str) -> str:
        return text

    @app.task
    async def changes() -> None:
        tries.append(1)
        raise ValueError("first") if len(tries) == 1 else LookupError("second")

    @app.workflow
    async def child(ctx: Context, text: str) -> str:
        return text

    @app.workflow
    async def flow(ctx: Context, fails: bool) -> str:
        text = await ctx.child(child, "needle")
        if fails:
            raise LookupError("in the flow")
        return text

    graph = app.graph("plain", output="${one}")
    graph.transform("one", "${input.text}")
    again = app.graph("again")
    again.task("changes", call="changes")

    await start_worker()
    found, middle = [], None
    for n, (team, owner) in enumerate(itertools.product(("a", "b", None), ("ann", "bob", None))):
        tags = {name: value for name, value in (("team", team), ("owner", owner)) if value}
        found += [
            await add.options(tags=tags).enqueue(n, "needle" if n % 2 else "hay"),
            await add.options(tags=tags, idempotency_key=f"k{n}").enqueue(n, "needle" * 1_000),
            await bad.options(tags=tags).enqueue(("lookup", "value", "coded")[n % 3]),
            await graph.options(tags=tags).start({"text": "needle" if n % 3 else "bad"}),
            await flow.options(tags=tags).start(n % 2 == 0),
        ]
        if n == 4:
            middle = datetime.now(UTC)
    # Found by the tag of the call that was replaced, and by the error of the time before: they must not be.
    await settles.options(tags={"team": "a"}).enqueue("hay")
    found.append(await settles.options(tags={"team": "b"}).enqueue("needle"))
    retried = await again.start()
    waiting = await add.options(delay="1h", tags={"team": "a"}).enqueue(1, "needle")
    purged = [await bad.options(idempotency_key=f"p{n}").enqueue("value") for n in range(2)]
    await waiting.cancel("needle")
    await ends(*found, retried, *purged)
    await quiet()
    await retried.retry()
    with pytest.raises(StepFailed, match="second"):
        await retried.result(20)
    await quiet()
    await app.dlq.purge(ids=[run.id for run in purged])
    assert middle is not None
    return middle


def filters(middle: datetime, parent: str, chance: random.Random):
    """Returns each filter by itself, then many together."""
    known = {
        "status": ["completed", "failed", "cancelled"],
        "kind": ["task", "graph", "workflow"],
        "name": ["add", "bad", "flow", "child", "plain", "nobody"],
        "tag": [("team", "a"), ("team", "b"), ("owner", "bob"), ("@error", "LookupError"), ("@parent", parent)],
        "owner": ["ann", "bob"],
        "parent": [parent],
        "error": ["LookupError", "ValueError", "no_funds", "Coded"],
        "text": ["needle", "hay", "bad", "add", "about", "second"],
        "since": [middle],
        "until": [middle],
        "queue": ["default"],
    }
    yield {}
    for name, values in known.items():
        for value in values:
            yield {name: value}
    for _ in range(20):
        yield {name: chance.choice(known[name]) for name in chance.sample(sorted(known), chance.choice((2, 2, 3, 4)))}


async def paged(app: Weft, limit: int, **wanted):
    found = []
    while page := await app.runs.list(limit=limit, after=found[-1].id if found else None, **wanted):
        assert len(page) <= limit
        found += page
    return found


async def counted(app: Weft, infos, **wanted):
    """Checks that a count is that of a list."""
    by = ("status", "kind", "name", "queue")[len(str(wanted)) % 4]
    values = [str(getattr(info, by)) for info in infos]
    assert await app.runs.count(by=by, **wanted) == {value: values.count(value) for value in set(values)}, wanted


async def test_pages_and_counts_while_runs_move(app: Weft, made, archivers, forget):
    chance = random.Random(11)
    parent = next(info.id for info in await app.runs.list(name="flow"))
    expected = [(wanted, await app.runs.list(limit=1000, **wanted)) for wanted in filters(made, parent, chance)]
    assert sum(bool(found) for _, found in expected) > 33 and len(expected[0][1]) == 45 + 9 + 3
    for wanted, found in expected:
        await counted(app, found, **wanted)
    letters = {info.id for info in await app.runs.list(status="failed", limit=1000) if info.kind != "graph"}

    async def stays() -> bool:
        """Tells whether nothing but dead letters, which stay, is left in the store."""
        scanned = [await scan_runs(app.engine().ns, p, 0, count=10_000) for p in range(app.engine().ns.partitions)]
        return {run for _, runs in scanned for run in runs if "/" not in run} <= letters

    moving = await archivers(1)
    for each in moving:
        each.start()
    for looked, (wanted, found) in enumerate(itertools.cycle(expected)):
        if looked > 25 and await stays():
            break
        ids = [info.id for info in await paged(app, chance.choice((5, 11, 40)), **wanted)]
        assert ids == [info.id for info in found], wanted
        await counted(app, found, **wanted)
    for each in moving:
        await each.stop()
    forget(*(app.runs.get(info.id) for info in expected[0][1]))

    for wanted, found in expected:
        assert await paged(app, chance.choice((9, 50)), **wanted) == found, wanted
        await counted(app, found, **wanted)
