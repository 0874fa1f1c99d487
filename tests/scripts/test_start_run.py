"""start_run: the short way of start_runs leaves what the long one leaves, for one run that asks for nothing special."""

import pytest
from partition import Partition

from weft.core.fold import split_entry
from weft.core.model import SPEC_ENCODER, RunSpec
from weft.errors import ArchiveBehind, StaleControls
from weft.ids import new_run_id
from weft.store.archived import set_behind
from weft.store.controls import set_control
from weft.store.runs import NewRun, start_args, start_call, start_runs

pytestmark = pytest.mark.leaves("open runs")


def new(p: int, **options) -> NewRun:
    spec = RunSpec("job", **options)
    return NewRun(new_run_id(p), spec, SPEC_ENCODER.encode(spec))


async def start_wide(part: Partition, run: NewRun, watch: str) -> list[str]:
    """Starts a run the long way."""
    keys, items = start_call(part.ns, part.p, [run])
    reply = await part.ns.call("start_runs", part.p, keys, start_args(part.ns, part.p, "c-1", watch), items)
    return [word.decode() for word in reply]


def left_by(part: Partition, run: NewRun):
    """Returns what there is of a run, without what tells time or names it."""
    fields = {name: value for name, value in part.run(run.id).items() if name not in ("open", "born")}
    events = [(event.seq, event.type, event.by, event.facts, event.payload) for event in part.events(run.id)]
    tokens = [fields for _, fields in part.raw.xrange(part.keys.tasks(part.p, run.spec.queue, run.spec.priority))]
    return fields, events, [token[b"s"] for token in tokens if token[b"r"].decode() == run.id]


@pytest.mark.parametrize("watch", ["", "there"])
@pytest.mark.parametrize("options", [{}, {"queue": "other", "priority": 7}, {"input": b"x" * 600}])
async def test_both_ways_leave_the_same(part: Partition, ns, p, options, watch):
    one, other = new(p, **options), new(p, **options)

    assert await start_runs(ns, p, [one], by="c-1", watch=watch) == ["started"]
    pebbles, queues = part.pebbles(one.spec.queue), part.raw.smembers(part.keys.queues(p))
    assert await start_wide(part, other, watch) == ["started"]

    assert left_by(part, one) == left_by(part, other)
    assert (pebbles, queues) == (1, {one.spec.queue.encode()})
    assert part.pebbles(one.spec.queue) == 1


async def test_a_repeated_call_changes_nothing(part: Partition, ns, p):
    run = new(p)
    assert await start_runs(ns, p, [run], by="c-1") == ["started"]
    before = part.snapshot()

    assert await start_runs(ns, p, [run], by="c-1") == ["exists"]

    assert part.snapshot() == before


async def test_nothing_is_accepted_while_the_archive_is_behind(part: Partition, ns, p):
    await set_behind(ns, p, "an hour behind")  # archive_behind
    before = part.snapshot()

    with pytest.raises(ArchiveBehind, match="an hour behind"):
        await start_runs(ns, p, [new(p)], by="c-1")

    assert part.snapshot() == before
    await set_behind(ns, p, "")


async def test_controls_that_the_caller_does_not_know_are_stale_controls(part: Partition, ns, p):
    await set_control(ns, p, "pause:queue|mail", {}, gates=[], queues=[])
    before = part.snapshot()

    with pytest.raises(StaleControls):
        await start_runs(ns, p, [new(p)], by="c-1")

    assert part.snapshot() == before


async def test_it_refuses_other_epochs(ns, p, refuses_other_epochs):
    await refuses_other_epochs(lambda: start_runs(ns, p, [new(p)], by="c-1"))  # stale_epoch, epoch_missing


async def test_the_log_tells_when_by_the_id_of_the_entry_unless_the_clock_was_moved(part: Partition, ns, p):
    first, second = new(p), new(p)
    assert await start_runs(ns, p, [first], by="c-1") == ["started"]
    await part.advance(60_000)
    assert await start_runs(ns, p, [second], by="c-1") == ["started"]

    (early,), (late,) = part.events(first.id), part.events(second.id)
    assert early.at_ms == int(early.entry.partition("-")[0])
    assert late.at_ms == int(late.entry.partition("-")[0]) + 60_000
    assert split_entry(early.entry.encode(), [b"at", b"", b"by", b"c-1"]) == ([], [])


async def test_a_queue_is_named_with_the_first_token_of_each_priority(part: Partition, ns, p):
    for priority in (5, 9, 9):
        part.raw.delete(part.keys.queues(p))
        assert await start_runs(ns, p, [new(p, queue="mail", priority=priority)], by="c-1") == ["started"]
    assert part.raw.smembers(part.keys.queues(p)) == set()
    assert part.raw.hget(part.keys.epoch(p), "levels") == b"9 5"
    part.raw.sadd(part.keys.queues(p), "mail")
