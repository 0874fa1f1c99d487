"""fork_flow: a new run has the journal, signals, values and state of another one, which stays as it is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from flow_runs import begun, commit, entry, journal, mail, mailbox, turn
from partition import RESULT, Partition
from test_resolve_flow import read

from weft.core.flow import Entry, read_entries
from weft.core.model import SPEC_DECODER, Token
from weft.errors import NotFound
from weft.ids import new_run_id
from weft.store.blobs import stage_blob
from weft.store.resolving import fork_flow
from weft.store.runs import RunRow

pytestmark = pytest.mark.leaves("open runs", "pending")


async def fork(part: Partition, row: RunRow, new: str, **facts: Any) -> str:
    spec = msgspec.structs.replace(row.spec, replay_of=row.id, deadline_ms=60_000)
    options = {"length": 3, "changed": {}, "blobs": [], "by": "c-1", **facts}
    return await fork_flow(part.ns, part.p, row, new, spec, **options)


async def parked(part: Partition, *, blob: str = "") -> tuple[Token, RunRow]:
    token = await begun(part)
    steps = [entry("opened", "pack"), entry("completed", "charge", payload=b"paid", blob=blob)]
    await commit(part, turn(token, "1.2", expect=1, added=steps, state=b"s"))
    await commit(part, turn(token, "1.3", kind="stall", expect=3, ms=9_999_999_999_999, awaits="the code of workflow"))
    return token, await read(part, token)


async def test_a_fork_has_what_the_other_did_and_both_go_their_way(part: Partition):
    token = await begun(part)
    digest = await stage_blob(part.ns, part.p, token.run, b"large")
    steps = [entry("opened", "pack"), entry("completed", "charge", payload=b"paid", blob=digest)]
    await commit(part, turn(token, "1.2", expect=1, added=steps, state=b"s"))
    await mail(part, token)
    row, new = await read(part, token), new_run_id(part.p)
    begin, kept = Entry(5, "begin", "-", f"1 v {token.run}"), Entry(6, "kept", "charge", "completed ")

    changed = {0: begin, 1: None, 2: kept}
    assert await fork(part, row, new, changed=changed, blobs=[digest]) == "started"

    assert journal(part, new) == [f"begin - 1 v {token.run}|", "kept charge completed|paid"]
    assert mailbox(part, new) == mailbox(part, token.run) == ["signal go|v"]
    assert part.raw.get(part.keys.blob(part.p, new, digest)) == b"large"
    assert part.raw.smembers(part.keys.belongings(part.p, new)) == {f"blob {digest}".encode()}
    made = part.run(new)
    assert made["open"].startswith("2:@") and made["state"] == "s" and made["seq"] == "5"
    assert SPEC_DECODER.decode(part.raw.hget(part.keys.run(part.p, new), "spec")).replay_of == token.run
    timers = part.raw.zrange(part.keys.timers(part.p), 0, -1)
    assert {f"open:{new}".encode(), f"deadline:{new}".encode()} <= set(timers)
    told = part.events(new)
    assert [event.type for event in told] == ["queued", "forked", "inherited", "inherited", "state_changed"]
    assert told[1].facts == {"run": token.run, "lived": "0"} and told[4].payload == b"s"
    # What it begins with stands in its own events too.
    assert read_entries(told[2].payload) == part.raw.lrange(part.keys.journal(part.p, new), 0, -1)
    assert read_entries(told[3].payload) == part.raw.lrange(part.keys.mail(part.p, new), 0, -1)
    assert told[3].facts == {"mail": "1"}
    assert part.events(token.run)[-1].type == "forked_as"
    assert journal(part, token.run) == ["begin - 1|", "opened pack|", "completed charge|paid"]


async def test_a_repeated_call_and_one_that_comes_late_change_nothing(part: Partition):
    _, row = await parked(part)
    new = new_run_id(part.p)
    assert await fork(part, row, new, length=4) == "again"
    assert await fork(part, row, new, blobs=["gone"]) == "blob_gone"
    assert await fork(part, row, new) == "started"
    before = part.snapshot()
    assert await fork(part, row, new) == "exists"
    assert part.snapshot() == before


async def test_a_run_that_has_ended_or_never_was_is_not_forked(part: Partition, refuses_other_epochs):
    # EpochMissing and StaleEpoch are looked for by the fixture.
    token = await begun(part)
    row, new = await read(part, token), new_run_id(part.p)
    await refuses_other_epochs(lambda: fork(part, row, new))
    await commit(part, turn(token, "1.2", kind="completed", expect=1, ms=5_000, value=RESULT))
    assert await fork(part, row, new) == "ended completed"
    part.raw.delete(part.keys.run(part.p, token.run))
    with pytest.raises(NotFound):
        await fork(part, row, new)
