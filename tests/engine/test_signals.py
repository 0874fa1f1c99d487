"""Signals of graph runs: to a step that waits, before one does, in order, in time or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from waiting import node_of, timers_gone

from weft import Conflict, Graph, InvalidArguments, NotFound, PayloadTooLarge, StepFailed, Weft
from weft.engine.signals import MAX_BYTES
from weft.errors import RunCancelled
from weft.ids import new_run_id
from weft.sdk.graphrun import GraphRun
from weft.store.waits import MAX_KEPT
from weft.worker.worker import Worker

StartWorker = Callable[..., Awaitable[Worker]]
Advance = Callable[[int], Awaitable[None]]


def waiting_graph(app: Weft, **options: Any) -> Graph:
    graph = app.graph("order", output="${[first, paid]}")
    first = graph.transform("first", "begun")
    graph.wait("paid", signal="paid", after=first, **options)
    return graph


async def test_a_signal_is_the_output_of_the_node_that_waits(app: Weft, start_worker: StartWorker) -> None:
    run = await waiting_graph(app).start()
    await start_worker()
    about = await node_of(run, "paid", "waiting")
    assert about["waits_for"] == "signal:paid" and "due_ms" not in about

    assert await run.signal("paid", {"amount": 7}) is True

    assert await run.result(timeout=20) == ["begun", {"amount": 7}]
    types = [event.type for event in await run.history() if event.type not in ("queued", "routed")]
    assert types == ["node_completed", "step_waiting", "signalled", "step_completed", "completed"]
    told = {event.type: event.data for event in await run.history()}
    assert told["step_waiting"]["waits"] == "signal:paid"
    assert (told["signalled"]["name"], told["signalled"]["value"]) == ("paid", {"amount": 7})


async def test_signals_that_come_early_wait_in_order(app: Weft, start_worker: StartWorker) -> None:
    graph = app.graph("two", output="${[a, b]}")
    a = graph.wait("a", signal="go")
    graph.wait("b", signal="go", after=a)
    run = await graph.start()
    assert [await run.signal("go", n) for n in (1, 2)] == [False, False]
    await start_worker()
    assert await run.result(timeout=20) == [1, 2]


async def test_two_steps_that_wait_for_one_name_take_turns(app: Weft, start_worker: StartWorker) -> None:
    graph = app.graph("both", output="${[a, b]}")
    graph.wait("a", signal="go")
    graph.wait("b", signal="go")
    run = await graph.start()
    await start_worker()
    await node_of(run, "a", "waiting")
    await node_of(run, "b", "waiting")
    assert await run.signal("go", 1) and await run.signal("go", 2)
    assert sorted(await run.result(timeout=20)) == [1, 2]


async def test_a_repeated_call_answers_the_same_and_counts_once(app: Weft, start_worker: StartWorker) -> None:
    run = await waiting_graph(app).start()
    assert [await run.signal("paid", 1, request_id="k") for _ in range(3)] == [False] * 3
    await start_worker()
    assert await run.result(timeout=20) == ["begun", 1]
    assert await run.signal("paid", 1, request_id="k") is False
    assert [e.type for e in await run.history()].count("signalled") == 1


@pytest.mark.leaves("open runs")
async def test_too_many_signals_that_nobody_takes_are_refused(app: Weft) -> None:
    run = await waiting_graph(app).start()
    await asyncio.gather(*(run.signal("paid", n) for n in range(MAX_KEPT)))
    with pytest.raises(Conflict, match=f"{MAX_KEPT} signals paid that no step took"):
        await run.signal("paid", 0)
    await run.cancel()


@pytest.mark.parametrize("on_timeout", ["fail", "continue"])
async def test_a_wait_ends_at_its_timeout(
    app: Weft, start_worker: StartWorker, advance: Advance, on_timeout: str
) -> None:
    run = await waiting_graph(app, timeout="1h", on_timeout=on_timeout).start()
    await start_worker()
    assert "due_ms" in await node_of(run, "paid", "waiting")
    await advance(3_599_000)
    assert (await node_of(run, "paid", "waiting"))["status"] == "waiting"
    await advance(1_001)
    if on_timeout == "continue":
        assert await run.result(timeout=20) == ["begun", None]
    else:
        with pytest.raises(StepFailed, match="TimeoutError: signal paid did not come within 1h"):
            await run.result(timeout=20)
    with pytest.raises(Conflict, match="has ended"):
        await run.signal("paid")


async def test_a_signal_and_its_timeout_race_and_one_wins(
    app: Weft, start_worker: StartWorker, advance: Advance
) -> None:
    graph = waiting_graph(app, timeout="1h", on_timeout="continue")
    runs = [await graph.start() for _ in range(100)]
    await start_worker()
    for run in runs:
        await node_of(run, "paid", "waiting")

    async def signal(run: GraphRun) -> bool:
        try:
            return await run.signal("paid", "signal")
        except Conflict:
            return False

    _, *answers = await asyncio.gather(advance(3_600_000), *(signal(run) for run in runs))
    results = [await run.result(timeout=30) for run in runs]
    for answer, (_, value) in zip(answers, results, strict=True):
        assert value == ("signal" if answer else None)
    for run in runs:
        types = [event.type for event in await run.history()]
        assert types.count("step_completed") == 1 and types[-1] == "completed"


async def test_cancel_drops_a_step_that_waits(app: Weft, start_worker: StartWorker) -> None:
    run = await waiting_graph(app, timeout="1h").start()
    await start_worker()
    await node_of(run, "paid", "waiting")
    assert await run.cancel("no need")
    with pytest.raises(Conflict, match=r"has ended \(cancelled\)"):
        await run.signal("paid")
    with pytest.raises(RunCancelled):
        await run.result(timeout=20)
    await timers_gone(app)


async def test_a_worker_that_comes_later_finds_the_step_waiting(app: Weft, start_worker: StartWorker) -> None:
    run = await waiting_graph(app).start()
    first = await start_worker()
    await node_of(run, "paid", "waiting")
    await first.stop(grace=0)
    assert await run.signal("paid", 3) is True
    await start_worker()
    assert await run.result(timeout=20) == ["begun", 3]


@pytest.mark.leaves("open runs")
async def test_what_cannot_be_signalled_is_refused_and_changes_nothing(app: Weft, add: Any) -> None:
    graph = waiting_graph(app)
    run = await graph.start()
    before = await run.info()
    with pytest.raises(InvalidArguments, match="graph order waits for no signal payed: it waits for paid"):
        await run.signal("payed")
    with pytest.raises(PayloadTooLarge, match="signal paid takes"):
        await run.signal("paid", "x" * MAX_BYTES)
    for bad in ("", "a b", "a:b", "x\n", "é" * 10, 7, None):
        with pytest.raises(Exception, match="signal"):
            await run.signal(bad)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="there is no run"):
        await graph.run(new_run_id(0)).signal("paid")
    plain = await add.enqueue(1, 2)
    with pytest.raises(InvalidArguments, match="only runs of graphs and workflows take signals"):
        await graph.run(plain.id).signal("paid")
    assert await run.info() == before
    await run.cancel()
    await plain.cancel()
