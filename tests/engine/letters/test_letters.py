"""Dead letters by the app: what lands there, how it is found, grouped, purged and marked."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from dying import UNKNOWN, ends

from weft import NotFound, Weft
from weft.core.letters import fingerprint_of
from weft.errors import InvalidOption


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


async def test_a_deadline_that_ends_the_retries_tells_what_the_last_one_failed_with(app, worker):
    @app.task(retries=5, retry_delay="1m", deadline="300ms")
    async def fetch() -> None:
        raise ConnectionError("no answer") from TimeoutError("30 s")

    run = await fetch.enqueue()
    await ends(run)
    error = (await app.dlq.get(run.id)).error
    assert error["type"] == "DeadlineExceeded"
    assert [(cause["type"], cause["message"]) for cause in error["causes"]] == [
        ("ConnectionError", "no answer"),
        ("TimeoutError", "30 s"),
    ]
    assert "no answer" in error["traceback"]


async def test_the_same_verbs_without_a_loop(app, ship, worker):
    run = await ship.enqueue("x")
    await ends(run)
    sync = app.dlq.sync

    def verbs() -> list[object]:
        return [
            len(sync.list(task="ship")),
            sync.list()[0].id == run.id,
            sync.find(task="ship") == [run.id],
            sync.groups()[0].count,
            sync.get(run.id).input,
            sync.investigate(run.id, "seen").investigated.note,
            sync.replay(run.id).id != run.id,
            sync.replay_many(all=True, dry_run=True).matched >= 0,
        ]

    assert await asyncio.to_thread(verbs) == [1, True, True, 1, {"how": "x"}, "seen", True, True]
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
