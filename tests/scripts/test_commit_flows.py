"""commit_flows: a turn of a workflow is journaled as a whole, once, and only by who holds its token and knows its journal."""

import dataclasses

import pytest
from flow_runs import ask, begun, call, commit, end, entry, journal, mail, mailbox, replies, turn
from partition import ERROR, RESULT, Partition

from weft.errors import StaleControls
from weft.store.blobs import stage_blob

pytestmark = pytest.mark.leaves("open runs", "pending", "repair", "broken keys")


async def test_entries_are_journaled_and_told_and_the_token_stays(part: Partition):
    token = await begun(part)
    step = entry("completed", "charge", payload=b"paid", event="step_completed|step=charge")

    ((word, now, waiting, *taken),) = await replies(part, turn(token, "1.2", expect=1, added=[step], state=b"s"))

    assert (word, waiting, taken) == (b"ok", b"0", [])
    assert journal(part, token.run) == ["begin - 1|", "completed charge|paid"]
    assert part.raw.lindex(part.keys.journal(part.p, token.run), 1).startswith(now)
    assert [event.type for event in part.events(token.run)] == ["queued", "step_completed", "state_changed"]
    run = part.run(token.run)
    assert (run["open"], run["seq"], run["turn"], run["state"]) == (token.ledger, "3", "1.2", "s")
    assert len(part.pending()) == 1


async def test_a_repeated_turn_answers_done_with_what_it_wrote(part: Partition):
    token = await begun(part)
    again = turn(token, "1.2", expect=1, take=10, added=[entry("fired", "$sleep")])
    await mail(part, token)
    await commit(part, again)
    before = part.snapshot()

    ((word, _, _, *entries),) = await replies(part, again)

    assert word == b"done"
    assert [data.split(b" ")[1] for data in entries] == [b"signal", b"fired"]
    assert part.snapshot() == before


async def test_a_token_that_was_replaced_changes_nothing(part: Partition):
    token = await begun(part)
    part.raw.hset(part.keys.run(part.p, token.run), "open", "2:9-9")
    before = part.snapshot()

    assert await commit(part, turn(token, "1.2", expect=1, added=[entry("fired", "$sleep")])) == ["stale"]
    assert part.snapshot() == before


async def test_a_journal_of_another_length_changes_nothing(part: Partition):
    token = await begun(part)
    before = part.snapshot()

    assert await commit(part, turn(token, "1.2", expect=7, added=[entry("fired", "$sleep")])) == ["behind"]
    assert part.snapshot() == before


async def test_the_token_of_a_run_that_is_gone_goes_too(part: Partition):
    token = await begun(part)
    part.raw.delete(part.keys.run(part.p, token.run))

    assert await commit(part, turn(token, "1.2", expect=1)) == ["gone"]
    assert part.pending() == [] and part.stream() == []


async def test_a_run_that_waits_has_no_token_and_its_timer(part: Partition):
    token = await begun(part)
    due = token.claimed_ms + 60_000

    assert await commit(part, turn(token, "1.2", kind="park", expect=1, ms=due, awaits="timer sleep")) == ["ok"]

    run = part.run(token.run)
    assert (run["open"], run["status"], run["awaits"]) == (f"2:@{due}", "waiting", "timer sleep")
    assert part.timers() == {f"open:{token.run}": due}
    assert part.pending() == [] and part.stream() == []


async def test_a_run_with_mail_or_a_timer_that_is_due_does_not_wait(part: Partition):
    token = await begun(part)
    assert await commit(part, turn(token, "1.2", kind="park", expect=1, ms=1)) == ["due"]
    await mail(part, token)
    assert await commit(part, turn(token, "1.3", kind="park", expect=1)) == ["mail"]
    assert part.run(token.run)["open"] == token.ledger

    assert await commit(part, turn(token, "1.4", kind="stall", expect=1, told="diverged")) == ["ok"]
    assert part.run(token.run)["open"] == "2:?flow"
    assert part.events(token.run)[-1].type == "diverged"


