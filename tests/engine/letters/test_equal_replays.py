"""Replays of letters whose calls count as one with others."""

from __future__ import annotations

import asyncio

import pytest
from dying import dead, ends

from weft import Conflict
from weft.errors import Unavailable


async def test_later_equal_calls_join_a_replay(app, shaky, start_worker):
    shaky = shaky(unique_for="1h")
    worker = await start_worker(queues=["money"])
    letter, other = await dead(shaky, 1), await dead(shaky, 2)
    await worker.stop()

    new = await app.dlq.replay(letter.id)

    joined = await shaky.enqueue(1)
    assert joined.id == new.id and joined.deduplicated
    assert (await app.dlq.replay(other.id)).id != new.id
    await start_worker(queues=["money"])
    assert await joined.result(10) == "charged 1"
    assert (await shaky.enqueue(1)).id == new.id


async def test_a_replay_beside_an_active_equal_run_conflicts_and_names_it_unless_forced(app, shaky, start_worker):
    shaky = shaky(unique_for="1h")
    worker = await start_worker(queues=["money"])
    letter, other = await dead(shaky, 1), await dead(shaky, 2)
    await worker.stop()
    active = await shaky.enqueue(1)

    with pytest.raises(Conflict, match=f"active as run {active.id}") as caught:
        await app.dlq.replay(letter.id)
    assert caught.value.facts["active"] == active.id
    report = await app.dlq.replay_many(task="shaky")
    assert report.skipped == {letter.id: f"active {active.id}"} and list(report.replayed) == [other.id]

    # Forced, it starts; the record stays with who had it.
    forced = await app.dlq.replay(letter.id, force=True)
    assert forced.id != active.id
    assert (await shaky.enqueue(1)).id == active.id
    await start_worker(queues=["money"])
    assert await forced.result(10) == "charged 1"
    await ends(active, app.runs.get(report.replayed[other.id]))


async def test_a_refused_replay_starts_once_the_other_has_ended(app, shaky, start_worker):
    shaky = shaky(unique_for="1h")
    worker = await start_worker(queues=["money"])
    letter = await dead(shaky, 1)
    await worker.stop()
    active = await shaky.enqueue(1)
    with pytest.raises(Conflict):
        await app.dlq.replay(letter.id)
    await active.cancel()

    new = await app.dlq.replay(letter.id)

    with pytest.raises(Conflict, match="was replayed before"):
        await app.dlq.replay(letter.id)
    assert (await shaky.enqueue(1)).id == new.id
    await new.cancel()


async def test_of_equal_letters_one_is_replayed_at_a_time(app, shaky, start_worker):
    shaky = shaky(unique_for="1h")
    worker = await start_worker(queues=["money"])
    letters = [await dead(shaky, 1) for _ in range(3)]
    await worker.stop()

    report = await app.dlq.replay_many(task="shaky")

    ((_, new),) = report.replayed.items()
    assert len(report.skipped) == 2 and set(report.skipped.values()) == {f"active {new}"}
    await start_worker(queues=["money"])
    assert await app.runs.get(new).result(10) == "charged 1"
    # What completed is in nobody's way: the next one starts and has the record.
    (left, *_) = report.skipped
    again = await app.dlq.replay(left)
    assert await again.result(10) == "charged 1"
    assert (await shaky.enqueue(1)).id == again.id
    assert {letter.id for letter in letters} == {*report.replayed, *report.skipped}


async def test_a_replay_begins_a_window_of_a_throttled_task(app, shaky, start_worker):
    shaky = shaky(throttle="1h")
    await start_worker(queues=["money"])
    letter = await dead(shaky, 1)
    # The window that the letter began is still open: an order to replay it counts more.
    assert (await shaky.enqueue(1)).id == letter.id

    new = await app.dlq.replay(letter.id)

    assert await new.result(10) == "charged 1"
    assert (await shaky.enqueue(1)).id == new.id


async def test_a_debounced_call_that_waits_is_in_the_way_of_a_replay(app, shaky, start_worker, advance):
    shaky = shaky(debounce="1h")
    await start_worker(queues=["money"])
    letter = await shaky.enqueue(1)
    await advance(3_700_000)
    await ends(letter)
    waiting = await shaky.enqueue(1)
    assert waiting.id != letter.id

    with pytest.raises(Conflict, match=f"active as run {waiting.id}"):
        await app.dlq.replay(letter.id)
    await waiting.cancel()
    # A replay does not wait, and later calls wait as ever.
    assert await (await app.dlq.replay(letter.id)).result(10) == "charged 1"
    later = await shaky.enqueue(1)
    assert not later.deduplicated
    await later.cancel()


async def test_many_replays_of_a_unique_letter_at_once_start_one_run(app, shaky, start_worker):
    shaky = shaky(unique_for="1h")
    await start_worker(queues=["money"])
    letter = await dead(shaky, 1)

    told = await asyncio.gather(*(app.dlq.replay(letter.id) for _ in range(20)), return_exceptions=True)

    (new,) = [each for each in told if not isinstance(each, Exception)]
    assert {type(each) for each in told if isinstance(each, Exception)} == {Conflict}
    assert await new.result(10) == "charged 1"


@pytest.mark.parametrize("dies_at", ["start", "mark"])
async def test_a_replay_of_a_unique_letter_that_died_half_way_is_finished_by_the_next(
    app, shaky, start_worker, monkeypatch, dies_at
):
    shaky = shaky(unique_for="1h")
    worker = await start_worker(queues=["money"])
    letter = await dead(shaky, 1)
    await worker.stop()
    engine = app.engine()

    async def dies(*args, **kwargs):
        raise Unavailable("the process died here")

    with monkeypatch.context() as patched:
        if dies_at == "start":
            patched.setattr(engine, "start_batch", dies)
        else:
            patched.setattr("weft.engine.replaying.mark_replays", dies)
        with pytest.raises(Unavailable):
            await app.dlq.replay(letter.id)

    new = await app.dlq.replay(letter.id)

    assert [run.id for run in await app.runs.list(status="queued", name="shaky")] == [new.id]
    assert (await shaky.enqueue(1)).id == new.id
    await start_worker(queues=["money"])
    assert await new.result(10) == "charged 1"
