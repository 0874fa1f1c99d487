"""start_runs: accepts runs, each once; a repeated call changes nothing."""

import pytest
from partition import Partition, completed, moment

from weft.core.model import SPEC_DECODER, SPEC_ENCODER, RunSpec
from weft.errors import ArchiveBehind, NotExecuted, StaleControls
from weft.ids import new_run_id, new_run_ids
from weft.store.archived import set_behind
from weft.store.blobs import digest_of, stage_blob
from weft.store.connection import Server
from weft.store.controls import set_control
from weft.store.namespace import Namespace
from weft.store.runs import NewRun, start_runs

pytestmark = pytest.mark.leaves("open runs")


def new(p: int, spec: RunSpec, **facts) -> NewRun:
    return NewRun(new_run_id(p), spec, SPEC_ENCODER.encode(spec), **facts)


async def test_a_run_gets_its_hash_its_first_event_and_a_token(part, ns, p):
    # Given a run that asks for a queue and a priority.
    run = new(p, RunSpec("job", input=b"\x80", queue="other", priority=7))

    # When it is started.
    words = await start_runs(ns, p, [run], by="c-1")

    # Then its hash holds what was asked for and which token is out, and nothing else.
    assert words == ["started"]
    ((entry, token),) = part.stream("other", 7)
    assert token == {"r": run.id, "n": "1:1"}
    (event,) = part.events()
    assert part.run(run.id) == {"spec": run.packed, "open": f"1:{entry}", "born": moment(event)}
    assert part.ttl(run.id) == -1
    # And the log tells of it, the queue is known and a worker is woken.
    assert (event.run, event.seq, event.type, event.by, event.payload) == (run.id, 1, "queued", "c-1", run.packed)
    assert part.raw.smembers(part.keys.queues(p)) == {b"other"}
    assert part.pebbles("other") == 1
    assert part.timer_pebbles() == 0


async def test_a_small_spec_rides_with_its_token_and_a_large_one_does_not(part, ns, p):
    small, large = new(p, RunSpec("job")), new(p, RunSpec("job", input=b"x" * 513))

    await start_runs(ns, p, [small, large], by="c-1")

    specs = [fields[b"s"] for _, fields in part.raw.xrange(part.keys.tasks(p, "default", 5))]
    assert specs == [small.packed, b""]


async def test_starting_twice_answers_exists_and_changes_nothing(part, ns, p):
    run = new(p, RunSpec("job", delay_ms=1000))
    assert await start_runs(ns, p, [run], by="c-1") == ["started"]
    before = part.snapshot()

    assert await start_runs(ns, p, [run], by="c-1") == ["exists"]

    assert part.snapshot() == before


async def test_of_some_that_are_there_already_only_the_others_are_started(part, ns, p):
    # That none of a call is there is asked at once; as soon as one is, each is asked for.
    first, second, third = (new(p, RunSpec("job")) for _ in range(3))
    await start_runs(ns, p, [second], by="c-1")

    assert await start_runs(ns, p, [first, second, third], by="c-1") == ["started", "exists", "started"]

    assert [fields["r"] for _, fields in part.stream()] == [second.id, first.id, third.id]


async def test_a_hundred_runs_are_looked_for_by_one_call(part, ns, p):
    await start_runs(ns, p, [new(p, RunSpec("job")) for _ in range(2)], by="c-1")
    before = part.raw.info("commandstats")["cmdstat_exists"]["calls"]

    await start_runs(ns, p, [new(p, RunSpec("job")) for _ in range(100)], by="c-1")

    assert part.raw.info("commandstats")["cmdstat_exists"]["calls"] == before + 1


async def test_one_call_packs_its_events_in_one_log_entry_and_drops_one_pebble(part, ns, p):
    spec = RunSpec("job")
    runs = [NewRun(id, spec, SPEC_ENCODER.encode(spec)) for id in new_run_ids(p, 256)]

    assert await start_runs(ns, p, runs, by="c-1") == ["started"] * 256

    assert part.raw.xlen(part.keys.log(p)) == 1
    assert [event.run for event in part.events()] == [run.id for run in runs]
    assert [fields["r"] for _, fields in part.stream()] == [run.id for run in runs]
    assert part.pebbles() == 1


async def test_a_delayed_run_gets_a_timer_instead_of_a_token(part, ns, p):
    run = new(p, RunSpec("job", delay_ms=60_000))

    await start_runs(ns, p, [run], by="c-1")

    (event,) = part.events()
    due = event.at_ms + 60_000
    assert part.run(run.id)["open"] == f"1:@{due}"
    assert part.timers() == {f"open:{run.id}": due}
    assert part.stream() == []
    assert (part.pebbles(), part.timer_pebbles()) == (0, 1)
    # The queue is announced when its first token is: nothing can be claimed from it yet.
    assert part.raw.smembers(part.keys.queues(p)) == set()


