"""reclaim_steps: takes tokens from a dead session; each is emitted anew, or ends as poison."""

import pytest
from partition import ERROR, completed, moment, returned

from weft.core.model import SPEC_ENCODER, Limit, RunSpec
from weft.errors import SessionAlive, SessionLost
from weft.ids import new_run_id
from weft.store.blobs import digest_of, stage_blob
from weft.store.inbox import parse_news
from weft.store.lost import TOMBSTONE_MS, reclaim_steps
from weft.store.runs import NewRun, start_runs, watch_runs
from weft.store.steps import begin_suspect


async def reclaim(part, *held, dead: str = "s-1", max_crashes: int = 3) -> list[str]:
    """Takes (entry, run, spec) of the default queue from a session."""
    return await reclaim_steps(
        part.ns,
        part.p,
        dead=dead,
        queue="default",
        stream=part.keys.tasks(part.p, "default", 5),
        held=[(*each, "") if len(each) == 3 else each for each in held],
        keep_ms=lambda spec: spec.keep_ms,
        by="s-sweeper",
        max_crashes=max_crashes,
        poison=ERROR,
    )


def of(token) -> tuple:
    return token.entry, token.run, token.spec


@pytest.mark.leaves("open runs")
async def test_a_token_comes_back_under_a_new_entry_with_one_more_delivery_and_crash(part):
    # Given a token of a session that is silent.
    token = await part.claimed("s-1")
    part.take_pebbles()

    # When it is taken.
    assert await reclaim(part, of(token)) == ["emitted"]

    # Then it waits in the queue under a new entry; no attempt is burnt.
    ((entry, fields),) = part.stream()
    assert entry != token.entry
    assert fields == {"r": token.run, "n": "2:1"}
    run, last = part.run(token.run), part.events(token.run)[-1]
    assert (run["open"], run["crashes"], run["seq"], run["more"]) == (f"2:{entry}", "1", "2", moment(last))
    assert "attempt" not in run
    assert (last.type, last.by, last.facts) == ("reclaimed", "s-sweeper", {"session": "s-1", "crashes": "1"})
    assert part.pending() == []
    assert part.pebbles() == 1
    # And the old holder cannot commit any more.
    assert await part.commit(completed(token)) == ["stale"]


@pytest.mark.leaves("open runs")
async def test_a_step_that_passed_a_rate_goes_by_its_timer_and_gives_its_slots_back(part):
    limits = [Limit("task|job", 1), Limit("rate|job", 5, 60_000)]
    token = await part.claimed("s-1", limits=limits)
    assert token.gates == "task|job rate|job"
    part.take_pebbles()

    assert await reclaim(part, (*of(token), token.gates)) == ["emitted"]

    run = part.run(token.run)
    assert part.stream() == [] and part.pending() == []
    assert part.timers() == {f"open:{token.run}": int(run["open"].removeprefix("2:@"))}
    assert run["crashes"] == "1" and "gates" not in run
    assert part.raw.exists(part.keys.gate(part.p, "task|job")) == 0
    assert (part.pebbles(), part.timer_pebbles()) == (0, 1)


@pytest.mark.leaves("open runs")
async def test_the_session_becomes_a_tombstone_and_is_refused_from_then_on(part, p):
    token = await part.claimed("s-1")

    await reclaim(part, of(token))

    key = part.keys.session(p, "s-1")
    assert part.raw.get(key) == b"dead"
    assert TOMBSTONE_MS - 60_000 < part.raw.pttl(key) <= TOMBSTONE_MS
    with pytest.raises(SessionLost):
        await part.claim("s-1")
    with pytest.raises(SessionLost):
        await part.session("s-1")


async def test_without_tokens_it_only_leaves_the_tombstone(part, p):
    assert await reclaim(part) == []

    assert part.raw.get(part.keys.session(p, "s-1")) == b"dead"


@pytest.mark.leaves("open runs", "pending", "sessions")
async def test_nothing_is_taken_from_a_session_that_is_alive(part):
    await part.session("s-1")
    token = await part.claimed("s-1")
    before = part.snapshot()

    with pytest.raises(SessionAlive):
        await reclaim(part, of(token))

    assert part.snapshot() == before


@pytest.mark.leaves("open runs", "pending")
async def test_what_another_session_holds_is_not_touched(part):
    token = await part.claimed("s-2")

    assert await reclaim(part, of(token), dead="s-1") == ["stale"]

    assert part.pending() == [(token.entry, "s-2")]
    assert part.run(token.run)["open"] == token.ledger


