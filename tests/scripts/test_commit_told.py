"""commit_told: the short way of commit_flows leaves what the long one leaves, and leaves alone what it does not know."""

import dataclasses

import pytest
from flow_runs import begun, call, commit, entry, journal, mail, replies, turn
from partition import Partition

from weft.errors import StaleControls
from weft.store.flows import _commit_wide
from weft.store.told import commit_told, is_told

pytestmark = pytest.mark.leaves("open runs", "pending", "repair", "broken keys")

STEP = "step_completed|step=charge,attempt=1"


def told(token, id="1.2", expect=1, **facts):
    return turn(token, id, expect=expect, added=[entry("completed", "charge", payload=b"paid", event=STEP, **facts)])


async def short(part, *turns):
    return await commit_told(part.ns, part.p, turns, session="s-1")


def left_by(part, run):
    """Returns what there is of a run, without what tells time."""
    fields = {name: value for name, value in part.run(run).items() if name not in ("open", "more", "born")}
    events = [(event.seq, event.type, event.facts, event.payload) for event in part.events(run)]
    return fields, journal(part, run), events


async def test_both_ways_leave_the_same(part: Partition):
    one, other = await begun(part), await begun(part)
    await mail(part, one)
    await mail(part, other)

    ((word, now, waiting),) = await short(part, told(one))
    ((*wide,),) = await _commit_wide(part.ns, part.p, [told(other)], session="s-1")

    assert (word, waiting) == (b"ok", b"1") == (wide[0], wide[2])
    assert part.raw.lindex(part.keys.journal(part.p, one.run), 1).startswith(now)
    assert left_by(part, one.run) == left_by(part, other.run)
    assert len(part.pending()) == 2


async def test_what_it_does_not_know_is_left_alone_and_goes_the_long_way(part: Partition):
    token = await begun(part)
    key = part.keys.run(part.p, token.run)
    for field, value in (("open", "2:9-9"), ("open", "=1:*"), ("turn", "1.2"), ("crashes", "1"), ("lived", "1")):
        known = part.raw.hget(key, field)
        part.raw.hset(key, field, value)
        before = part.snapshot()
        assert await short(part, told(token)) == [None], (field, value)
        assert part.snapshot() == before
        part.raw.hset(key, field, known) if known else part.raw.hdel(key, field)
    part.raw.hset(key, "crashes", "1")

    assert await commit(part, told(token)) == ["ok"]
    assert "crashes" not in part.run(token.run)
    assert await commit(part, told(token)) == ["done"]
    assert await commit(part, told(token, "1.3", 7)) == ["behind"]
    assert journal(part, token.run) == ["begin - 1|", "completed charge|paid"]


async def test_a_journal_that_is_gone_is_not_begun_anew(part: Partition):
    token = await begun(part)
    part.raw.delete(part.keys.journal(part.p, token.run))
    before = part.snapshot()

    assert await short(part, told(token)) == [None]
    assert part.snapshot() == before
    assert await commit(part, told(token)) == ["behind"]


async def test_a_run_is_told_one_thing_in_a_call(part: Partition):
    token = await begun(part)

    assert await commit(part, told(token), told(token, "1.3", 2)) == ["ok", "ok"]

    assert part.run(token.run)["seq"] == "3"
    assert [event.seq for event in part.events(token.run)] == [1, 2, 3]


@pytest.mark.parametrize("family", ["run", "journal", "mail"])
async def test_a_key_of_the_wrong_type_costs_its_run_alone(part: Partition, family):
    broken, fine = await begun(part), await begun(part)
    key = getattr(part.keys, family)(part.p, broken.run)
    part.raw.delete(key)
    part.raw.set(key, "x")

    assert await commit(part, told(broken), told(fine)) == ["broken", "ok"]

    assert part.raw.zrange(part.keys.repair(part.p), 0, -1) == [broken.run.encode()]
    assert journal(part, fine.run)[1:] == ["completed charge|paid"]
    part.raw.delete(key)


async def test_who_watches_every_event_is_told(part: Partition):
    token = await begun(part)
    part.raw.hset(part.keys.run(part.p, token.run), "watch", "~chan other")
    listener = part.raw.pubsub()
    listener.subscribe("chan")
    assert listener.get_message(timeout=5)["type"] == "subscribe"

    await short(part, told(token))

    assert listener.get_message(timeout=5)["data"] == f"{token.run} step_completed 4\npaid".encode()
    listener.close()


async def test_what_asks_for_more_does_not_come_here(part: Partition):
    token = await begun(part)
    plain = told(token)

    assert is_told(plain)
    for change in (
        {"take": 1}, {"state": b"s"}, {"lines": b"1|"}, {"told": "stalled"}, {"drops": []}, {"kind": "park"}, {"expect": 0},
        {"added": []}, {"added": plain.added * 2},
    ):  # fmt: skip
        assert not is_told(dataclasses.replace(plain, **change)), change
    for facts in ({"blob": "x"}, {"call": call()}, {"child": "r0-x"}, {"answer": b"+"}):
        assert not is_told(told(token, **facts)), facts


async def test_others_in_the_same_commit_go_their_way(part: Partition):
    one, other = await begun(part), await begun(part)

    words = await commit(part, turn(other, "1.2", kind="completed", expect=1, ms=60_000, value=b"v"), told(one))

    assert words == ["ok", "ok"]
    assert part.run(other.run)["status"] == "completed"
    assert journal(part, one.run)[1:] == ["completed charge|paid"]


async def test_it_minds_the_epoch_and_the_controls(part: Partition, refuses_other_epochs):
    token = await begun(part)

    await refuses_other_epochs(lambda: replies(part, told(token)))  # stale_epoch, epoch_missing
    part.raw.hset(part.keys.epoch(part.p), "controls", "7")
    with pytest.raises(StaleControls):  # stale_controls
        await short(part, told(token))
    part.raw.hdel(part.keys.epoch(part.p), "controls")
