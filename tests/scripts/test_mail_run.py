"""mail_run: what comes for a workflow run waits for it, in order, and wakes it."""

import pytest
from flow_runs import ask, begun, commit, mail, mailbox, turn
from partition import RESULT, Partition

from weft.errors import NotFound
from weft.store import flows
from weft.store.runs import RunRow
from weft.store.waits import MAX_REMEMBERED

pytestmark = pytest.mark.leaves("open runs", "pending")


@pytest.mark.parametrize("ms", [0, 60_000])
async def test_a_run_that_waits_gets_a_token(part: Partition, ms: int):
    token = await begun(part)
    due = token.claimed_ms + ms if ms else 0
    await commit(part, turn(token, "1.2", kind="park", expect=1, ms=due, awaits="signal go"))
    part.take_pebbles()

    assert await mail(part, token) == "given"

    ((entry, fields),) = part.stream()
    assert fields["r"] == token.run and fields["n"] == "2:1"
    run = part.run(token.run)
    assert run["open"] == f"2:{entry}" and not {"status", "awaits"} & run.keys()
    assert part.timers() == {} and part.pebbles() == 1
    assert mailbox(part, token.run) == ["signal go|v"]
    last = part.events(token.run)[-1]
    assert (last.type, last.facts, last.payload) == ("signalled", {"name": "go"}, b"v")


async def test_the_worker_of_a_run_that_goes_on_is_told(part: Partition):
    token = await begun(part)
    with part.raw.pubsub() as ear:
        ear.subscribe(part.keys.inbox(0, "s-1"))
        ear.get_message(timeout=1)
        await mail(part, token)
        message = ear.get_message(timeout=5)
    assert message["data"] == f"mail {token.run} -".encode()
    assert part.run(token.run)["open"] == token.ledger


async def test_a_run_that_has_not_begun_finds_it_there(part: Partition):
    token = await part.claimed(name="flow", flow="w")
    assert await mail(part, token) == "given"
    assert part.run(token.run)["open"] == token.ledger
    assert mailbox(part, token.run) == ["signal go|v"]


async def test_a_repeated_request_changes_nothing(part: Partition):
    token = await begun(part)
    assert await mail(part, token, request="q") == "given"
    before = part.snapshot()
    assert await mail(part, token, request="q", value=b"other") == "given"
    assert part.snapshot() == before


async def test_what_waits_and_what_is_remembered_is_bounded(part: Partition, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flows, "MAX_MAIL", MAX_REMEMBERED + 5)
    token = await begun(part)
    for n in range(MAX_REMEMBERED + 5):
        assert await mail(part, token, request=f"q{n}") == "given"
    assert await mail(part, token, request="more") == "full"
    kept = part.raw.hgetall(part.keys.signals(part.p, token.run))
    assert len([name for name in kept if name.startswith(b"=")]) == MAX_REMEMBERED


async def test_a_run_that_has_ended_or_never_was_takes_none(part: Partition, refuses_other_epochs):
    # EpochMissing and StaleEpoch are looked for by the fixture.
    token = await begun(part)
    await refuses_other_epochs(lambda: mail(part, token))
    await commit(part, turn(token, "1.2", kind="completed", expect=1, ms=5_000, value=RESULT))
    assert await mail(part, token) == "ended completed"
    part.raw.delete(part.keys.run(part.p, token.run))
    with pytest.raises(NotFound):
        await mail(part, token)


async def test_one_id_is_one_update(part: Partition):
    token = await begun(part)
    assert await ask(part, token, "u1", watch="one") == "given"
    assert part.events(token.run)[-1].type == "update_received"
    assert await ask(part, token, "u1", watch="two") == "known"
    assert await ask(part, token, "u1", watch="two") == "known"
    assert mailbox(part, token.run) == ["update add u1|v"]
    # Both are told: who asks again may listen elsewhere.
    assert part.raw.hgetall(part.keys.updates(part.p, token.run)) == {b"=u1": b"?one two"}


async def test_a_run_with_very_many_signals_can_be_cancelled(part: Partition, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flows, "MAX_MAIL", 1)
    token = await begun(part)
    assert [await mail(part, token), await mail(part, token)] == ["given", "full"]
    row = RunRow(token.run, token.spec)
    assert await flows.ask_to_end(part.ns, part.p, row, b"why", by="c-1")
    assert mailbox(part, token.run)[-1] == "cancel -|why"


async def test_a_deadline_is_told_once_and_leaves_some_time(part: Partition):
    token = await begun(part, deadline_ms=60_000)
    row = RunRow(token.run, token.spec)
    before = part.snapshot()
    await flows.remind(part.ns, part.p, row, b"why", by="s-1")  # it has not come
    assert part.snapshot() == before

    part.raw.hset(part.keys.run(part.p, token.run), "deadline", 1)
    await flows.remind(part.ns, part.p, row, b"why", by="s-1")

    over = int(part.run(token.run)["overdue"])
    assert over == part.timers()[f"deadline:{token.run}"] >= token.claimed_ms + flows.GRACE_MS
    assert mailbox(part, token.run) == ["cancel -|why"]
    assert part.events(token.run)[-1].type == "overdue"
    before = part.snapshot()
    await flows.remind(part.ns, part.p, row, b"why", by="s-1")
    assert part.snapshot() == before
