"""end_run: ends an open run from outside, wherever it stands; what is finished stays as it is."""

import pytest
from partition import ERROR, completed, moment, retrying

from weft.core.model import SPEC_ENCODER, RunSpec
from weft.errors import NotFound
from weft.ids import new_run_id
from weft.store.blobs import digest_of, stage_blob
from weft.store.inbox import parse_news
from weft.store.runs import NewRun, RunRow, end_run, start_runs, watch_runs


def row_of(part, run: str, spec: RunSpec | None = None) -> RunRow:
    """The run as a caller would have read it."""
    fields = {k.decode(): v for k, v in part.raw.hgetall(part.keys.run(part.p, run)).items()}
    return RunRow(run, spec or RunSpec("job"), fields or {"open": b"1:0-0"})


async def cancel(part, run: str, spec: RunSpec | None = None) -> tuple[str, bool]:
    spec = spec or RunSpec("job")
    row = row_of(part, run, spec)
    return await end_run(part.ns, part.p, row, kind="cancelled", value=ERROR, keep_ms=spec.keep_ms, by="c-1")


async def meet_deadline(part, run: str) -> tuple[str, bool]:
    spec = RunSpec("job")
    row = row_of(part, run, spec)
    return await end_run(
        part.ns, part.p, row, kind="failed", value=ERROR, keep_ms=spec.keep_ms, by="s-1", deadline=True
    )


async def test_a_queued_run_is_taken_out_of_its_stream(part):
    (run,) = await part.start(keep_ms=30_000)
    open_before = part.run(run)["open"]

    assert await cancel(part, run, RunSpec("job", keep_ms=30_000)) == ("cancelled", True)

    ended = part.run(run)
    last = part.events(run)[-1]
    assert (ended["status"], ended["error"], ended["open"]) == ("cancelled", ERROR, f"={open_before}")
    assert (ended["seq"], ended["ended"]) == ("2", moment(last))
    assert 29_000 < part.ttl(run) <= 30_000
    assert part.stream() == []
    assert (last.seq, last.type, last.by, last.payload) == (2, "cancelled", "c-1", ERROR)
    # And whoever claims gets nothing.
    assert await part.claim() == []


async def test_a_running_step_is_told_and_can_no_longer_commit(part):
    token = await part.claimed("s-9")
    with part.raw.pubsub() as listener:
        # Sessions listen on one channel, whatever partition their step is in.
        listener.subscribe(part.keys.inbox(0, "s-9"))
        listener.get_message(timeout=5)

        assert await cancel(part, token.run) == ("cancelled", True)

        message = listener.get_message(timeout=5)
    assert message is not None, "the session was not told"
    assert message["data"].decode() == f"end {token.run} cancelled"
    assert part.stream() == part.pending() == []
    assert await part.commit(completed(token), session="s-9") == ["done"]
    assert part.run(token.run)["status"] == "cancelled"


async def test_a_delayed_run_loses_its_timer(part):
    (run,) = await part.start(delay_ms=60_000)

    assert await cancel(part, run) == ("cancelled", True)

    assert part.timers() == {}
    assert part.stream() == []


async def test_a_run_that_waits_for_its_retry_loses_its_timer(part):
    token = await part.claimed(deadline_ms=60_000)
    await part.commit(retrying(token, after_ms=60_000))
    assert len(part.timers()) == 2

    assert await cancel(part, token.run) == ("cancelled", True)

    assert part.timers() == {}
    assert [event.seq for event in part.events(token.run)] == [1, 2, 3]


async def test_the_event_tells_who_had_it_and_how_often_a_workflow_was_given_out(part, ns, p):
    token = await part.claimed()
    await cancel(part, token.run)
    last = part.events(token.run)[-1]
    assert last.facts == {"session": part.run(token.run)["by"]}

    for times, told in ((1, {}), (7, {"delivery": "7"})):
        spec, run = RunSpec("flow", flow="w"), new_run_id(p)
        await start_runs(ns, p, [NewRun(run, spec, SPEC_ENCODER.encode(spec))], by="c-1")
        part.raw.hset(part.keys.run(p, run), "open", f"{times}:?flow")
        await cancel(part, run, spec)
        assert part.events(run)[-1].facts == told


async def test_a_finished_run_stays_as_it_is(part):
    token = await part.claimed()
    await part.commit(completed(token))
    before = part.snapshot()

    assert await cancel(part, token.run) == ("completed", False)

    assert part.snapshot() == before


async def test_cancelling_twice_answers_the_same_and_changes_nothing(part):
    (run,) = await part.start()
    await cancel(part, run)
    before = part.snapshot()

    assert await cancel(part, run) == ("cancelled", False)

    assert part.snapshot() == before


async def test_an_unknown_run_is_not_found_and_its_timers_are_dropped(part, p):
    run = f"r{p}-0000000000000000000000"
    part.raw.zadd(part.keys.timers(p), {f"open:{run}": 1, f"deadline:{run}": 1})

    with pytest.raises(NotFound, match=run):
        await cancel(part, run)

    assert part.timers() == {}


@pytest.mark.leaves("open runs")
async def test_a_deadline_that_is_not_due_ends_nothing(part):
    (run,) = await part.start(deadline_ms=60_000)
    await part.advance(50_000)
    before = part.snapshot()

    assert await meet_deadline(part, run) == ("queued", False)

    assert part.snapshot() == before


@pytest.mark.leaves("open runs")
async def test_a_run_without_a_deadline_cannot_miss_one(part):
    (run,) = await part.start()

    assert await meet_deadline(part, run) == ("queued", False)


async def test_a_deadline_that_is_due_fails_the_run(part):
    (run,) = await part.start(deadline_ms=60_000)
    await part.advance(60_001)

    assert await meet_deadline(part, run) == ("failed", True)

    assert part.run(run)["status"] == "failed"
    assert part.timers() == {}
    assert [event.type for event in part.events(run)] == ["queued", "failed"]


async def test_a_deadline_of_a_finished_run_is_dropped(part, p):
    token = await part.claimed()
    await part.commit(completed(token))
    part.raw.zadd(part.keys.timers(p), {f"deadline:{token.run}": 1})

    assert await meet_deadline(part, token.run) == ("completed", False)

    assert part.timers() == {}


async def test_the_input_goes_with_the_run(part, ns, p):
    spec, run = RunSpec("job", blob=digest_of(b"in"), keep_ms=30_000), new_run_id(p)
    await stage_blob(ns, p, run, b"in")
    await start_runs(ns, p, [NewRun(run, spec, SPEC_ENCODER.encode(spec))], by="c-1")

    await cancel(part, run, spec)

    assert 29_000 < part.raw.pttl(part.keys.blob(p, run, spec.blob)) <= 30_000


async def test_watchers_are_told(part, ns, p):
    (run,) = await part.start()
    await watch_runs(ns, p, [run], "t:inbox")
    with part.raw.pubsub() as listener:
        listener.subscribe("t:inbox")
        listener.get_message(timeout=5)

        await cancel(part, run)

        assert list(parse_news(listener.get_message(timeout=5)["data"])) == [(run, "cancelled", ERROR)]


@pytest.mark.leaves("open runs")
async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    (run,) = await part.start()
    await refuses_other_epochs(lambda: cancel(part, run))
