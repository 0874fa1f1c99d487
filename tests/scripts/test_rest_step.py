"""rest_step.lua: a claimed step that nobody can do is handed back, and rests."""

from __future__ import annotations

import pytest
from partition import Partition

from weft.core.model import Limit, Token
from weft.store.unserved import REST_MS, rest_step

pytestmark = pytest.mark.leaves("open runs", "pending")


async def rest(part: Partition, token: Token) -> str:
    return await rest_step(part.ns, token, needs="default job -", reason="unknown task", started_ms=7, by="s-1")


def unserved(part: Partition) -> list[str]:
    return [member.decode() for member in part.raw.zrange(part.keys.unserved(part.p), 0, -1)]


async def test_it_has_a_timer_and_a_place_in_the_index_and_its_history_tells_of_it(part: Partition) -> None:
    token = await part.claimed()

    assert await rest(part, token) == "rests"

    assert part.stream() == [] and part.pending() == []
    (due,) = part.timers().values()
    run = part.run(token.run)
    assert (run["open"], run["seq"], "status" in run) == (f"2:@{due}", "2", False)
    assert unserved(part) == [f"default job - 2 {token.run}"]
    last = part.events(token.run)[-1]
    assert (last.type, last.by) == ("returned", "s-1")
    assert last.facts == {"attempt": "1", "started": "7", "after_ms": "0"}
    assert due - last.at_ms == REST_MS


async def test_a_repeated_call_and_a_token_that_was_taken_away_change_nothing(part: Partition) -> None:
    token = await part.claimed()
    assert await rest(part, token) == "rests"
    before = part.run(token.run)

    assert await rest(part, token) == "stale"

    assert part.run(token.run) == before and len(part.events(token.run)) == 2


async def test_slots_are_given_back(part: Partition) -> None:
    token = await part.claimed(limits=[Limit("task|job", 1)])
    assert part.raw.zcard(part.keys.gate(part.p, "task|job")) == 1

    assert await rest(part, token) == "rests"

    assert part.raw.zcard(part.keys.gate(part.p, "task|job")) == 0
    assert "gates" not in part.run(token.run)


@pytest.mark.parametrize("begun", [False, True])
async def test_a_workflow_run_that_has_begun_keeps_the_slot_of_its_kind(part: Partition, begun: bool) -> None:
    token = await part.claimed(flow="w", limits=[Limit("queue|default", 1), Limit("task|job", 1)])
    if begun:
        part.raw.hset(part.keys.run(part.p, token.run), "turn", "1.1")

    assert await rest(part, token) == "rests"

    assert part.raw.zcard(part.keys.gate(part.p, "queue|default")) == 0
    assert part.raw.zcard(part.keys.gate(part.p, "task|job")) == begun
    assert part.run(token.run).get("gates", "") == ("task|job" if begun else "")


async def test_another_epoch_refuses(part: Partition, refuses_other_epochs) -> None:
    token = await part.claimed()
    await refuses_other_epochs(lambda: rest(part, token))  # stale_epoch, epoch_missing
    assert unserved(part) == []
