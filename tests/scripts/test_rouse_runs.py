"""rouse_runs.lua: runs that rest go on, and whatever does not rest any more is left alone and forgotten."""

from __future__ import annotations

import pytest
from partition import Partition, retrying
from test_rest_step import rest, unserved

from weft.core.model import Token
from weft.store.timers import fire_timers
from weft.store.unserved import drop_unserved, read_needs, read_unserved, rouse_runs

pytestmark = pytest.mark.leaves("open runs", "pending")


async def resting(part: Partition) -> Token:
    token = await part.claimed()
    assert await rest(part, token) == "rests"
    part.take_pebbles()
    return token


async def test_a_run_goes_on_by_its_timer(part: Partition) -> None:
    token = await resting(part)

    assert await rouse_runs(part.ns, part.p, unserved(part)) == ["roused"]

    assert unserved(part) == [] and part.timer_pebbles() == 1
    assert await fire_timers(part.ns, part.p, [(token.run, token.spec)]) == ["fired"]
    (again,) = await part.claim()
    assert (again.run, again.delivery, again.attempt) == (token.run, 2, 1)


async def test_what_went_on_meanwhile_keeps_its_own_wait(part: Partition) -> None:
    token = await resting(part)
    (member,) = unserved(part)
    await rouse_runs(part.ns, part.p, [member])
    await fire_timers(part.ns, part.p, [(token.run, token.spec)])
    part.raw.zadd(part.keys.unserved(part.p), {member: 0})

    # Its token is out.
    assert await rouse_runs(part.ns, part.p, [member]) == ["gone"]
    (again,) = await part.claim()
    await part.commit(retrying(again, after_ms=60_000))
    waiting = part.run(token.run)["open"]
    part.raw.zadd(part.keys.unserved(part.p), {member: 0})
    # It waits for its next attempt.
    assert await rouse_runs(part.ns, part.p, [member]) == ["gone"]

    assert part.run(token.run)["open"] == waiting and unserved(part) == []


async def test_a_run_that_is_gone_or_broken_is_forgotten(part: Partition) -> None:
    token = await resting(part)
    (member,) = unserved(part)
    key = part.keys.run(part.p, token.run)
    part.raw.delete(key)
    part.raw.set(key, "broken")

    assert await rouse_runs(part.ns, part.p, [member]) == ["gone"]

    part.raw.delete(key, part.keys.timers(part.p))
    assert unserved(part) == []


async def test_the_index_is_read_by_what_is_needed(part: Partition) -> None:
    key = part.keys.unserved(part.p)
    members = ["a x - 2 r1", "a x - 2 r2", "a x -1 2 r3", "a x 1 2 r4", "ab x - 2 r5"]
    part.raw.zadd(key, dict.fromkeys(members, 0))

    needs, found = "", []
    while needs := await read_needs(part.ns, part.p, needs):
        found.append(needs)

    assert found == ["a x -", "a x -1", "a x 1", "ab x -"]
    assert await read_unserved(part.ns, part.p, "a x -", limit=9) == members[:2]
    assert await read_unserved(part.ns, part.p, "", after=members[2], limit=9) == members[3:]
    # There are no such runs.
    assert await drop_unserved(part.ns, part.p, members) == members and not part.raw.exists(key)


async def test_another_epoch_refuses(part: Partition, refuses_other_epochs) -> None:
    await resting(part)
    members = unserved(part)
    await refuses_other_epochs(lambda: rouse_runs(part.ns, part.p, members))  # stale_epoch, epoch_missing
    assert unserved(part) == members
