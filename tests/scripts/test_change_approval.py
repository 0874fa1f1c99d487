"""change_approval.lua: an approval changes only as the caller read it; what is decided goes on, once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from parked import graph_of, parked_approval, record_of
from partition import Partition

from weft.core.approvals import Change, Record, State
from weft.core.model import ROUTES
from weft.errors import NotFound
from weft.store.approvals import change_approval
from weft.store.runs import end_run, read_runs

pytestmark = pytest.mark.leaves("open runs", "pending")

APPROVED = Change(State(["anna"]), "approved", [("approval_decided", {"by": "anna"})], {"decision": "approved"})


async def change(
    part: Partition,
    record: Record,
    change: Change = APPROVED,
    *,
    given: bytes = b"\xc0",
    digest: str = "d1",
    due_ms: int | None = None,
) -> str:
    return await change_approval(part.ns, part.p, record, change, given=given, digest=digest, due_ms=due_ms, by="anna")


async def test_a_decision_gives_the_step_its_token(part: Partition) -> None:
    record = await parked_approval(part)
    run = graph_of(record.id)

    assert await change(part, record) == "ok"

    ((entry, fields),) = part.stream(ROUTES)
    assert fields["r"] == record.id and part.run(record.id)["open"] == f"2:{entry}"
    assert part.raw.hget(part.keys.run(part.p, record.id), "given") == b"+\xc0"
    after = await record_of(part, record.id)
    assert (after.status, after.rev) == ("approved", 2) and after.decided_ms >= after.opened_ms
    assert part.raw.zcard(part.keys.pending_approvals(part.p)) == 0
    last = part.events(run)[-1]
    assert (last.type, last.facts, json.loads(last.payload)) == ("approval_decided", {"step": "review"}, {"by": "anna"})
    assert part.run(run)["seq"] == str(last.seq) and part.run(run)["parked"] == "0"


async def test_a_change_that_decides_nothing_sets_the_next_look(part: Partition) -> None:
    record = await parked_approval(part)
    due = record.opened_ms + 5_000
    reminded = Change(State(["anna"]), events=[("approval_reminded", {}), ("approval_escalated", {})], next_ms=due)
    assert await change(part, record, reminded, given=b"", digest="") == "ok"
    assert part.timers() == {f"wait:{record.id}": due} and part.run(record.id)["due"] == str(due)
    assert part.run(record.id)["open"] == "1:?approval" and part.stream(ROUTES) == []
    seqs = [event.seq for event in part.events(graph_of(record.id))]
    assert seqs == list(range(1, len(seqs) + 1))

    again = await record_of(part, record.id)
    assert await change(part, again, Change(State([])), given=b"", digest="") == "ok"
    assert part.timers() == {} and "due" not in part.run(record.id)


@pytest.mark.parametrize("how", ["again", "asked anew", "changed", "early", "ended", "decided"])
async def test_what_came_too_late_or_too_early_changes_nothing(part: Partition, how: str) -> None:
    record = await parked_approval(part)
    options: dict[str, Any] = {}
    if how == "again":
        record = dataclasses.replace(record, rev=7)
    elif how == "asked anew":  # by a retry of the run: as at first, but later
        record = dataclasses.replace(record, opened_ms=record.opened_ms - 1)
    elif how == "changed":
        options["digest"] = "d2"
    elif how == "early":
        options["due_ms"] = record.opened_ms + 60_000
    elif how == "ended":
        (row,) = await read_runs(part.ns, part.p, [graph_of(record.id)])
        assert row is not None
        await end_run(part.ns, part.p, row, kind="cancelled", value=b"\x80", keep_ms=60_000, by="c")
    else:
        assert await change(part, record) == "ok"
        record = await record_of(part, record.id)
    before = part.snapshot()
    assert await change(part, record, **options) == {"decided": "ended", "asked anew": "again"}.get(how, how)
    assert part.snapshot() == before


async def test_a_record_that_is_gone_is_told(part: Partition) -> None:
    record = await parked_approval(part)
    part.raw.delete(part.keys.approval(part.p, record.id))
    with pytest.raises(NotFound, match="there is no approval"):
        await change(part, record)


async def test_it_minds_the_epoch(
    part: Partition, refuses_other_epochs: Callable[[Callable[[], Awaitable[Any]]], Awaitable[None]]
) -> None:
    record = await parked_approval(part)
    await refuses_other_epochs(lambda: change(part, record))