async def test_mail_that_is_taken_stands_in_the_journal_before_what_is_new(part: Partition):
    token = await begun(part)
    await mail(part, token, "a")
    await mail(part, token, "b")

    ((_, _, waiting, *taken),) = await replies(
        part, turn(token, "1.2", expect=1, take=1, added=[entry("fired", "$sleep")])
    )

    assert waiting == b"1" and len(taken) == 1
    assert journal(part, token.run)[1:] == ["signal a|v", "fired $sleep|"]
    assert mailbox(part, token.run) == ["signal b|v"]


async def test_a_run_that_completes_leaves_only_its_hash(part: Partition):
    token = await begun(part, deadline_ms=60_000)

    end_turn = turn(token, "1.2", kind="completed", expect=1, ms=5_000, value=RESULT)
    assert await commit(part, end_turn) == ["ok"]

    run = part.run(token.run)
    assert (run["status"], run["result"], run["open"]) == ("completed", RESULT, f"={token.ledger}")
    assert 0 < part.ttl(token.run) <= 5_000
    assert journal(part, token.run) == [] and part.timers() == {} and part.pending() == []
    assert await commit(part, end_turn) == ["done"]


async def test_a_run_that_fails_is_a_dead_letter_and_keeps_its_journal_for_a_while(part: Partition):
    token = await begun(part)
    assert await commit(part, turn(token, "1.2", kind="failed", expect=1, ms=5_000, value=ERROR)) == ["ok"]
    assert part.raw.zscore(part.keys.dlq(part.p), token.run)
    assert 0 < part.raw.pttl(part.keys.journal(part.p, token.run)) <= 5_000


async def test_a_call_is_opened_and_its_end_becomes_mail(part: Partition):
    token = await begun(part)
    opened = entry("opened", "pack", event="step_opened|step=pack", call=call())
    await commit(part, turn(token, "1.2", expect=1, added=[opened]))
    await commit(part, turn(token, "1.3", kind="park", expect=2))
    (claimed,) = await part.claim()
    assert claimed.run == f"{token.run}/pack"
    assert part.raw.hkeys(part.keys.ledger(part.p, token.run)) == [b"pack"]

    assert await commit(part, end(claimed)) == ["ok"]

    assert part.run(claimed.run) == {} and not part.raw.exists(part.keys.ledger(part.p, token.run))
    assert mailbox(part, token.run) == ["ended pack completed|v"]
    ((entry_id, fields),) = part.stream()
    assert fields["r"] == token.run and part.run(token.run)["open"] == f"2:{entry_id}"
    assert await commit(part, end(claimed)) == ["done"]


async def test_a_call_that_ends_behind_the_turn_that_waits_for_it_wakes_it(part: Partition):
    token = await begun(part)
    await commit(part, turn(token, "1.2", expect=1, added=[entry("opened", "pack", call=call())]))
    (claimed,) = await part.claim()

    words = await commit(part, turn(token, "1.3", kind="park", expect=2), end(claimed))

    assert words == ["ok", "ok"]
    run = part.run(token.run)
    assert "status" not in run and run["open"] == f"2:{part.stream()[0][0]}"


async def test_a_call_that_ends_behind_the_end_of_its_run_changes_nothing(part: Partition):
    token = await begun(part)
    await commit(part, turn(token, "1.2", expect=1, added=[entry("opened", "pack", call=call())]))
    (claimed,) = await part.claim()

    words = await commit(part, turn(token, "1.3", kind="completed", expect=2, ms=5_000, value=RESULT), end(claimed))

    assert words == ["ok", "gone"]
    assert mailbox(part, token.run) == [] and part.pending() == []
    assert f"close:{token.run}" in part.timers()


async def test_a_value_that_was_lost_before_the_commit_is_told(part: Partition):
    token = await begun(part)
    large = entry("completed", "make", blob="f" * 64)
    assert await commit(part, turn(token, "1.2", expect=1, added=[large])) == ["blob_gone"]

    digest = await stage_blob(part.ns, part.p, token.run, b"x" * 10)
    large.blob = digest
    assert await commit(part, turn(token, "1.2", expect=1, added=[large])) == ["ok"]
    assert part.raw.pttl(part.keys.blob(part.p, token.run, digest)) == -1
    assert part.raw.smembers(part.keys.belongings(part.p, token.run)) == {f"blob {digest}".encode()}


