"""retry_flow: a new run has what is kept of the journal of one that has ended, and its id."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from flow_runs import begun, commit, journal, turn
from partition import RESULT, Partition
from test_resolve_flow import read

from weft.core.flow import read_entries
from weft.core.model import SPEC_DECODER
from weft.ids import new_run_id
from weft.store.blobs import stage_blob
from weft.store.resolving import retry_flow
from weft.store.runs import RunRow

pytestmark = pytest.mark.leaves("open runs", "pending")

ENTRIES = [b"5 begin - 1 v r\n", b"6 completed charge \npaid"]


async def retry(part: Partition, row: RunRow, new: str, **facts: Any) -> str:
    changes = facts.pop("spec", {})
    spec = msgspec.structs.replace(row.spec, replay_of=row.id, deadline_ms=60_000, **changes)
    options = {"blobs": [], "lived": 0, "state": b"", "reason": "", "by": "c-1", **facts}
    return await retry_flow(part.ns, part.p, row.id, new, spec, options.pop("entries", ENTRIES), **options)


async def ended(part: Partition) -> RunRow:
    token = await begun(part)
    await commit(part, turn(token, "1.2", kind="cancelled", expect=1, ms=5_000, value=RESULT))
    return await read(part, token)


async def test_the_new_run_has_what_is_kept(part: Partition):
    row, new = await ended(part), new_run_id(part.p)
    digest = await stage_blob(part.ns, part.p, new, b"large")

    assert await retry(part, row, new, blobs=[digest], lived=7, state=b"s", reason="why") == "started"

    assert journal(part, new) == ["begin - 1 v r|", "completed charge|paid"]
    assert part.raw.pttl(part.keys.blob(part.p, new, digest)) == -1
    assert part.raw.smembers(part.keys.belongings(part.p, new)) == {f"blob {digest}".encode()}
    made = part.run(new)
    assert made["open"].startswith("2:@") and made["state"] == "s" and made["seq"] == "4" and made["lived"] == "7"
    assert SPEC_DECODER.decode(part.raw.hget(part.keys.run(part.p, new), "spec")).replay_of == row.id
    assert {f"open:{new}".encode(), f"deadline:{new}".encode()} <= set(part.raw.zrange(part.keys.timers(part.p), 0, -1))
    told = part.events(new)
    assert [event.type for event in told] == ["queued", "forked", "inherited", "state_changed"]
    assert told[1].facts == {"run": row.id, "lived": "7"} and told[1].payload == b"why"
    assert read_entries(told[2].payload) == ENTRIES


async def test_a_repeated_call_changes_nothing(part: Partition):
    row, new = await ended(part), new_run_id(part.p)
    assert await retry(part, row, new) == "started"
    before = part.snapshot()
    assert await retry(part, row, new) == "exists"
    assert part.snapshot() == before


async def test_a_run_that_only_the_archive_has_is_tried_again_and_an_empty_journal_is_one(part: Partition):
    row, new = await ended(part), new_run_id(part.p)
    part.raw.delete(part.keys.run(part.p, row.id))
    assert await retry(part, row, new, entries=[]) == "started"
    assert journal(part, new) == []


async def test_an_id_that_another_has_is_not_taken(part: Partition):
    row, new = await ended(part), new_run_id(part.p)
    once = {"unique": "u1", "once_ms": 60_000}
    record = part.keys.unique(part.p, "u1")
    part.raw.set(record, "r0-other", px=5_000)
    assert await retry(part, row, new, spec=once) == "active r0-other"
    assert not part.run(new)
    part.raw.set(record, row.id, px=5_000)  # its own, which is still remembered
    assert await retry(part, row, new, spec=once) == "started"
    assert part.raw.get(record) == new.encode()


async def test_what_is_open_or_has_lost_a_value_is_not_tried_again(part: Partition, refuses_other_epochs):
    # EpochMissing and StaleEpoch are looked for by the fixture.
    token = await begun(part)
    row, new = await read(part, token), new_run_id(part.p)
    await refuses_other_epochs(lambda: retry(part, row, new))
    assert await retry(part, row, new) == "open"
    await commit(part, turn(token, "1.2", kind="cancelled", expect=1, ms=5_000, value=RESULT))
    assert await retry(part, row, new, blobs=["gone"]) == "blob_gone"
    assert not part.run(new)
