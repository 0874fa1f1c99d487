"""Steps of graph runs that kill their workers: their runs are told, and go on, fail, or undo what they did."""

from __future__ import annotations

import pytest

from weft import StepFailed


@pytest.fixture
def poison(eventually, die_with, start_worker):
    """Lets three workers die with whatever stands in a queue."""

    async def kill(run, node: str) -> None:
        for n in (1, 2, 3):

            async def is_ready() -> bool:
                return (await run.graph())["nodes"][node]["status"] == "ready"

            await eventually(is_ready)
            await die_with(0, session=f"s-dead-{n}", queues=("deadly",))

    return kill


async def test_poison_is_a_dead_letter_of_its_step(
    app, one_home, poison, start_worker, short_lease, eventually, ns, buried
):
    graph = app.graph("brave")

    @graph.node(queue="deadly", on_error="dead_letter")
    async def bad(n: int) -> int:
        return n

    graph.transform("last", "${status.bad} ${errors.bad.type}", after="bad")
    await start_worker(queues=["none"])
    run = await graph.start({"n": 5})

    await poison(run, "bad")

    assert await run.result(timeout=30) == "failed Poisoned"
    told = [(e.type, e.data.get("session"), e.data.get("crashes")) for e in await run.history() if e.step == "bad"]
    assert told[:2] == [("step_reclaimed", "s-dead-1", 1), ("step_reclaimed", "s-dead-2", 2)]
    assert [kind for kind, _, _ in told[2:]] == ["step_failed"]
    letter = await app.dlq.get(f"{run.id}/bad")
    assert (letter.task, letter.input, letter.crashes, letter.worker) == ("brave.bad", {"n": 5}, 3, "s-dead-3")
    assert len(await app.dlq.list()) == 1
    await put_away(ns, eventually)
    await buried("s-dead-3")


async def test_poison_in_a_compensation_does_not_stop_the_others(
    app, one_home, poison, start_worker, short_lease, eventually, ns, buried, die_with
):
    undone: list[str] = []

    @app.task(queue="deadly")
    async def deadly() -> None: ...

    @app.task
    async def undo(what: str) -> None:
        undone.append(what)

    graph = app.graph("saga")

    @graph.node(compensate={"call": undo, "with": {"what": "one"}})
    async def one() -> None: ...

    @graph.node(after=one, compensate=deadly)
    async def two() -> None: ...

    @graph.node(after=two)
    async def three() -> None:
        raise ValueError("three")

    await start_worker(queues=["default"])
    run = await graph.start()
    for n in (1, 2, 3):

        async def waits() -> bool:
            return bool(await ns.read("XLEN", ns.keys.tasks(0, "deadly", 5), p=0))

        await eventually(waits)
        await die_with(0, session=f"s-dead-{n}", queues=("deadly",))

        async def taken() -> bool:
            pending = await ns.read("XPENDING", ns.keys.tasks(0, "deadly", 5), "weft", p=0)
            return not pending[0]

        await eventually(taken)

    with pytest.raises(StepFailed, match="three") as failure:
        await run.result(timeout=30)
    assert undone == ["one"]
    assert [cause["message"].partition(":")[0] for cause in failure.value.causes] == ["two could not be undone"]
    await put_away(ns, eventually)
    await buried("s-dead-3")


async def put_away(ns, eventually) -> None:
    async def no_timers() -> bool:
        return not await ns.read("ZRANGE", ns.keys.timers(0), 0, -1, p=0)

    await eventually(no_timers)