async def test_a_deadline_is_a_timer_next_to_the_token(part, ns, p):
    run = new(p, RunSpec("job", deadline_ms=5_000))

    await start_runs(ns, p, [run], by="c-1")

    (event,) = part.events()
    assert part.timers() == {f"deadline:{run.id}": event.at_ms + 5_000}
    assert part.run(run.id)["deadline"] == str(event.at_ms + 5_000)
    assert len(part.stream()) == 1
    assert (part.pebbles(), part.timer_pebbles()) == (1, 1)


async def test_the_test_clock_moves_what_is_written(part, ns, p):
    await part.advance(3_600_000)
    run = new(p, RunSpec("job", delay_ms=1))

    await start_runs(ns, p, [run], by="c-1")

    (event,) = part.events()
    real_ms = int(event.entry.partition("-")[0])
    assert 3_590_000 < event.at_ms - real_ms < 3_610_000
    assert part.timers() == {f"open:{run.id}": event.at_ms + 1}


async def test_an_uploaded_input_is_kept_from_the_start_on(part, ns, p):
    spec = RunSpec("job", blob=digest_of(b"big"))
    run = new(p, spec)
    await stage_blob(ns, p, run.id, b"big")
    blob = part.keys.blob(p, run.id, spec.blob)
    assert part.raw.pttl(blob) > 0

    assert await start_runs(ns, p, [run], by="c-1") == ["started"]

    assert part.raw.pttl(blob) == -1


async def test_a_run_whose_input_is_gone_is_refused_and_its_neighbours_start(part, ns, p):
    lost, fine = new(p, RunSpec("job", blob="0" * 64)), new(p, RunSpec("job"))

    assert await start_runs(ns, p, [lost, fine], by="c-1") == ["blob_gone", "started"]

    assert part.run(lost.id) == {}
    assert [event.run for event in part.events()] == [fine.id]
    assert [fields["r"] for _, fields in part.stream()] == [fine.id]


async def test_a_refused_input_does_not_use_up_the_idempotency_key(part, ns, p):
    spec = RunSpec("job", blob="0" * 64)
    run = new(p, spec, key_digest="k", payload_digest="d", window_ms=1000)

    assert await start_runs(ns, p, [run], by="c-1") == ["blob_gone"]

    assert not part.raw.exists(part.keys.idempotency(p, "k"))


async def test_the_same_key_and_payload_join_the_first_run_and_another_payload_conflicts(part, ns, p):
    # Given a run that was started with a key.
    first = new(p, RunSpec("job"), key_digest="k", payload_digest="d", window_ms=60_000)
    await start_runs(ns, p, [first], by="c-1")
    record = part.keys.idempotency(p, "k")
    assert part.raw.get(record) == f"{first.id} d".encode()
    assert 0 < part.raw.pttl(record) <= 60_000

    # When others come with it, in one call.
    same = new(p, RunSpec("job"), key_digest="k", payload_digest="d", window_ms=60_000)
    other = new(p, RunSpec("job"), key_digest="k", payload_digest="e", window_ms=60_000)
    words = await start_runs(ns, p, [same, other, first], by="c-1")

    # Then they are told of the first, and only that one exists.
    assert words == [f"joined {first.id}", f"conflict {first.id}", "exists"]
    assert len(part.stream()) == len(part.events()) == 1
    assert part.run(same.id) == part.run(other.id) == {}


async def test_two_items_of_one_call_with_the_same_key_are_one_run(part, ns, p):
    facts = {"key_digest": "k", "payload_digest": "d", "window_ms": 1000}
    first, second = new(p, RunSpec("job"), **facts), new(p, RunSpec("job"), **facts)

    assert await start_runs(ns, p, [first, second], by="c-1") == ["started", f"joined {first.id}"]


async def test_payloads_are_opaque(part, ns, p):
    payload = bytes(range(256)) + b"|,=\r\n:{}"
    run = new(p, RunSpec("job", input=payload))

    await start_runs(ns, p, [run], by="c-1")

    (event,) = part.events()
    assert SPEC_DECODER.decode(event.payload).input == payload
    assert SPEC_DECODER.decode(part.run(run.id)["spec"]).input == payload


async def test_it_refuses_other_epochs(ns, p, refuses_other_epochs):
    run = new(p, RunSpec("job"))
    await refuses_other_epochs(lambda: start_runs(ns, p, [run], by="c-1"))


