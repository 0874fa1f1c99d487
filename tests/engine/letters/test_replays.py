"""Replays of dead letters: a new run, once, one or many at a time."""

from __future__ import annotations

import asyncio

import pytest
from dying import UNKNOWN, ends

from weft import Conflict, NotFound, RunStatus
from weft.errors import InvalidOption, Unavailable


async def test_a_replay_is_a_new_run_and_both_show_the_link(app, charge, worker):
    old = await charge.options(idempotency_key="k", delay="10ms", priority=8).enqueue(7, "m" * 9_000)
    await ends(old)

    new = await app.dlq.replay(old.id)

    assert await new.result(timeout=30) == "charged 7mmmmmmmmmm"
    info, before = await new.info(), await old.info()
    assert (info.replay_of, before.replayed_as, before.status) == (old.id, new.id, RunStatus.FAILED)
    assert (info.queue, info.priority, info.idempotency_key, info.tags) == ("money", 8, "", {"team": "a"})
    assert (await app.dlq.get(old.id)).replayed_as == new.id
    # The key still means the first run.
    assert (await charge.options(idempotency_key="k").enqueue(7, "m" * 9_000)).id == old.id


async def test_a_second_replay_conflicts_unless_forced(app, charge, worker):
    old = await charge.enqueue(7)
    await ends(old)
    new = await app.dlq.replay(old.id)
    with pytest.raises(Conflict, match=f"replayed before, as {new.id}"):
        await app.dlq.replay(old.id)
    again = await app.dlq.replay(old.id, force=True)
    assert again.id != new.id
    await ends(new, again)
    assert (await old.info()).replayed_as == again.id


async def test_many_replays_at_once_start_one_run(app, charge, worker):
    old = await charge.enqueue(7)
    await ends(old)
    got = await asyncio.gather(*(app.dlq.replay(old.id) for _ in range(20)), return_exceptions=True)
    won = [each for each in got if not isinstance(each, Exception)]
    assert len(won) == 1 and all(isinstance(each, Conflict) for each in got if each is not won[0])
    await ends(*won)
    assert [info.replay_of for info in await app.runs.list(name="charge")].count(old.id) == 1


@pytest.mark.parametrize("dies_at", ["start_batch", "mark"])
async def test_a_replay_that_died_half_way_is_finished_by_the_next(app, charge, worker, monkeypatch, dies_at):
    old = await charge.enqueue(7, "m" * 9_000)
    await ends(old)

    async def die(*args, **options):
        raise Unavailable("gone")

    with monkeypatch.context() as patch:
        if dies_at == "mark":
            patch.setattr("weft.engine.replaying.mark_replays", die)
        else:
            patch.setattr("weft.engine.engine.Engine.start_batch", die)
        with pytest.raises(Unavailable):
            await app.dlq.replay(old.id)

    new = await app.dlq.replay(old.id)

    assert (await new.result(timeout=30)).startswith("charged 7")
    assert (await old.info()).replayed_as == new.id
    assert [info.replay_of for info in await app.runs.list(name="charge")].count(old.id) == 1


async def test_only_a_failed_run_can_be_replayed(app, charge, worker):
    run = await charge.enqueue(2)
    await ends(run)
    with pytest.raises(Conflict, match="has not failed"):
        await app.dlq.replay(run.id)
    with pytest.raises(NotFound):
        await app.dlq.replay(UNKNOWN)
    with pytest.raises(NotFound):
        await app.dlq.get(run.id)


async def test_a_replay_that_fails_is_a_dead_letter_of_its_own(app, ship, worker):
    old = await ship.enqueue("x")
    await ends(old)
    new = await app.dlq.replay(old.id)
    await ends(new)
    assert [(letter.id, letter.replay_of) for letter in await app.dlq.list()] == [(new.id, old.id), (old.id, "")]


async def test_many_are_replayed_with_preview_and_progress(app, charge, ship, worker, monkeypatch):
    monkeypatch.setattr("weft.engine.letters.PAGE", 2)
    runs = [await charge.enqueue(n) for n in (1, 3, 5, 7, 9)]
    await ends(*runs, await ship.enqueue("x"))
    await app.dlq.replay(runs[0].id)

    preview = await app.dlq.replay_many(task="charge", dry_run=True)
    assert (preview.matched, preview.replayed) == (4, {})

    seen: list[tuple[int, int]] = []
    report = await app.dlq.replay_many(task="charge", progress=lambda done, of: seen.append((done, of)))

    assert set(report.replayed) == {run.id for run in runs[1:]} and report.skipped == {}
    assert seen[-1] == (4, 4) and seen == sorted(seen)
    assert sorted([await app.runs.get(new).result(timeout=30) for new in report.replayed.values()]) == [
        f"charged {n}" for n in (3, 5, 7, 9)
    ]
    again = await app.dlq.replay_many(ids=[run.id for run in runs] + [UNKNOWN])
    assert (again.replayed, again.skipped[UNKNOWN]) == ({}, "gone")
    assert again.skipped[runs[1].id] == f"replayed {report.replayed[runs[1].id]}"
    assert (await app.dlq.replay_many(all=True, dry_run=True)).matched == 1
    assert (await app.dlq.replay_many(all=True, force=True, dry_run=True)).matched == 6
    await ends(await app.dlq.replay(runs[0].id, force=True))


async def test_many_need_to_be_named(app):
    for bad in ({}, {"ids": [], "all": True}, {"task": "x", "all": True}, {"ids": UNKNOWN}):
        with pytest.raises(InvalidOption):
            await app.dlq.replay_many(**bad)
        with pytest.raises(InvalidOption):
            await app.dlq.purge(**bad)
    with pytest.raises(NotFound):
        await app.dlq.purge(ids=["not a run"])