@pytest.mark.leaves("open runs")
async def test_taking_twice_emits_once(part):
    token = await part.claimed("s-1")
    await reclaim(part, of(token))

    assert await reclaim(part, of(token)) == ["stale"]

    assert len(part.stream()) == 1
    assert part.run(token.run)["crashes"] == "1"


async def test_the_third_death_is_poison(part):
    # Given a step that outlives no worker.
    (run,) = await part.start(keep_ms=30_000, deadline_ms=600_000)
    words = []
    for session in ("s-1", "s-2", "s-3"):
        (token,) = await part.claim(session)
        await begin_suspect(part.ns, part.p, token, session=session)

        # When each one dies with it.
        words += await reclaim(part, of(token), dead=session)

    # Then the third time it is not tried again.
    assert words == ["emitted", "emitted", "poisoned"]
    ended = part.run(run)
    assert (ended["status"], ended["error"], ended["crashes"]) == ("failed", ERROR, "3")
    assert ended["open"] == f"={token.ledger}"
    assert 0 < part.ttl(run) <= 30_000
    assert part.stream() == part.pending() == []
    assert part.timers() == {}
    events = part.events(run)
    assert [(e.seq, e.type) for e in events] == [(1, "queued"), (2, "reclaimed"), (3, "reclaimed"), (4, "failed")]
    assert events[-1].facts["crashes"] == "3"
    assert ended["ended"] == moment(events[-1])


@pytest.mark.leaves("open runs")
async def test_a_death_is_charged_to_the_suspect_that_ran_and_not_to_those_that_waited(part):
    # Given two suspects and a newcomer in the hands of one session, and one of the suspects begun.
    first, second = await part.start(2)
    for session in ("s-0", "s-1"):
        held = [of(token) for token in await part.claim(session)]
        assert await reclaim(part, *held, dead=session) == ["emitted", "emitted"]
    (newcomer,) = await part.start()
    tokens = {token.run: token for token in await part.claim("s-2")}
    assert [tokens[run].crashes for run in (first, second, newcomer)] == [2, 2, 0]
    assert await begin_suspect(part.ns, part.p, tokens[second], session="s-2")

    # When it dies.
    words = await reclaim(part, *[of(tokens[run]) for run in (first, second, newcomer)], dead="s-2")

    # Then it was the third death of the one that ran; the one that waited is as it was, and the newcomer has its first.
    assert words == ["emitted", "poisoned", "emitted"]
    assert [part.run(run)["crashes"] for run in (first, second, newcomer)] == ["2", "3", "1"]
    assert part.events(first)[-1].facts == {"session": "s-2", "crashes": "2"}


@pytest.mark.leaves("open runs")
async def test_a_suspect_that_waits_is_not_charged_for_a_beginning_of_before(part):
    # Given a suspect that began once, was handed back, and waits in another worker.
    await reclaim(part, of(await part.claimed("s-1")))
    await reclaim(part, of((await part.claim("s-0"))[0]), dead="s-0")
    (token,) = await part.claim("s-2")
    await begin_suspect(part.ns, part.p, token, session="s-2")
    await part.commit(returned(token), session="s-2")
    (token,) = await part.claim("s-3")

    assert await reclaim(part, of(token), dead="s-3") == ["emitted"]

    assert part.run(token.run)["crashes"] == "2"


async def test_a_suspect_that_only_waited_never_becomes_poison(part):
    (run,) = await part.start()
    for n in range(6):
        (token,) = await part.claim(f"s-{n}")
        assert await reclaim(part, of(token), dead=f"s-{n}", max_crashes=2) == ["emitted"]

    assert part.run(run)["crashes"] == "1"
    (token,) = await part.claim("s-last")
    await begin_suspect(part.ns, part.p, token, session="s-last")
    assert await reclaim(part, of(token), dead="s-last", max_crashes=2) == ["poisoned"]


async def test_a_poisoned_run_gives_back_the_record_of_calls_like_it_unless_it_names_another(part, p):
    record = part.keys.unique(p, "u")
    token = await part.claimed("s-1", unique="u")
    part.raw.set(record, token.run, px=60_000)
    assert await reclaim(part, of(token), max_crashes=1) == ["poisoned"]
    assert not part.raw.exists(record)

    token = await part.claimed("s-2", unique="u")
    part.raw.set(record, "another", px=60_000)
    assert await reclaim(part, of(token), dead="s-2", max_crashes=1) == ["poisoned"]
    assert part.raw.get(record) == b"another"


