"""close_approvals: what an ended run asked is decided by nobody any more; what one that was opened again asks stays."""

import pytest
from parked import graph_of, parked_approval, record_of
from partition import Partition

from weft.store.approvals import close_approvals
from weft.store.runs import end_run, read_runs

pytestmark = pytest.mark.leaves("open runs", "pending")


async def seq_of(part: Partition, run: str) -> int:
    (row,) = await read_runs(part.ns, part.p, [run])
    assert row is not None
    return row.number("seq", 1)


async def end(part: Partition, run: str) -> None:
    (row,) = await read_runs(part.ns, part.p, [run])
    assert row is not None
    await end_run(part.ns, part.p, row, kind="cancelled", value=b"\x80", keep_ms=60_000, by="c")


def pending(part: Partition) -> list[bytes]:
    return part.raw.zrange(part.keys.pending_approvals(part.p), 0, -1)  # type: ignore[return-value]


async def test_approvals_of_an_ended_run_are_cancelled_and_leave_the_index(part: Partition) -> None:
    record = await parked_approval(part)
    run = graph_of(record.id)
    await end(part, run)

    await close_approvals(part.ns, part.p, run, ["review", "none"], seq=await seq_of(part, run))

    assert (await record_of(part, record.id)).status == "cancelled" and pending(part) == []
    assert not part.raw.exists(part.keys.approval(part.p, f"{run}/none"))


@pytest.mark.parametrize("how", ["open", "ended again"])
async def test_a_run_that_went_on_since_keeps_what_it_asks(part: Partition, how: str) -> None:
    record = await parked_approval(part)
    run = graph_of(record.id)
    seq = await seq_of(part, run)
    if how == "ended again":
        await end(part, run)
    before = part.snapshot()

    await close_approvals(part.ns, part.p, run, ["review"], seq=seq)

    assert part.snapshot() == before


async def test_without_an_event_it_is_done_however_the_run_stands(part: Partition) -> None:
    record = await parked_approval(part)

    await close_approvals(part.ns, part.p, graph_of(record.id), ["review"])

    assert (await record_of(part, record.id)).status == "cancelled" and pending(part) == []


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    await refuses_other_epochs(lambda: close_approvals(part.ns, part.p, "r0-x", ["review"], seq=1))