async def test_deaths_before_the_newest_turn_are_forgotten(part: Partition):
    token = await begun(part)
    part.raw.hset(part.keys.run(part.p, token.run), "crashes", 2)
    await commit(part, turn(token, "1.2", expect=1, added=[entry("fired", "$sleep")]))
    assert "crashes" not in part.run(token.run)


async def test_a_broken_run_costs_only_itself(part: Partition):
    broken, whole = await begun(part), await begun(part)
    part.raw.delete(part.keys.journal(part.p, broken.run))
    part.raw.set(part.keys.journal(part.p, broken.run), "no list")

    words = await commit(
        part, *(turn(one, "1.2", expect=1, added=[entry("fired", "$sleep")]) for one in (broken, whole))
    )

    assert words == ["broken", "ok"]
    assert part.raw.zrange(part.keys.repair(part.p), 0, -1) == [broken.run.encode()]


async def test_log_lines_stay_with_the_run(part: Partition):
    token = await begun(part)
    await commit(part, turn(token, "1.2", expect=1, lines=b"1|3:abc"))
    assert part.raw.lrange(part.keys.tasklog(part.p, token.run), 0, -1) == [b"abc"]


async def test_it_minds_the_epoch_and_the_controls(part: Partition, refuses_other_epochs):
    # EpochMissing and StaleEpoch are looked for by the fixture.
    token = await begun(part)
    await refuses_other_epochs(lambda: replies(part, turn(token, "1.2", expect=1)))
    part.raw.hset(part.keys.epoch(part.p), "controls", "7")
    with pytest.raises(StaleControls):
        await replies(part, turn(token, "1.2", expect=1))
    part.raw.hdel(part.keys.epoch(part.p), "controls")


async def test_a_new_life_has_a_journal_of_its_own(part: Partition):
    token = await begun(part)
    digest = await stage_blob(part.ns, part.p, token.run, b"x" * 10)
    made = entry("completed", "make", blob=digest)
    opened = entry("opened", "pack", event="step_opened|step=pack", call=call())
    child = entry("opened", "below", child="r0-child")
    await commit(part, turn(token, "1.2", expect=1, added=[made, opened, child]))
    await mail(part, token, "later")
    part.raw.hset(part.keys.run(part.p, token.run), "approvals", "approve")
    input = await stage_blob(part.ns, part.p, token.run, b"y" * 10)
    begin = entry("begin", "-", "5", b"what it begins with", event="continued|life=1", blob=input)
    anew = turn(
        token,
        "1.3",
        expect=4,
        added=[begin, entry("signal", "early", "", b"v")],
        drops=[f"blob {digest}", "child r0-child"],
        state=b"s",
    )

    assert await commit(part, anew) == ["ok"]

    assert journal(part, token.run) == ["begin - 5|what it begins with", "signal early|v"]
    assert mailbox(part, token.run) == ["signal later|v"]
    run = part.run(token.run)
    assert run["open"] == token.ledger and run["state"] == "s" and "approvals" not in run
    assert not part.raw.exists(part.keys.ledger(part.p, token.run))
    assert part.raw.smembers(part.keys.belongings(part.p, token.run)) == {f"blob {input}".encode()}
    assert part.raw.pttl(part.keys.blob(part.p, token.run, digest)) > 0
    assert part.raw.pttl(part.keys.blob(part.p, token.run, input)) == -1
    assert run["lived"] == "4"
    last = part.events(token.run)[-1]
    assert (last.type, last.facts) == ("continued", {"life": "1"})
    before = part.snapshot()
    assert await commit(part, anew) == ["done"]
    assert part.snapshot() == before


