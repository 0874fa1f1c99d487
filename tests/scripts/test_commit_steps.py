"""commit_steps: ends attempts exactly once, item by item; what is stale changes nothing."""

import dataclasses

import pytest
from partition import ERROR, RESULT, completed, failed, moment, retrying, returned

from weft.core.model import SPEC_ENCODER, Limit, RunSpec
from weft.ids import new_run_id
from weft.store.blobs import digest_of, stage_blob
from weft.store.controls import set_control
from weft.store.inbox import parse_news
from weft.store.runs import NewRun, read_ledgers, start_runs, watch_runs
from weft.store.steps import Head, commit_steps

# --- the four ends of an attempt ------------------------------------------------------------------


async def test_a_completed_run_keeps_its_result_for_as_long_as_it_promised(part):
    token = await part.claimed(keep_ms=60_000)

    assert await part.commit(completed(token)) == ["ok"]

    first, last = part.events(token.run)
    run = part.run(token.run)
    assert run["status"] == "completed"
    assert run["result"] == RESULT
    assert run["open"] == f"={token.ledger}"
    assert (run["seq"], run["born"], run["ended"]) == ("2", moment(first), moment(last))
    assert run["started"] == str(token.claimed_ms)
    assert 59_000 < part.ttl(token.run) <= 60_000
    assert part.stream() == part.pending() == []
    # And the log tells who ended which attempt, and how.
    assert (last.seq, last.type, last.by, last.payload) == (2, "completed", "s-1", RESULT)
    assert last.facts == {"attempt": "1", "started": str(token.claimed_ms)}


async def test_a_failed_run_keeps_its_error(part):
    token = await part.claimed(keep_ms=60_000)

    assert await part.commit(failed(token)) == ["ok"]

    run = part.run(token.run)
    assert (run["status"], run["error"], run["open"]) == ("failed", ERROR, f"={token.ledger}")
    assert "result" not in run
    assert 0 < part.ttl(token.run) <= 60_000
    assert part.stream() == part.pending() == []


@pytest.mark.leaves("open runs")
async def test_a_retry_without_delay_is_a_new_token_and_a_burnt_attempt(part):
    token = await part.claimed()
    part.take_pebbles()

    assert await part.commit(retrying(token)) == ["ok"]

    ((entry, fields),) = part.stream()
    assert entry != token.entry
    assert fields == {"r": token.run, "n": "2:2"}
    run = part.run(token.run)
    assert (run["open"], run["attempt"], run["seq"], run["error"]) == (f"2:{entry}", "2", "2", ERROR)
    assert "status" not in run
    assert part.ttl(token.run) == -1
    assert part.pending() == []
    assert part.pebbles() == 1
    assert run["more"] == moment(part.events(token.run)[-1])


@pytest.mark.leaves("open runs")
async def test_a_retry_with_delay_is_a_timer(part):
    token = await part.claimed()
    part.take_pebbles()

    assert await part.commit(retrying(token, after_ms=5_000)) == ["ok"]

    last = part.events(token.run)[-1]
    due = last.at_ms + 5_000
    run = part.run(token.run)
    assert (run["status"], run["open"], run["attempt"]) == ("waiting", f"2:@{due}", "2")
    assert part.timers() == {f"open:{token.run}": due}
    assert part.stream() == part.pending() == []
    assert (part.pebbles(), part.timer_pebbles()) == (0, 1)
    assert last.facts["after_ms"] == "5000"


@pytest.mark.leaves("open runs")
@pytest.mark.parametrize("outcome", [retrying, returned])
async def test_a_step_that_passed_a_rate_passes_it_again_before_it_begins_again(part, outcome):
    token = await part.claimed(limits=[Limit("rate|job", 5, 60_000)])
    part.take_pebbles()

    assert await part.commit(outcome(token)) == ["ok"]

    run = part.run(token.run)
    assert part.timers() == {f"open:{token.run}": int(run["open"].removeprefix("2:@"))}
    assert part.stream() == part.pending() == []
    assert "gates" not in run and "status" not in run
    assert (part.pebbles(), part.timer_pebbles()) == (0, 1)