async def test_watchers_hear_of_poison_and_its_input_goes_with_the_run(part, ns, p):
    spec, run = RunSpec("job", blob=digest_of(b"in"), keep_ms=30_000), new_run_id(p)
    await stage_blob(ns, p, run, b"in")
    await start_runs(ns, p, [NewRun(run, spec, SPEC_ENCODER.encode(spec))], by="c-1")
    await watch_runs(ns, p, [run], "t:inbox")
    (token,) = await part.claim("s-1")
    with part.raw.pubsub() as listener:
        listener.subscribe("t:inbox")
        listener.get_message(timeout=5)

        assert await reclaim(part, of(token), max_crashes=1) == ["poisoned"]

        assert list(parse_news(listener.get_message(timeout=5)["data"])) == [(run, "failed", ERROR)]
    assert 0 < part.raw.pttl(part.keys.blob(p, run, spec.blob)) <= 30_000


@pytest.mark.leaves("open runs")
async def test_a_token_the_ledger_no_longer_names_is_dropped(part, p):
    # Given an entry that is still pending although its step was handed on.
    token = await part.claimed("s-1")
    part.raw.hset(part.keys.run(p, token.run), "open", "2:9-9")

    assert await reclaim(part, of(token)) == ["stale"]

    assert part.pending() == part.stream() == []
    assert part.run(token.run)["open"] == "2:9-9"
    part.raw.delete(part.keys.run(p, token.run))


@pytest.mark.leaves("history")
async def test_a_token_whose_run_is_gone_is_dropped(part, p):
    token = await part.claimed("s-1")
    part.raw.delete(part.keys.run(p, token.run))

    assert await reclaim(part, (token.entry, "-", RunSpec(""))) == ["stale"]

    assert part.pending() == part.stream() == []


@pytest.mark.leaves("broken keys", "open runs", "repair", "history")
async def test_a_run_of_the_wrong_type_goes_to_repair_and_its_neighbours_are_taken(part, p):
    # Given a dead session's tokens, one of them of a run that somebody turned into a list.
    await part.start(3)
    one, two, three = await part.claim("s-1")
    part.raw.delete(part.keys.run(p, two.run))
    part.raw.lpush(part.keys.run(p, two.run), "x")

    # When they are taken.
    words = await reclaim(part, of(one), of(two), of(three))

    # Then the broken one does not keep the others.
    assert words == ["emitted", "broken", "emitted"]
    assert part.pending() == []
    assert part.raw.zrange(part.keys.repair(p), 0, -1) == [two.run.encode()]


@pytest.mark.leaves("open runs")
async def test_items_of_one_call_share_a_log_entry_and_are_judged_one_by_one(part):
    await part.start(3)
    one, two, three = await part.claim("s-1")
    await part.commit(returned(two))

    assert await reclaim(part, of(one), of(two), of(three)) == ["emitted", "stale", "emitted"]

    assert len({e.entry for e in part.events() if e.type == "reclaimed"}) == 1


@pytest.mark.leaves("open runs", "pending")
async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    token = await part.claimed("s-1")
    await refuses_other_epochs(lambda: reclaim(part, of(token)))


@pytest.mark.parametrize("order", ["the run first", "its step first"])
@pytest.mark.parametrize("max_crashes", [3, 1], ids=["emitted", "poisoned"])
@pytest.mark.leaves("open runs", "history")
async def test_a_workflow_run_and_its_step_that_died_together_are_told_of_under_numbers_of_their_own(
    part, order, max_crashes
):
    # Given a session that had the turn of a workflow run in hand, and a step of it.
    flow, step = RunSpec("flow", flow="w"), RunSpec("job", flow="c default 5")
    run = new_run_id(part.p)
    for id, spec in ((run, flow), (f"{run}/x", step)):
        await start_runs(part.ns, part.p, [NewRun(id, spec, SPEC_ENCODER.encode(spec))], by="c-test")
    tokens = {token.run: of(token) for token in await part.claim("s-1")}
    held = [tokens[run], tokens[f"{run}/x"]]

    # When both are taken from it, in one call.
    await reclaim(part, *(held if order == "the run first" else held[::-1]), max_crashes=max_crashes)

    # Then the history of the run has each number once, and the run knows the last of them.
    told = part.events(run)
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    assert part.run(run)["seq"] == str(len(told))
    if max_crashes == 1:
        assert told[-1].type == "failed"
    else:
        assert {event.type for event in told} == {"queued", "reclaimed", "step_reclaimed"}
