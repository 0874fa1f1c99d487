"""Dead letters by the app: what lands there, how it is found, grouped, replayed, purged and marked."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from weft import Conflict, Discard, Fatal, NotFound, RunStatus, Weft, current
from weft.core.letters import fingerprint_of
from weft.errors import InvalidOption, Unavailable

UNKNOWN = "r0-0000000000000000000000"


@pytest.fixture
def charge(app: Weft):
    """Fails for odd accounts on their first run; a replay succeeds."""

    @app.task(queue="money", retries=1, retry_delay="1ms", tags={"team": "a"})
    async def charge(account: int, memo: str = "") -> str:
        info = await app.runs.get(current().run_id).info()
        if account % 2 and not info.replay_of:
            raise ValueError(f"account {account} is locked by 'ann'") from KeyError(account)
        return f"charged {account}{memo[:10]}"

    return charge


@pytest.fixture
def ship(app: Weft):
    @app.task
    async def ship(how: str) -> None:
        if how == "discard":
            raise Discard("not needed")
        raise Fatal("no address")

    return ship


@pytest.fixture
async def worker(start_worker):
    return await start_worker(queues=["money", "default"])


async def ends(*runs) -> None:
    await asyncio.gather(*(run.result(timeout=30) for run in runs), return_exceptions=True)


async def test_a_run_that_used_up_its_retries_is_a_dead_letter_with_all_it_needs(app, charge, worker):
    run = await charge.options(tags={"vip": True}).enqueue(7)
    await ends(run)

    letter = await app.dlq.get(run.id)

    assert (letter.id, letter.task, letter.queue, letter.attempts, letter.crashes) == (run.id, "charge", "money", 2, 0)
    assert letter.error["type"] == "ValueError" and "Traceback" in letter.error["traceback"]
    assert letter.error["causes"] == [{"type": "KeyError", "message": "7"}]
    assert letter.input == {"account": 7}
    assert letter.worker == worker.session
    assert letter.tags == {"team": "a", "vip": "true"}
    assert abs(letter.failed_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert (letter.replay_of, letter.replayed_as, letter.investigated) == ("", "", None)
    assert [each.id for each in await app.dlq.list()] == [run.id]
    assert (await run.info()).worker == worker.session


async def test_a_dead_letter_outlives_its_result(app, charge, worker, raw, monkeypatch):
    keys = app.engine().ns.keys
    first = await charge.enqueue(1, "x" * 10_000)
    await ends(first)
    p = int(first.id[1 : first.id.index("-")])
    blob = next(iter(raw.scan_iter(keys.blob(p, first.id, "*"))))
    for key in (keys.run(p, first.id), blob):
        assert raw.pttl(key) > 13 * 86_400_000
    # The longer of the two counts.
    monkeypatch.setenv("WEFT_DLQ_RETENTION", "1s")
    second = await charge.enqueue(3)
    await ends(second)
    p = int(second.id[1 : second.id.index("-")])
    assert 1_000_000 < raw.pttl(keys.run(p, second.id)) <= 3_600_000


async def test_success_and_discard_leave_no_letter(app, charge, ship, worker):
    await ends(await charge.enqueue(2), await ship.enqueue("discard"))
    assert len(await app.dlq.list()) == 0


async def test_filters_narrow_a_listing(app, charge, ship, worker):
    one = await charge.enqueue(1)
    await ends(one)
    two = await ship.options(tags={"team": "b"}).enqueue("x")
    await ends(two)
    await app.dlq.investigate(one.id, "known")
    await app.dlq.replay(one.id)
    between = (await app.dlq.get(two.id)).failed_at

    async def found(**filters):
        return [letter.id for letter in await app.dlq.list(**filters)]

    assert await found() == [two.id, one.id]
    assert await found(task="charge") == await found(queue="money") == await found(error="ValueError") == [one.id]
    assert await found(error="fatal") == await found(tag=("team", "b")) == await found(investigated=False) == [two.id]
    assert await found(investigated=True) == await found(replayed=True) == [one.id]
    assert await found(since=between) == [two.id]
    assert await found(since="1h") == [two.id, one.id]
    assert await found(until="1h") == await found(task="nothing") == []
    assert await found(fingerprint=(await app.dlq.get(two.id)).fingerprint) == [two.id]


@pytest.mark.parametrize(
    "bad",
    [
        {"limit": 0},
        {"limit": True},
        {"cursor": "next"},
        {"cursor": "12.r0-x"},
        {"since": datetime(2026, 1, 1)},
        {"since": "-1h"},
        {"tag": "team=a"},
        {"task": 7},
        {"investigated": "yes"},
        {"taks": "charge"},
    ],
)
async def test_filters_that_make_no_sense_are_refused(app, bad):
    with pytest.raises(InvalidOption):
        await app.dlq.list(**bad)


async def test_pages_lead_on_without_gap_or_duplicate_while_letters_come_and_go(app, ship, worker):
    runs = await ship.enqueue_many([("x",)] * 25)
    await ends(*runs)
    everything = [letter.id for letter in await app.dlq.list()]
    assert sorted(everything) == sorted(run.id for run in runs)

    seen, cursor = [], ""
    while True:
        page = await app.dlq.list(limit=4, cursor=cursor)
        seen += [letter.id for letter in page]
        cursor = page.cursor
        if not cursor:
            break
        # What was shown is purged, and something new fails: neither shifts what comes next.
        await app.dlq.purge(ids=[seen[0]])
        await ends(await ship.enqueue("new"))
    assert seen == everything


async def test_a_page_that_ends_within_a_millisecond_loses_nothing(app, ship, worker, raw, monkeypatch):
    monkeypatch.setattr("weft.engine.letters.PAGE", 3)
    runs = await ship.enqueue_many([("x",)] * 12)
    await ends(*runs)
    keys = app.engine().ns.keys
    for p in range(app.engine().ns.partitions):
        # All of one moment, as when a whole batch fails in one commit.
        for run in raw.zrange(keys.dlq(p), 0, -1):
            raw.zadd(keys.dlq(p), {run: 1_700_000_000_000})
            raw.hset(keys.run(p, run.decode()), "ended", 1_700_000_000_000)
    assert sorted(letter.id for letter in await app.dlq.list()) == sorted(run.id for run in runs)
    first = await app.dlq.list(limit=5)
    rest = await app.dlq.list(limit=50, cursor=first.cursor)
    assert [len(first), len(rest)] == [5, 7]


async def test_groups_gather_errors_that_differ_only_in_values(app, charge, ship, worker):
    await ends(*[await charge.enqueue(n) for n in (1, 3, 5)], await ship.enqueue("x"))
    first, second = await app.dlq.groups()
    assert (first.task, first.type, first.count) == ("charge", "ValueError", 3)
    assert (second.task, second.type, second.count, second.message) == ("ship", "Fatal", 1, "no address")
    assert first.first_at <= first.last_at
    assert len(await app.dlq.list(fingerprint=first.fingerprint)) == 3
    assert [group.task for group in await app.dlq.groups(task="ship")] == ["ship"]


def test_a_fingerprint_looks_past_numbers_ids_and_quotes():
    def of(message: str, kind: str = "ValueError") -> str:
        return fingerprint_of("t", {"type": kind, "message": message})

    assert of("order 12 of 'ann'") == of("order 9999 of 'bob'")
    assert of("at 0x7f12 in 4f9a1c2e77") == of("at 0x1 in 00ff00ff00")
    assert of("no") != of("yes") and of("no") != of("no", "KeyError")
    assert of("x" * 10_000_000) == of("x" * 300)


# --- replay ---------------------------------------------------------------------------------------


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
            patch.setattr("weft.engine.letters.mark_replays", die)
        else:
            patch.setattr("weft.engine.engine.Engine.start_batch", die)
        with pytest.raises(Unavailable):
            await app.dlq.replay(old.id)

    new = await app.dlq.replay(old.id)

    assert (await new.result(timeout=30)).startswith("charged 7")
    assert (await old.info()).replayed_as == new.id
    assert [info.replay_of for info in await app.runs.list(name="charge")].count(old.id) == 1


# --- equal calls ----------------------------------------------------------------------------------


@pytest.fixture
def shaky(app: Weft):
    """Makes a task that fails unless it is a replay; options say which of its calls count as one."""

    def make(**options):
        @app.task(queue="money", **options)
        async def shaky(account: int) -> str:
            if not (await app.runs.get(current().run_id).info()).replay_of:
                raise ValueError("no")
            return f"charged {account}"

        return shaky

    return make


async def dead(task, *args):
    """A run of a task that has failed."""
    run = await task.enqueue(*args)
    await ends(run)
    return run


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
            patched.setattr("weft.engine.letters.mark_replays", dies)
        with pytest.raises(Unavailable):
            await app.dlq.replay(letter.id)

    new = await app.dlq.replay(letter.id)

    assert [run.id for run in await app.runs.list(status="queued", name="shaky")] == [new.id]
    assert (await shaky.enqueue(1)).id == new.id
    await start_worker(queues=["money"])
    assert await new.result(10) == "charged 1"


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


# --- purge, investigate, without a loop -----------------------------------------------------------


async def test_purging_deletes_dead_letters_and_nothing_else(app, charge, ship, worker, raw):
    dead = [await charge.enqueue(1, "m" * 9_000), await charge.enqueue(3), await ship.enqueue("x")]
    alive = await charge.enqueue(2)
    await ends(*dead, alive)

    assert await app.dlq.purge(task="charge", dry_run=True) == 2
    assert await app.dlq.purge(task="charge") == 2
    assert await app.dlq.purge(ids=[alive.id, dead[0].id]) == 0

    assert [letter.id for letter in await app.dlq.list()] == [dead[2].id]
    assert await alive.result(timeout=30) == "charged 2"
    with pytest.raises(NotFound):
        await app.runs.get(dead[0].id).info()
    assert not list(raw.scan_iter(f"{app.engine().ns.keys.namespace}:*{dead[0].id}*"))
    assert await app.dlq.purge(all=True) == 1


async def test_a_letter_is_marked_as_investigated_with_a_note(app, ship, worker):
    run = await ship.enqueue("x")
    await ends(run)
    letter = await app.dlq.investigate(run.id, "the address book was empty\nfixed", by="ann lee")
    assert (letter.investigated.by, letter.investigated.note) == ("ann-lee", "the address book was empty\nfixed")
    assert (await app.dlq.investigate(run.id, None)).investigated is None
    for note in ("", "  ", 7, "x" * 2_001):
        with pytest.raises(InvalidOption):
            await app.dlq.investigate(run.id, note)
    with pytest.raises(NotFound):
        await app.dlq.investigate(UNKNOWN, "x")


async def test_the_index_forgets_runs_that_are_gone(app, ship, worker, raw, eventually):
    run = await ship.enqueue("x")
    await ends(run)
    p = int(run.id[1 : run.id.index("-")])
    keys = app.engine().ns.keys
    raw.delete(keys.run(p, run.id))
    assert len(await app.dlq.list()) == 0
    await eventually(lambda: raw.zcard(keys.dlq(p)) == 0, within=30)


async def test_the_same_verbs_without_a_loop(app, ship, worker):
    run = await ship.enqueue("x")
    await ends(run)
    sync = app.dlq.sync

    def verbs() -> list[object]:
        return [
            len(sync.list(task="ship")),
            sync.groups()[0].count,
            sync.get(run.id).input,
            sync.investigate(run.id, "seen").investigated.note,
            sync.replay(run.id).id != run.id,
            sync.replay_many(all=True, dry_run=True).matched >= 0,
        ]

    assert await asyncio.to_thread(verbs) == [1, 1, {"how": "x"}, "seen", True, True]
    await ends(app.runs.get((await run.info()).replayed_as))
    assert await asyncio.to_thread(lambda: sync.purge(all=True)) == 2


@pytest.mark.parametrize("text", ["0", "-1d", "soon", "9999999d"])
def test_a_retention_that_makes_no_sense_is_refused(monkeypatch, text):
    from weft.errors import SettingsError
    from weft.settings import read_setting

    monkeypatch.setenv("WEFT_DLQ_RETENTION", text)
    with pytest.raises(SettingsError, match="WEFT_DLQ_RETENTION"):
        read_setting("WEFT_DLQ_RETENTION")
    # Before a worker claims anything, not when its first run fails.
    with pytest.raises(SettingsError, match="WEFT_DLQ_RETENTION"):
        Weft("x").worker()
