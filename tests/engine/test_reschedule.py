"""When a run begins, and how that is changed: delay, eta, reschedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from weft import Conflict, NotFound
from weft.errors import DefinitionError, InvalidOption

SOON = timedelta(seconds=5)


async def test_an_eta_is_the_moment_it_is_due(app, add):
    eta = datetime.now(UTC) + timedelta(hours=2)
    run = await add.options(eta=eta.astimezone(timezone(timedelta(hours=9)))).enqueue(1, 2)
    assert abs((await run.info()).due_at - eta) < timedelta(milliseconds=2)
    assert await run.cancel()


async def test_an_eta_in_the_past_is_now(app, add, start_worker):
    await start_worker()
    run = await add.options(eta=datetime(1850, 1, 1, tzinfo=UTC)).enqueue(1, 2)
    assert await run.result(timeout=30) == 3
    assert [event.type for event in await run.history()] == ["queued", "completed"]


@pytest.mark.parametrize(
    ("eta", "why"),
    [
        (datetime(2030, 1, 1), "no time zone.*aware"),
        (datetime(9999, 12, 31, tzinfo=UTC), "more than ten years"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), "more than ten years"),
        ("tomorrow", "not a datetime"),
        (1_700_000_000, "not a datetime"),
        (None, "not a datetime"),
    ],
)
def test_an_eta_that_is_no_moment_is_refused(app, add, eta, why):
    with pytest.raises(InvalidOption, match=f"eta.*{why}"):
        add.options(eta=eta)


def test_delay_and_eta_together_are_refused_and_the_newer_call_counts(app, add):
    now = datetime.now(UTC)
    with pytest.raises(InvalidOption, match="delay and eta"):
        add.options(eta=now, delay=1)
    spec = add.options(delay="1h").options(eta=now)._spec
    assert (spec.delay_ms, spec.due_ms > 0) == (0, True)
    spec = add.options(eta=now).options(delay="1h")._spec
    assert (spec.delay_ms, spec.due_ms) == (3_600_000, 0)


def test_an_eta_belongs_to_a_call(app):
    with pytest.raises(DefinitionError, match="belongs to one call"):
        app.task(name="x", eta=datetime.now(UTC))(lambda: None)


async def test_a_delay_is_changed_and_then_dropped(app, add, start_worker):
    await start_worker()
    run = await add.options(delay="1h").enqueue(1, 2)

    due = await run.reschedule(delay="5m")
    assert abs(due - datetime.now(UTC) - timedelta(minutes=5)) < SOON
    assert (await run.info()).due_at == due

    eta = datetime.now(UTC) + timedelta(days=3)
    assert abs(await run.reschedule(eta=eta) - eta) < timedelta(milliseconds=2)

    await run.reschedule(delay=0)
    assert await run.result(timeout=30) == 3
    history = await run.history()
    assert [event.type for event in history] == ["queued", *["rescheduled"] * 3, "completed"]
    assert isinstance(history[1].data["due"], int)


def test_without_a_loop(app, add):
    run = add.options(delay="1h").sync.enqueue(1, 2)
    assert run.sync.reschedule(delay="2h") > datetime.now(UTC) + timedelta(hours=1)
    assert run.sync.cancel()


async def test_a_run_that_does_not_wait_is_a_conflict(app, add, start_worker):
    run = await add.enqueue(1, 2)
    with pytest.raises(Conflict, match="waits for no delay"):
        await run.reschedule(delay="1h")
    await start_worker()
    await run.result(timeout=30)
    with pytest.raises(Conflict, match="has ended"):
        await run.reschedule(delay="1h")


async def test_bad_words_change_nothing(app, add):
    run = await add.options(delay="1h").enqueue(1, 2)
    for bad in ({}, {"delay": "-5s"}, {"delay": 1, "eta": datetime.now(UTC)}, {"eta": datetime(2030, 1, 1)}):
        with pytest.raises(InvalidOption):
            await run.reschedule(**bad)
    assert len(await run.history()) == 1
    assert await run.cancel()


async def test_an_unknown_run_is_not_found(app):
    for id in ("r0-0000000000000000000000", "r900-0000000000000000000000"):
        with pytest.raises(NotFound):
            await app.runs.get(id).reschedule(delay=0)
