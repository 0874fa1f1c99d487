"""Which ends become dead letters: whatever script makes a run fail also puts it in the index, once."""

import pytest
from partition import ERROR, completed, discarded, failed, moment, retrying, snoozed

from weft.store.letters import drop_gone_letters
from weft.store.lost import reclaim_steps
from weft.store.runs import end_run, read_runs


async def end(part, run: str, kind: str) -> None:
    (row,) = await read_runs(part.ns, part.p, [run])
    assert row is not None
    await end_run(part.ns, part.p, row, kind=kind, value=ERROR, keep_ms=1_000, by="s-1", deadline=kind == "failed")


async def test_a_failed_commit_is_indexed_with_its_worker(part):
    token = await part.claimed()
    await part.commit(failed(token), session="s-7")
    last = part.events(token.run)[-1]
    assert part.letters() == {token.run: int(moment(last))}
    assert part.run(token.run)["by"] == "s-7"
    # Repeated, it changes nothing.
    assert await part.commit(failed(token), session="s-7") == ["done"]
    assert len(part.letters()) == 1


async def test_other_ends_are_not_indexed(part):
    await part.commit(completed(await part.claimed()))
    await part.commit(discarded(await part.claimed()))
    (run,) = await part.start()
    await end(part, run, "cancelled")
    assert part.letters() == {}


async def test_a_missed_deadline_is_indexed_and_names_the_worker_that_ran_it(part):
    token = await part.claimed("s-9", deadline_ms=10_000)
    await part.advance(10_001)
    await end(part, token.run, "failed")
    assert list(part.letters()) == [token.run]
    assert part.run(token.run)["by"] == "s-9"


async def test_poison_is_indexed_with_the_last_worker_that_died(part):
    token = await part.claimed("s-3")
    words = await reclaim_steps(
        part.ns,
        part.p,
        dead="s-3",
        queue="default",
        stream=part.keys.tasks(part.p, "default", 5),
        held=[(token.entry, token.run, token.spec, "")],
        keep_ms=lambda spec: 90_000_000,
        by="s-sweeper",
        max_crashes=1,
        poison=ERROR,
    )
    assert words == ["poisoned"]
    assert list(part.letters()) == [token.run]
    assert part.run(token.run)["by"] == "s-3"
    assert part.ttl(token.run) > 80_000_000


async def test_a_discarded_run_is_cancelled(part):
    token = await part.claimed(deadline_ms=60_000)
    assert await part.commit(discarded(token)) == ["ok"]
    ended = part.run(token.run)
    assert (ended["status"], ended["error"], ended["open"]) == ("cancelled", ERROR, f"={token.ledger}")
    assert part.timers() == {}
    assert part.events(token.run)[-1].type == "cancelled"


@pytest.mark.leaves("open runs")
async def test_a_snoozed_run_waits_without_burning_an_attempt(part):
    token = await part.claimed()
    assert await part.commit(snoozed(token, 60_000)) == ["ok"]
    waiting = part.run(token.run)
    assert (waiting["status"], waiting["attempt"], waiting.get("error")) == ("waiting", "1", None)
    assert waiting["open"] == f"2:@{part.timers()[f'open:{token.run}']}"
    last = part.events(token.run)[-1]
    assert (last.type, last.facts["after_ms"], last.payload) == ("snoozed", "60000", b"later")


@pytest.mark.leaves("open runs")
async def test_a_retry_is_no_dead_letter(part):
    await part.commit(retrying(await part.claimed(), after_ms=60_000))
    assert part.letters() == {}


async def test_ids_whose_run_is_gone_are_dropped_from_the_index(part):
    kept, gone = await part.claimed(), await part.claimed()
    await part.commit(failed(kept), failed(gone))
    part.raw.delete(part.keys.run(part.p, gone.run))
    assert await drop_gone_letters(part.ns, part.p, 0, count=100) == 0
    assert list(part.letters()) == [kept.run]
