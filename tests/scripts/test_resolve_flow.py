"""resolve_flow: entries are told otherwise, or the spec is another; all of it while the run is as it was read, or nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from flow_runs import begun, commit, entry, journal, turn
from partition import RESULT, Partition

from weft.core.flow import Entry
from weft.core.model import SPEC_DECODER, Token
from weft.errors import NotFound
from weft.store.resolving import resolve_flow
from weft.store.runs import RunRow, read_runs

pytestmark = pytest.mark.leaves("open runs", "pending")


async def stalled(part: Partition) -> tuple[Token, RunRow]:
    """A run that waits because its code does not fit."""
    token = await begun(part)
    step = entry("completed", "charge", payload=b"paid\n!")
    stall = turn(
        token, "1.2", kind="stall", expect=1, ms=9_999_999_999_999, awaits="the code of workflow", added=[step]
    )
    assert await commit(part, stall) == ["ok"]
    return token, await read(part, token)


async def read(part: Partition, token: Token) -> RunRow:
    (row,) = await read_runs(part.ns, part.p, [token.run])
    assert row is not None
    return row


async def resolve(part: Partition, row: RunRow, **facts: Any) -> str:
    options = {"goes_on": True, "facts": "action=accept", "by": "c-1", **facts}
    return await resolve_flow(part.ns, part.p, row, **options)


async def test_entries_are_told_otherwise_with_their_values_and_the_run_goes_on(part: Partition):
    token, row = await stalled(part)
    kept = Entry(7, "kept", "charge", "completed ")

    assert await resolve(part, row, length=2, changed={1: kept}) == "resolved"

    assert journal(part, token.run) == ["begin - 1|", "kept charge completed|paid\n!"]
    assert part.raw.lindex(part.keys.journal(part.p, token.run), 1).startswith(b"7 kept ")
    after = part.run(token.run)
    assert after["open"].startswith("2:") and "@" not in after["open"] and "awaits" not in after
    assert part.raw.zscore(part.keys.timers(part.p), f"open:{token.run}") is None
    assert part.events(token.run)[-1].type == "resolved"


async def test_code_that_is_accepted_need_not_wait_for_what_other_code_waited_for(part: Partition):
    token = await begun(part)
    stall = turn(token, "1.2.1@$sleep", kind="stall", expect=1, ms=9_999_999_999_999, awaits="the code of workflow")
    assert await commit(part, stall) == ["ok"]

    row = await read(part, token)
    spec = msgspec.structs.replace(row.spec, version="1")
    assert await resolve(part, row, goes_on=False, spec=spec) == "resolved"  # a pin: its own code comes to it again
    assert part.run(token.run)["turn"] == "1.2.1@$sleep"
    assert await resolve(part, await read(part, token), length=1) == "resolved"
    assert part.run(token.run)["turn"] == "1.2.1"


async def test_a_run_that_goes_on_by_itself_only_gets_another_spec(part: Partition):
    token = await begun(part)
    row = await read(part, token)
    spec = msgspec.structs.replace(row.spec, version="2")

    assert await resolve(part, row, goes_on=False, spec=spec) == "resolved"

    assert part.run(token.run)["open"] == token.ledger
    raw = part.raw.hget(part.keys.run(part.p, token.run), "spec")
    assert SPEC_DECODER.decode(raw).version == "2"


async def test_a_run_that_is_not_as_it_was_read_is_left_alone(part: Partition):
    _, row = await stalled(part)
    before = part.snapshot()
    assert await resolve(part, row, length=3) == "again"
    assert part.snapshot() == before
    assert await resolve(part, row) == "resolved"
    before = part.snapshot()
    assert await resolve(part, row) == "again"
    assert part.snapshot() == before


async def test_a_run_that_has_ended_or_never_was_is_refused(part: Partition, refuses_other_epochs):
    # EpochMissing and StaleEpoch are looked for by the fixture.
    token = await begun(part)
    row = await read(part, token)
    await refuses_other_epochs(lambda: resolve(part, row))
    await commit(part, turn(token, "1.2", kind="completed", expect=1, ms=5_000, value=RESULT))
    assert await resolve(part, row) == "ended completed"
    part.raw.delete(part.keys.run(part.p, token.run))
    with pytest.raises(NotFound):
        await resolve(part, row)