@pytest.mark.leaves("open runs")
async def test_a_step_handed_back_burns_no_attempt(part):
    token = await part.claimed()

    assert await part.commit(returned(token)) == ["ok"]

    ((entry, fields),) = part.stream()
    assert fields == {"r": token.run, "n": "2:1"}
    run = part.run(token.run)
    assert (run["open"], run["attempt"]) == (f"2:{entry}", "1")
    assert "error" not in run
    last = part.events(token.run)[-1]
    assert (last.type, last.payload) == ("returned", b"worker stopped")


@pytest.mark.leaves("open runs")
async def test_a_step_handed_back_with_delay_waits_in_a_timer_and_stays_queued(part):
    token = await part.claimed()

    await part.commit(returned(token, after_ms=1_000))

    assert list(part.timers()) == [f"open:{token.run}"]
    assert "status" not in part.run(token.run)


# --- once, and by the owner only ------------------------------------------------------------------


async def test_committing_twice_answers_done_and_changes_nothing(part):
    token = await part.claimed()
    await part.commit(completed(token))
    before = part.snapshot()

    assert await part.commit(completed(token)) == ["done"]

    assert part.snapshot() == before


@pytest.mark.leaves("open runs")
@pytest.mark.parametrize("outcome", [completed, failed, retrying, returned])
async def test_a_token_that_was_handed_on_is_stale(part, outcome):
    # Given a token whose step was handed back and is out again under a new entry.
    old = await part.claimed()
    await part.commit(returned(old))
    before = part.snapshot()

    # When the old holder commits whatever it has, it is refused and nothing changes.
    assert await part.commit(outcome(old)) == ["stale"]
    assert part.snapshot() == before


@pytest.mark.leaves("open runs", "pending")
async def test_another_delivery_number_is_stale(part):
    token = await part.claimed()
    before = part.snapshot()

    forged = dataclasses.replace(token, delivery=2)
    assert await part.commit(completed(forged)) == ["stale"]

    assert part.snapshot() == before


@pytest.mark.leaves("open runs")
async def test_a_token_that_is_no_longer_pending_is_a_second_refusal(part, p):
    # Given a ledger that still names the token, while somebody acknowledged it.
    token = await part.claimed()
    part.raw.xack(part.keys.tasks(p, "default", 5), "weft", token.entry)
    before = part.snapshot()

    assert await part.commit(completed(token)) == ["stale"]

    assert part.snapshot() == before


@pytest.mark.leaves("open runs")
async def test_tokens_of_a_stream_that_nobody_holds_are_refused_and_those_of_another_committed(part, p):
    lost, held = [await part.claimed() for _ in range(2)], await part.claimed(queue="other")
    part.raw.xgroup_destroy(part.keys.tasks(p, "default", 5), "weft")

    assert await part.commit(completed(lost[0]), failed(held), failed(lost[1])) == ["stale", "ok", "stale"]

    for token in lost:
        assert part.run(token.run)["open"] == token.ledger
        assert [event.type for event in part.events(token.run)] == ["queued"]
    assert part.run(held.run)["status"] == "failed"


async def test_a_token_whose_claim_was_forgotten_is_committed_among_others(part, p):
    # Given what a server leaves that lost its last second: one of two claims.
    forgotten, held = await part.claimed(), await part.claimed()
    part.raw.xack(part.keys.tasks(p, "default", 5), "weft", forgotten.entry)

    assert await part.commit(completed(forgotten), completed(held)) == ["ok", "ok"]

    assert part.stream("default", 5) == []
    assert [event.type for event in part.events(forgotten.run)] == ["queued", "completed"]


async def test_a_finished_run_cannot_be_finished_otherwise(part):
    token = await part.claimed()
    await part.commit(completed(token))

    assert await part.commit(failed(token)) == ["done"]

    assert part.run(token.run)["status"] == "completed"


