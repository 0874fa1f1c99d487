"""commit_step: the short way of commit_steps leaves what the long one leaves, and leaves alone what it does not know."""

import dataclasses

import pytest
from partition import Partition, completed, failed

from weft.core.model import Outcome
from weft.store.inbox import parse_news
from weft.store.runs import read_runs, watch_runs
from weft.store.steps import _commit, commit_steps

pytestmark = pytest.mark.leaves("open runs", "pending")


async def commit_wide(part: Partition, outcome: Outcome) -> bytes:
    """Commits an outcome the long way."""
    keys, args, items = _commit(part.ns, part.p, [outcome], "s-1", ())
    (word,) = await part.ns.call("commit_steps", part.p, keys, args, items)
    return bytes(word)


def calls(part: Partition) -> int:
    """Scripts run so far."""
    return part.raw.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)


def left_by(part: Partition, run: str):
    """Returns what there is of a run, without what tells time."""
    moments = ("open", "born", "ended", "started")
    fields = {name: value for name, value in part.run(run).items() if name not in moments}
    events = [(event.seq, event.type, event.by, sorted(event.facts), event.payload) for event in part.events(run)]
    return fields, part.run(run)["open"][0], events, part.ttl(run) > 0


async def test_both_ways_leave_the_same(part: Partition):
    one, other = await part.claimed(keep_ms=60_000), await part.claimed(keep_ms=60_000)

    before = calls(part)
    assert await part.commit(completed(one)) == ["ok"]
    assert calls(part) == before + 1
    assert await commit_wide(part, completed(other)) == b"ok"

    assert left_by(part, one.run) == left_by(part, other.run)
    assert part.run(one.run)["started"] == str(one.claimed_ms)
    assert part.stream() == part.pending() == []


async def test_whoever_watches_is_told_by_both_ways_alike(part: Partition):
    heard = part.raw.pubsub()
    heard.subscribe("here", "there")
    for _ in range(2):
        heard.get_message(timeout=2)
    told = []
    for wide in (False, True):
        token = await part.claimed()
        await watch_runs(part.ns, part.p, [token.run], "here")
        await watch_runs(part.ns, part.p, [token.run], "there")
        await (commit_wide(part, completed(token)) if wide else part.commit(completed(token)))
        messages = [heard.get_message(timeout=2) for _ in range(2)]
        told.append({(m["channel"], *n[1:]) for m in messages if m for n in parse_news(m["data"])})
        assert {n[0] for m in messages if m for n in parse_news(m["data"])} == {token.run}
    heard.close()
    assert told[0] == told[1]
    assert {channel for channel, *_ in told[0]} == {b"here", b"there"}


@pytest.mark.leaves("open runs", "pending", "broken keys")
@pytest.mark.parametrize(("field", "value"), [("deadline", "9999999999999"), ("open", "2:9-9"), ("open", "=1:*")])
async def test_what_it_does_not_know_is_left_alone_and_goes_the_long_way(part: Partition, field, value):
    token = await part.claimed()
    part.raw.hset(part.keys.run(part.p, token.run), field, value)
    before = calls(part)

    words = await part.commit(completed(token))

    assert calls(part) == before + 2
    assert words == (["ok"] if field == "deadline" else ["stale"])


@pytest.mark.leaves("open runs", "pending", "repair", "broken keys")
async def test_a_broken_run_goes_the_long_way_to_repair(part: Partition):
    token = await part.claimed()
    key = part.keys.run(part.p, token.run)
    part.raw.delete(key)
    part.raw.set(key, "not a hash")

    assert await part.commit(completed(token)) == ["broken"]


async def test_a_repeated_call_and_one_for_a_token_of_nobody_change_nothing(part: Partition):
    token, other = await part.claimed(), await part.claimed()
    assert await part.commit(completed(token)) == ["ok"]
    before = part.snapshot()

    assert await part.commit(completed(token)) == ["done"]
    assert await part.commit(completed(dataclasses.replace(other, entry="9-9"))) == ["stale"]

    assert part.snapshot() == before


async def test_it_refuses_other_epochs(part: Partition, refuses_other_epochs):
    token = await part.claimed()
    await refuses_other_epochs(lambda: part.commit(completed(token)))  # stale_epoch, epoch_missing


@pytest.mark.parametrize("value", [b"", b"\x81 \n\x00 8", b"x" * 32, b"y" * 33], ids=["empty", "odd", "short", "long"])
async def test_both_ways_keep_how_a_run_completed_in_one_field(part: Partition, p, value):
    short, wide, failing = await part.claimed(), await part.claimed(), await part.claimed()
    assert await commit_steps(part.ns, p, [completed(short, value)], session="s-1") == (["ok"], False)
    assert await commit_wide(part, completed(wide, value)) == b"ok"
    assert await commit_wide(part, failed(failing)) == b"ok"

    for token in (short, wide):
        (run,) = await read_runs(part.ns, p, [token.run])
        assert (run.text("status"), run.text("seq"), run.fields["result"]) == ("completed", "2", value)
        key = part.keys.run(p, token.run)
        numbers = f"2 {run.text('ended')} {run.text('started')}".encode()
        # A longer result has a field of its own.
        kept = [numbers, value] if len(value) > 32 else [numbers + b" " + value, None]
        assert part.raw.hmget(key, "closed", "result") == kept
        assert not any(part.raw.hmget(key, "status", "seq", "ended", "started"))
        assert await watch_runs(part.ns, p, [token.run], "c") == [("completed", value)]
    # What failed is read, and changed, by others: each number stands by itself.
    assert all(part.raw.hmget(part.keys.run(p, failing.run), "seq", "ended", "started"))