async def test_a_new_life_is_fenced_by_ledger_and_length(part: Partition):
    token = await begun(part)
    begin = entry("begin", "-", "5", b"new", event="continued|life=1")
    before = part.snapshot()
    assert await commit(part, turn(token, "1.2", expect=2, added=[begin], drops=[])) == ["behind"]
    old = dataclasses.replace(token, delivery=7)
    assert await commit(part, turn(old, "7.2", expect=1, added=[begin], drops=[])) == ["stale"]
    begin.blob = "f" * 64
    assert await commit(part, turn(token, "1.2", expect=1, added=[begin], drops=[])) == ["blob_gone"]
    assert part.snapshot() == before


async def test_that_it_began_comes_before_mail_that_was_there(part: Partition):
    token = await part.claimed(name="flow", timeout_ms=0, flow="w")
    await mail(part, token)
    assert await commit(part, turn(token, "1.1", added=[entry("begin", "-", "1")], take=10)) == ["ok"]
    assert journal(part, token.run) == ["begin - 1|", "signal go|v"]


async def test_an_update_is_answered_once_and_who_waits_is_told(part: Partition):
    token = await begun(part)
    assert await ask(part, token, "u1", watch="chan") == "given"
    answered = entry("answered", "add", "u1", b"v", event="update_completed|name=add", answer=b"+v")
    with part.raw.pubsub() as ear:
        ear.subscribe("chan")
        ear.get_message(timeout=1)
        assert await commit(part, turn(token, "1.2", expect=1, added=[answered], take=10)) == ["ok"]
        message = ear.get_message(timeout=5)
    assert message["data"] == f"{token.run} answered 0\n".encode()
    key = part.keys.updates(part.p, token.run)
    assert part.raw.hgetall(key) == {b"=u1": b"+v", b"n": b"1", b"@1": b"u1"}
    assert journal(part, token.run)[1:] == ["update add u1|v", "answered add u1|v"]
    other = entry("answered", "add", "u1", b"w", answer=b"+w")
    assert await commit(part, turn(token, "1.3", expect=3, added=[other])) == ["ok"]
    assert part.raw.hget(key, "=u1") == b"+v"
    # An ended run answers as before, as long as it is kept.
    await commit(part, turn(token, "1.4", kind="completed", expect=4, ms=5_000, value=RESULT))
    assert await ask(part, token, "u1") == "known"
    assert await ask(part, token, "u2") == "ended completed"
    assert f"close:{token.run}" in part.timers()


async def test_the_newest_answers_are_kept(part: Partition):
    token = await begun(part)
    answers = [entry("answered", "add", f"u{n}", b"v", answer=b"+v") for n in range(1_003)]
    for n in range(0, len(answers), 500):
        assert await commit(part, turn(token, f"1.{n + 2}", expect=1 + n, added=answers[n : n + 500])) == ["ok"]
    kept = [name for name in part.raw.hkeys(part.keys.updates(part.p, token.run)) if name.startswith(b"=")]
    assert len(kept) == 1_000 and b"=u1002" in kept and b"=u0" not in kept


async def test_very_many_entries_go_to_a_new_life(part: Partition):
    token = await begun(part)
    carried = [entry("signal", "go", "", b"%d" % n) for n in range(9_000)]
    assert await commit(part, turn(token, "1.2", expect=1, added=[entry("begin", "-", "5"), *carried], drops=[])) == [
        "ok"
    ]
    told = journal(part, token.run)
    assert len(told) == 9_001 and told[-1] == "signal go|8999"


async def test_a_turn_of_an_earlier_life_is_behind_however_long_the_journal_is(part: Partition):
    token = await begun(part)
    await commit(part, turn(token, "1.2", expect=1, added=[entry("begin", "-", "5", b"x")], drops=[]))
    fired = entry("fired", "$sleep")
    assert await commit(part, turn(token, "1.3", expect=1, added=[fired])) == ["behind"]
    assert await commit(part, turn(token, "1.4", expect=2, added=[fired])) == ["ok"]
    ((word, _, _, *told),) = await replies(part, turn(token, "1.4", expect=2, added=[fired]))
    assert word == b"done" and [one.split(b" ", 1)[1] for one in told] == [b"fired $sleep \n"]