@pytest.mark.leaves("history")
async def test_a_token_of_a_vanished_run_is_consumed(part, p):
    token = await part.claimed()
    part.raw.delete(part.keys.run(p, token.run))

    assert await part.commit(completed(token)) == ["gone"]

    # Nobody else could ever take it off the pending list.
    assert part.pending() == part.stream() == []
    assert part.run(token.run) == {}


# --- neighbours -----------------------------------------------------------------------------------


@pytest.mark.leaves("broken keys", "pending", "repair", "history")
async def test_a_run_of_the_wrong_type_goes_to_repair_and_its_neighbours_commit(part, p):
    # Given three tokens, the middle one of a run that somebody turned into a list.
    await part.start(3)
    one, two, three = await part.claim()
    part.raw.delete(part.keys.run(p, two.run))
    part.raw.lpush(part.keys.run(p, two.run), "x")

    # When all are committed in one call.
    words = await part.commit(completed(one), completed(two), completed(three))

    # Then the middle one is set aside and the others are done.
    assert words == ["ok", "broken", "ok"]
    assert [part.run(token.run)["status"] for token in (one, three)] == ["completed", "completed"]
    assert part.raw.zrange(part.keys.repair(p), 0, -1) == [two.run.encode()]
    assert [event.run for event in part.events() if event.type == "completed"] == [one.run, three.run]


@pytest.mark.leaves("open runs")
async def test_one_call_may_end_attempts_in_every_way_and_over_several_streams(part, p):
    kinds = (completed, failed, retrying, returned)
    tokens = [await part.claimed(priority=n + 1, queue=("default", "other")[n % 2]) for n in range(4)]

    words = await part.commit(*(kind(token) for kind, token in zip(kinds, tokens, strict=True)))

    assert words == ["ok"] * 4
    entries = {event.entry for event in part.events() if event.seq == 2}
    assert len(entries) == 1, "one call writes one log entry"
    # Then the handed-on tokens are in the streams of their own queue and priority.
    assert [fields["r"] for _, fields in part.stream("default", 3)] == [tokens[2].run]
    assert [fields["r"] for _, fields in part.stream("other", 4)] == [tokens[3].run]


async def test_the_same_token_twice_in_one_call_counts_once(part):
    token, other = await part.claimed(), await part.claimed()

    # The short way is made first, what it leaves comes behind it.
    assert await part.commit(completed(token), completed(token)) == ["ok", "done"]
    assert await part.commit(failed(other), completed(other), failed(other)) == ["ok", "stale", "stale"]

    for run in (token.run, other.run):
        assert [event.seq for event in part.events(run)] == [1, 2]


@pytest.mark.leaves("open runs")
@pytest.mark.parametrize("order", [1, -1])
async def test_a_workflow_run_and_its_step_are_told_of_under_numbers_of_their_own(part, order):
    run = new_run_id(part.p)
    for id, spec in ((run, RunSpec("flow", flow="w")), (f"{run}/x", RunSpec("job", flow="c default 5", retries=3))):
        await start_runs(part.ns, part.p, [NewRun(id, spec, SPEC_ENCODER.encode(spec))], by="c-test")
    flow, step = sorted(await part.claim("s-1"), key=lambda token: token.run)

    words = await part.commit(*[returned(flow), retrying(step, 60_000)][::order])

    assert words == ["ok", "ok"]
    assert [(event.seq, event.type) for event in part.events(run)] == [
        (1, "queued"),
        (2, "step_retrying"),
        (3, "returned"),
    ]
    assert part.run(run)["seq"] == "3"


# --- blobs, deadlines, watchers -------------------------------------------------------------------


async def test_large_inputs_and_results_are_kept_as_long_as_their_run(part, ns, p):
    # Given a claimed run whose input is a blob, and an uploaded result.
    spec, run, result = RunSpec("job", blob=digest_of(b"in"), keep_ms=30_000), new_run_id(p), digest_of(b"out")
    await stage_blob(ns, p, run, b"in")
    await start_runs(ns, p, [NewRun(run, spec, SPEC_ENCODER.encode(spec))], by="c-1")
    (token,) = await part.claim()
    await stage_blob(ns, p, run, b"out")

    assert await part.commit(completed(token, blob=result)) == ["ok"]

    for digest in (spec.blob, result):
        assert 29_000 < part.raw.pttl(part.keys.blob(p, run, digest)) <= 30_000


