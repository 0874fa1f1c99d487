"""A soak: however many runs go through, Redis holds what is moving and no more."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from weft import Context, Weft, current
from weft.store.keys import Keyspace

#: Bytes that the store may hold more after the last round than after the first: nodes of the log, tables that grew.
SLACK = 400_000
#: How long the store keeps what is archived.
HOT_MS = 200

pytestmark = pytest.mark.leaves("history")


def declare(app: Weft):
    """Returns what starts one run of every kind, and what each gives."""

    @app.task(keep_result="1d", tags={"team": "a"})
    async def task(text: str) -> int:
        current().log.info("got", n=len(text))
        return len(text)

    @app.task
    async def item(item: int) -> str:
        return str(item) * 6_000

    inner = app.graph("inner", output="${size(made)}")
    inner.task("made", call="item", with_={"item": 3})
    graph = app.graph("outer", output="${below}")
    graph.task("all", call="item", map="[1, 2, 3]")
    graph.subgraph("below", inner, after="all")
    graph.wait("wait", signal="go", after="below")

    idle = app.graph("idle")
    idle.wait("wait", signal="go")

    @app.workflow
    async def child(ctx: Context, n: int) -> str:
        return await ctx.call(item, n)

    @app.workflow
    async def flow(ctx: Context) -> int:
        ctx.set_state(phase="begun")
        text = await ctx.child(child, 4)
        await ctx.receive("go")
        return len(text)

    async def all_of_them() -> None:
        run = await task.enqueue("t" * 6_000)
        graphs = await graph.options(keep_result="1d").start()
        flows = await flow.options(keep_result="1d").start()
        await graphs.signal("go")
        await flows.signal("go")
        await (await idle.options(keep_result="1d").start()).cancel()
        assert [await one.result(60) for one in (run, graphs, flows)] == [6_000] * 3

    return all_of_them


async def soak(app: Weft, raw, archivers, eventually, *, rounds: int, at_once: int, to_the_last: bool = False) -> None:
    start, keyspace = declare(app), Keyspace(app.engine().ns.keys.namespace)
    archiving = await archivers(HOT_MS)
    for each in archiving:
        each.start()

    def held(*, steps: bool) -> Counter[str]:
        """Returns how many keys of each family runs have. Steps that were cancelled stay a minute, whatever is archived."""
        parsed = [keyspace.parse(bytes(key).decode()) for key in raw.scan_iter(keyspace.pattern(), count=1_000)]
        ours = [(family, parts) for _, family, parts in filter(None, parsed) if "run" in family.parts]
        return Counter(family.name for family, parts in ours if steps or family.name != "run" or "/" not in parts[0])

    used: list[int] = []
    for n in range(rounds):
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(start())
        last = to_the_last and n in (0, rounds - 1)
        await eventually(lambda: not held(steps=last), within=120)  # noqa: B023
        gc.collect()
        used.append(int(raw.info("memory")["used_memory"]))
    assert used[-1] < used[0] + SLACK, f"the store grows: {used}"


async def test_a_few_rounds_leave_nothing_of_their_runs(app, start_worker, archivers, raw, eventually):
    await start_worker()
    await soak(app, raw, archivers, eventually, rounds=2, at_once=4)


@pytest.mark.chaos
async def test_many_rounds_leave_nothing_of_their_runs(app, start_worker, archivers, raw, eventually):
    await start_worker()
    await soak(app, raw, archivers, eventually, rounds=30, at_once=40, to_the_last=True)
