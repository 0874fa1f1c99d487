"""Clicks that race with each other, with the timeout and with cancel: one decision, and everybody is told of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from waiting import approval_of, timers_gone

from weft import Approval, Conflict, RunCancelled, Weft
from weft.sdk.graphrun import GraphRun
from weft.worker.worker import Worker

StartWorker = Callable[..., Awaitable[Worker]]
Advance = Callable[[int], Awaitable[None]]


async def click(app: Weft, asked: Approval, decision: str, by: str) -> Any:
    """Returns the decision this click made, or the one that it was told had been made."""
    verb = app.approvals.approve if decision == "approved" else app.approvals.reject
    try:
        done = await verb(asked.id, by=by, digest=asked.digest)
    except Conflict as error:
        return error.facts["decision"]
    return done.decision


async def asked_of(app: Weft, n: int, **options: Any) -> tuple[list[GraphRun], list[Approval]]:
    graph = app.graph("race", output="${review}")
    graph.approval("review", on_reject="continue", **options)
    runs = [await graph.start({}) for _ in range(n)]
    return runs, [await approval_of(app, run) for run in runs]


async def decided_once(app: Weft, run: GraphRun, asked: Approval) -> dict[str, Any]:
    """Returns the decision, which record, result and history agree on."""
    types = Counter(event.type for event in await run.history())
    assert types["approval_decided"] == 1 and types["step_completed"] == 1
    decision = (await app.approvals.get(asked.id)).decision
    assert decision is not None and await run.result(timeout=30) == decision
    return decision


async def test_a_hundred_clicks_at_once_make_one_decision(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    (run,), (asked,) = await asked_of(app, 1)
    told = await asyncio.gather(
        *(click(app, asked, "approved" if n % 2 else "rejected", f"person {n}") for n in range(100))
    )
    await run.result(timeout=30)
    decision = await decided_once(app, run, asked)
    assert told == [decision] * 100


async def test_a_quorum_under_a_hundred_clicks_counts_each_person_once(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    (run,), (asked,) = await asked_of(app, 1, quorum=20, approvers=[f"person {n}" for n in range(50)])
    # Each of fifty people clicks twice.
    await asyncio.gather(*(click(app, asked, "approved", f"person {n % 50}") for n in range(100)))
    votes = (await run.result(timeout=30))["votes"]
    assert len(votes) == len({vote["by"] for vote in votes}) == 20
    assert (await decided_once(app, run, asked))["decision"] == "approved"


async def test_an_approval_and_its_timeout_race_and_one_wins(
    app: Weft, start_worker: StartWorker, advance: Advance
) -> None:
    await start_worker()
    runs, asked = await asked_of(app, 100, timeout="1h", on_timeout="continue")
    _, *told = await asyncio.gather(advance(3_600_000), *(click(app, one, "approved", "anna") for one in asked))
    for run, one, said in zip(runs, asked, told, strict=True):
        await run.result(timeout=30)
        decision = await decided_once(app, run, one)
        assert said == decision and decision["decision"] in ("approved", "timed_out")
    await timers_gone(app)


async def test_an_approval_and_a_rejection_race_and_one_wins(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    runs, asked = await asked_of(app, 100)
    told = await asyncio.gather(
        *(asyncio.gather(click(app, one, "approved", "anna"), click(app, one, "rejected", "ben")) for one in asked)
    )
    for run, one, said in zip(runs, asked, told, strict=True):
        await run.result(timeout=30)
        assert said == [await decided_once(app, run, one)] * 2


async def test_an_approval_and_a_cancel_race_and_the_record_says_who_came_first(
    app: Weft, start_worker: StartWorker
) -> None:
    await start_worker()
    runs, asked = await asked_of(app, 100)
    ends: Counter[str] = Counter()
    told = await asyncio.gather(
        *(
            asyncio.gather(click(app, one, "approved", "anna"), run.cancel())
            for run, one in zip(runs, asked, strict=True)
        )
    )
    await timers_gone(app)
    for run, one, (said, _) in zip(runs, asked, told, strict=True):
        record = await app.approvals.get(one.id)
        try:
            assert await run.result(timeout=30) == record.decision
            ends["completed"] += 1
        except RunCancelled:
            ends["cancelled"] += 1
        # Decided, then cancelled before a worker went on: both are true, and the record keeps the decision.
        assert record.status == said["decision"] in ("approved", "cancelled")
    assert ends.total() == 100