@pytest.mark.leaves("open runs", "pending")
async def test_a_result_whose_blob_is_gone_is_refused_and_the_token_stays(part):
    token = await part.claimed()
    before = part.snapshot()

    assert await part.commit(completed(token, blob="0" * 64)) == ["blob_gone"]

    assert part.snapshot() == before


@pytest.mark.parametrize("outcome", [completed, failed])
async def test_the_end_of_a_run_drops_its_deadline(part, outcome):
    token = await part.claimed(deadline_ms=60_000)
    assert list(part.timers()) == [f"deadline:{token.run}"]

    await part.commit(outcome(token))

    assert part.timers() == {}


@pytest.mark.leaves("open runs")
async def test_a_retry_keeps_the_deadline(part):
    token = await part.claimed(deadline_ms=60_000)

    await part.commit(retrying(token, after_ms=1_000))

    assert set(part.timers()) == {f"deadline:{token.run}", f"open:{token.run}"}


async def test_watchers_get_one_message_per_channel_with_every_run_that_ended(part, ns, p):
    # Given two runs watched by one client, and a second client that watches one of them.
    await part.start(2)
    one, two = await part.claim()
    await watch_runs(ns, p, [one.run, two.run], "t:first")
    await watch_runs(ns, p, [two.run], "t:second")
    with part.raw.pubsub() as listener:
        listener.subscribe("t:first", "t:second")
        assert [listener.get_message(timeout=5)["type"] for _ in range(2)] == ["subscribe"] * 2

        # When both end in one call.
        await part.commit(completed(one), failed(two))

        # Then each channel gets one message that carries the values.
        told = {m["channel"]: list(parse_news(m["data"])) for m in (listener.get_message(timeout=5) for _ in range(2))}
    assert told == {
        b"t:first": [(one.run, "completed", RESULT), (two.run, "failed", ERROR)],
        b"t:second": [(two.run, "failed", ERROR)],
    }


@pytest.mark.leaves("open runs")
async def test_only_watchers_of_every_event_hear_of_a_retry(part, ns, p):
    token = await part.claimed()
    await watch_runs(ns, p, [token.run], "t:end")
    await watch_runs(ns, p, [token.run], "~t:all")
    with part.raw.pubsub() as listener:
        listener.subscribe("t:end", "t:all")
        for _ in range(2):
            listener.get_message(timeout=5)

        await part.commit(retrying(token))

        message = listener.get_message(timeout=5)
        assert (message["channel"], list(parse_news(message["data"]))) == (b"t:all", [(token.run, "retrying", ERROR)])
        assert listener.get_message(timeout=0.05) is None


# --- the log --------------------------------------------------------------------------------------


async def test_events_are_numbered_without_gap_over_retries_and_returns(part):
    token = await part.claimed()
    for outcome in (retrying, returned, retrying):
        await part.commit(outcome(token))
        (token,) = await part.claim()
    await part.commit(completed(token))

    events = part.events(token.run)
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    assert [event.type for event in events] == ["queued", "retrying", "returned", "retrying", "completed"]
    # And the run points at each of them, in order.
    run = part.run(token.run)
    assert [run["born"], *run["more"].split(), run["ended"]] == [moment(event) for event in events]
    assert (token.delivery, token.attempt) == (4, 3)


async def test_a_payload_cannot_break_the_framing_of_the_log(part):
    nasty = b"9|failed|x=1|,\r\n" + bytes(range(256))
    token = await part.claimed()

    await part.commit(completed(token, nasty))

    last = part.events(token.run)[-1]
    assert (last.seq, last.type, last.payload) == (2, "completed", nasty)
    assert part.run(token.run)["result"] == nasty