async def test_a_full_server_takes_no_new_runs_but_lets_the_old_ones_finish(launch):
    # Given a server whose memory is full while one run is out.
    full = launch(config={"appendonly": "no"})
    ns = Namespace(Server(full.url), "full", partitions=1)
    await ns.open()
    with full.client() as raw:
        part = Partition(ns, 0, raw)
        await part.start()
        raw.config_set("maxmemory", 1)

        # When another is started, it is refused as a whole.
        before = part.snapshot()
        with pytest.raises(NotExecuted, match="maxmemory is reached"):
            await start_runs(ns, 0, [new(0, RunSpec("job"))], by="c-1")
        assert part.snapshot() == before

        # Then the old one can still be claimed and committed.
        (token,) = await part.claim()
        assert await part.commit(completed(token)) == ["ok"]
    await ns.close()


async def test_a_caller_that_does_not_know_what_operators_set_is_refused_and_nothing_changes(part):
    spec = RunSpec("job")
    await set_control(part.ns, part.p, "pause:queue|mail", {}, gates=[], queues=[])
    before = part.snapshot()
    with pytest.raises(StaleControls):
        await start_runs(part.ns, part.p, [NewRun(new_run_id(part.p), spec, SPEC_ENCODER.encode(spec))], by="c-1")
    assert part.snapshot() == before


@pytest.mark.leaves("open runs")
async def test_a_channel_given_with_the_start_is_told_of_the_end(part, ns, p):
    run = new(p, RunSpec("job"))

    await start_runs(ns, p, [run], by="c-1", watch="t:inbox:c-1")

    assert part.run(run.id)["watch"] == "t:inbox:c-1"


async def test_a_replay_takes_the_record_of_who_has_ended_and_of_nobody_else(part, ns, p):
    record = part.keys.unique(p, "u")

    def replay(policy: str, ended: str) -> NewRun:
        return new(p, RunSpec("job"), policy=policy, unique="u", unique_ms=60_000, ended=ended)

    # Without a record it makes one; repeated, nothing changes, whoever has it by then.
    first = replay("t", "")
    assert await start_runs(ns, p, [first], by="c-1") == ["started"]
    assert part.raw.get(record) == first.id.encode() and 0 < part.raw.pttl(record) <= 60_000
    part.raw.set(record, "another", px=1_000)
    assert await start_runs(ns, p, [first], by="c-1") == ["exists"]

    # What another run has it takes only when it was told that this one has ended.
    assert await start_runs(ns, p, [replay("t", first.id)], by="c-1") == ["active another"]
    forced = replay("f", first.id)
    assert await start_runs(ns, p, [forced], by="c-1") == ["started"]
    assert part.raw.get(record) == b"another" and part.raw.pttl(record) <= 1_000
    for policy in ("t", "f"):
        part.raw.set(record, "another", px=1_000)
        taker = replay(policy, "another")
        assert await start_runs(ns, p, [taker], by="c-1") == ["started"]
        assert part.raw.get(record) == taker.id.encode() and part.raw.pttl(record) > 1_000
    assert part.stream("default", 5)[0][1]["r"] == first.id and len(part.stream("default", 5)) == 4


async def test_no_run_is_started_while_the_archive_is_too_far_behind(part, ns, p):
    await set_behind(ns, p, "an hour behind")
    before = part.snapshot()

    with pytest.raises(ArchiveBehind, match="an hour behind"):
        await part.start()

    assert part.snapshot() == before
    await set_behind(ns, p, "")
    assert part.raw.hget(part.keys.epoch(p), "behind") is None


async def test_a_run_that_has_ended_does_not_take_its_record_again(part: Partition, p: int):
    again = new(p, RunSpec("job", unique="u"), policy="j", unique="u", unique_ms=60_000)
    assert await start_runs(part.ns, p, [again], by="c-1") == ["started"]
    assert await start_runs(part.ns, p, [again], by="c-1") == ["exists"]
    part.raw.delete(part.keys.unique(p, "u"))  # as its end does

    assert await start_runs(part.ns, p, [again], by="c-1") == ["exists"]

    assert not part.raw.exists(part.keys.unique(p, "u"))


async def test_a_run_alone_is_started_as_one_of_many_is(part, ns, p):
    """One run that asks for nothing goes a short way; what it leaves must be the same."""
    alone, *many = (new(p, RunSpec("job", priority=7)) for _ in range(3))

    assert await start_runs(ns, p, [alone], by="c-1", watch="news") == ["started"]
    assert await start_runs(ns, p, many, by="c-1", watch="news") == ["started"] * 2
    assert await start_runs(ns, p, [alone], by="c-1") == ["exists"]
    assert await start_runs(ns, p, many, by="c-1") == ["exists"] * 2

    def left(run: NewRun) -> list[object]:
        (event,) = part.events(run.id)
        ((entry, token),) = [one for one in part.stream("default", 7) if one[1]["r"] == run.id]
        fields = part.run(run.id) | {"open": part.run(run.id)["open"].replace(entry, "entry"), "born": "then"}
        return [fields, token | {"r": "run"}, (event.seq, event.type, event.by, event.facts, event.payload)]

    assert left(alone) == left(many[0]) == left(many[1])
