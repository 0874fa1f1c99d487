"""publish_status: one observation, kept once: list, hash, feed, log, its event id and its parent's children."""

import pytest

from weft.core.status import MARK, check_seen, content_of, digest_of, event_digest
from weft.errors import ArchiveBehind
from weft.store.archived import set_behind
from weft.store.status import Bounds, publish_status

BOUNDS = Bounds(keep_ms=60_000, seen_ms=5_000, history=3, feed=1_000)


@pytest.fixture
def publish(part):
    async def call(status="running", meta=None, event=None, parent=None, task="t 1", near=True, bounds=BOUNDS):
        seen = check_seen(task, status, meta, event, parent, "tests")
        return await publish_status(part.ns, part.p, seen, bounds, by="c-test", near=near)

    return call


def kept(part, task="t 1"):
    return part.raw.lrange(part.keys.status_history(part.p, digest_of(task)), 0, -1)


async def test_an_observation_stands_everywhere_it_is_read_from_with_an_expiry(part, publish):
    answer = await publish("running", {"a": 1}, event="e1", parent="above")

    keys, p, digest = part.keys, part.p, digest_of("t 1")
    seen = check_seen("t 1", "running", {"a": 1}, "e1", "above", "tests")
    head = f"{answer.entry} {answer.at_ms} {content_of(seen)}".encode()
    assert (answer.word, answer.parent) == ("published", "above")
    assert [item.startswith(head + b" ") for item in kept(part)] == [True]
    assert part.raw.hgetall(keys.status(p, digest)) == {
        b"task": b"t 1",
        b"n": b"1",
        b"parent": b"above",
        b"born": str(answer.at_ms).encode(),
    }
    assert part.raw.get(keys.status_event(p, event_digest(seen))) == head
    assert part.raw.zrange(keys.status_children(p, digest_of("above")), 0, -1) == [b"t 1"]
    ((entry, fields),) = part.raw.xrange(keys.status_feed(p))
    assert (entry.decode(), fields[b"o"]) == (answer.entry, kept(part)[0])
    (event,) = part.events()
    assert (event.run, event.type, event.facts["parent"]) == (MARK + digest, "observed", digest_of("above"))
    for key in (keys.status(p, digest), keys.status_history(p, digest), keys.status_children(p, digest_of("above"))):
        assert 0 < part.raw.pttl(key) <= 60_000
    assert 0 < part.raw.pttl(keys.status_event(p, event_digest(seen))) <= 5_000


async def test_the_same_event_counts_once_also_after_others(part, publish):
    first = await publish("running", event="e1")
    await publish("done", event="e2")
    before = part.snapshot()
    again = await publish("running", event="e1")

    assert (again.word, again.entry, again.at_ms) == ("known", first.entry, first.at_ms)
    assert part.snapshot() == before


async def test_the_same_event_with_another_content_is_told_and_changes_nothing(part, publish):
    first = await publish("running", event="e1")
    before = part.snapshot()

    for other in (await publish("done", event="e1"), await publish("running", {"a": 1}, event="e1")):
        assert (other.word, other.entry) == ("other_event", first.entry)
    assert part.snapshot() == before


async def test_without_an_event_what_was_said_last_counts_once_and_keeps_the_task(part, publish):
    await publish("running", {"a": 1, "b": 2})
    key = part.keys.status(part.p, digest_of("t 1"))
    part.raw.pexpire(key, 1_000)

    assert (await publish("running", {"b": 2, "a": 1})).word == "known"
    assert part.raw.pttl(key) > 1_000
    assert (await publish("waiting")).word == "published"
    assert (await publish("running", {"a": 1, "b": 2})).word == "published", "a task may come back to a status"
    assert len(kept(part)) == 3


async def test_events_of_two_tasks_have_nothing_to_do_with_each_other(publish):
    assert (await publish(event="e1")).word == (await publish(event="e1", task="t 2")).word == "published"
    assert (await publish(event="1e", task="t")).word == (await publish(event="e", task="t1")).word == "published"


async def test_the_history_is_bounded_and_the_newest_stand_first(part, publish):
    answers = [await publish(f"s{n}") for n in range(5)]
    assert [item.split(b" ")[0].decode() for item in kept(part)] == [a.entry for a in answers[:1:-1]]


async def test_the_feed_is_bounded(part, publish):
    for n in range(400):
        await publish(f"s{n}", bounds=Bounds(60_000, 5_000, 3, 50))
    assert 50 <= part.raw.xlen(part.keys.status_feed(part.p)) < 300


async def test_a_task_keeps_its_parent(part, publish):
    await publish("running", parent="above")
    before = part.snapshot()
    other = await publish("done", parent="elsewhere")
    assert (other.word, other.parent) == ("other_parent", "above") and part.snapshot() == before
    assert (await publish("done")).parent == "above"


async def test_a_feed_that_is_ahead_of_the_log_goes_on_by_its_own_numbers(part, publish):
    part.raw.xadd(part.keys.status_feed(part.p), {"o": "0-1 1 d x"}, id="9999999999999-0")
    assert (await publish()).word == "published"
    assert [entry for entry, _ in part.raw.xrange(part.keys.status_feed(part.p))][1] == b"9999999999999-1"
    part.raw.delete(part.keys.status_feed(part.p))


async def test_nothing_is_taken_while_the_archive_is_too_far_behind(part, publish):
    await set_behind(part.ns, part.p, "an hour behind")
    before = part.snapshot()
    with pytest.raises(ArchiveBehind) as refused:
        await publish()
    assert refused.value.code == "archive_behind" and part.snapshot() == before
    await set_behind(part.ns, part.p, "")


async def test_it_refuses_other_epochs(publish, refuses_other_epochs):
    await publish()
    await refuses_other_epochs(lambda: publish("done"))