@pytest.mark.leaves("open runs", "pending")
async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    token = await part.claimed()
    await refuses_other_epochs(lambda: part.commit(completed(token)))


@pytest.mark.leaves("open runs")
async def test_a_slot_that_becomes_free_goes_to_the_head_the_caller_saw(part):
    _, second, third = await part.start(3, limits=[Limit("task|job", 1)])
    (token,) = await part.claim()
    heads = [Head(row, "task|job", row.spec.limits) for row in await read_ledgers(part.ns, part.p, [second, third])]

    words, awaited = await commit_steps(part.ns, part.p, [completed(token)], session="s-1", heads=heads)

    assert (words, awaited) == (["ok"], False)
    assert part.raw.zrange(part.keys.gate(part.p, "task|job"), 0, -1) == [second.encode()]
    assert part.raw.zrange(part.keys.line(part.p, "task|job"), 0, -1) == [third.encode()]
    assert [entry["r"] for _, entry in part.stream()] == [second]
    assert part.run(second)["gates"] == "task|job"
    assert part.raw.exists(part.keys.admit(part.p)) == 0


@pytest.mark.leaves("open runs")
async def test_a_slot_whose_head_is_another_by_now_is_left_to_the_ordinary_way(part):
    _, second, third = await part.start(3, limits=[Limit("task|job", 1)])
    (token,) = await part.claim()
    (head,) = await read_ledgers(part.ns, part.p, [second])
    part.raw.zrem(part.keys.line(part.p, "task|job"), second)
    part.raw.hset(part.keys.run(part.p, second), "open", "1:5-0")
    heads = [Head(head, "task|job", head.spec.limits)]

    words, awaited = await commit_steps(part.ns, part.p, [completed(token)], session="s-1", heads=heads)

    assert (words, awaited) == (["ok"], True)
    assert part.raw.smembers(part.keys.admit(part.p)) == {b"task|job"}
    assert part.raw.zrange(part.keys.line(part.p, "task|job"), 0, -1) == [third.encode()]
    part.raw.delete(part.keys.run(part.p, second))


@pytest.mark.leaves("open runs")
async def test_heads_pass_only_by_the_controls_the_caller_knows(part):
    _, second = await part.start(2, limits=[Limit("task|job", 1)])
    (token,) = await part.claim()
    (head,) = await read_ledgers(part.ns, part.p, [second])
    await set_control(part.ns, part.p, "pause:task|job", {}, gates=[], queues=[])
    heads = [Head(head, "task|job", head.spec.limits)]

    assert await commit_steps(part.ns, part.p, [completed(token)], session="s-1", heads=heads) == (["ok"], True)
    assert part.run(second)["open"] == "1:#task|job"


async def test_a_step_alone_is_committed_as_one_of_many_is(part, ns, p):
    """One step that completed and leaves nothing goes a short way; what it leaves must be the same."""
    runs = await part.start(3, keep_ms=60_000)
    await watch_runs(ns, p, runs, "news")
    heard = part.raw.pubsub()
    heard.subscribe("news")
    tokens = {token.run: token for token in await part.claim()}
    alone, *many = (completed(tokens[run]) for run in runs)

    assert await part.commit(alone) == ["ok"]
    assert await part.commit(*many) == ["ok"] * 2
    assert await part.commit(alone) == ["done"]

    def left(run: str) -> list[object]:
        _, event = part.events(run)
        fields = part.run(run) | {"open": "ledger", "born": "then", "ended": "then"}
        return [fields, part.ttl(run) > 59_000, (event.seq, event.type, event.by, event.facts, event.payload)]

    assert left(runs[0]) == left(runs[1]) == left(runs[2])
    assert part.run(runs[0])["open"] == f"={tokens[runs[0]].ledger}"
    assert part.stream() == part.pending() == []
    told: list[object] = []
    while len(told) < len(runs):
        message = heard.get_message(timeout=5)
        told += parse_news(message["data"]) if message["type"] == "message" else []
    assert told == [(run, "completed", RESULT) for run in runs]
    assert heard.get_message(timeout=0.05) is None
