"""What was observed of tasks elsewhere is archived like everything else, and read from whichever store has it."""

from __future__ import annotations

import pytest

from weft import Conflict, NotFound
from weft.errors import ArchiveUnavailable


@pytest.fixture
def forget(app, raw):
    """Lets the hot store forget all that was published."""

    def run(families=("status", "status_history", "status_children", "status_feed")):
        ns = app.engine().ns
        for p in range(ns.partitions):
            for family in families:
                for key in raw.scan_iter(f"{ns.keys.prefix(p)}{family}*"):
                    raw.delete(key)
            raw.xtrim(ns.keys.log(p), maxlen=0, approximate=False)

    return run


async def test_a_task_that_the_hot_store_has_forgotten_is_told_by_the_archive(app, archive, forget, rows):
    said = [
        await app.status.publish("child", f"s{n}", {"n": n}, parent_id="above" if n == 0 else None) for n in range(3)
    ]
    await archive()
    assert len(await rows("statuses")) == 3 and await rows("runs") == [] and await rows("gaps") == []
    assert await archive() == 0, "once"
    forget()

    assert await app.status.latest("child") == said[2] and said[2].parent_id == "above"
    assert await app.status.history("child") == said[::-1]
    assert await app.status.history("child", limit=1, before=said[1].id) == said[:1]
    assert await app.status.children("above") == [said[2]]
    with pytest.raises(NotFound):
        await app.status.latest("nobody")


async def test_a_history_goes_on_in_the_archive_where_the_hot_one_ends(app, archive, monkeypatch):
    monkeypatch.setenv("WEFT_STATUS_HISTORY", "2")
    said = [await app.status.publish("t", f"s{n}") for n in range(5)]
    await archive()
    said.append(await app.status.publish("t", "s5"))

    assert await app.status.history("t") == said[::-1]
    assert await app.status.history("t", limit=4) == said[:1:-1]
    assert await app.status.history("t", limit=2, before=said[3].id) == [said[2], said[1]]


async def test_children_of_both_stores_are_told_together(app, archive, forget):
    old = await app.status.publish("old", "done", parent_id="above")
    await archive()
    forget()
    new = await app.status.publish("new", "running", parent_id="above")
    assert await app.status.children("above") == [old, new]
    assert await app.status.children("above", limit=1) == [new], "the hot store has as many as were asked for"


async def test_a_slow_reader_of_the_feed_goes_on_in_the_archive(app, archive, raw, one_home):
    said = [await app.status.publish("t", "s0")]
    cursor = (await app.status.feed()).cursor
    said += [await app.status.publish("t", f"s{n}") for n in range(1, 6)]
    raw.xtrim(app.engine().ns.keys.status_feed(0), maxlen=2, approximate=False)
    await app.status.publish("t", "s6")
    await archive()

    seen: list[str] = []
    while page := (read := await app.status.feed(after=cursor, limit=2)).observations:
        seen += [each.status for each in page]
        cursor = read.cursor
    assert seen == [f"s{n}" for n in range(1, 7)]


async def test_a_reader_of_a_feed_that_was_lost_goes_on_in_the_archive(app, archive, raw, one_home):
    await app.status.publish("t", "s0")
    cursor = (await app.status.feed()).cursor
    for n in range(1, 4):
        await app.status.publish("t", f"s{n}")
    await archive()
    raw.delete(app.engine().ns.keys.status_feed(0))

    page = await app.status.feed(after=cursor, limit=2)
    assert [each.status for each in page.observations] == ["s1", "s2"]
    await app.status.publish("t", "s4")
    await archive()
    rest = await app.status.feed(after=page.cursor)
    assert [each.status for each in rest.observations] == ["s3", "s4"]
    assert (await app.status.feed(after=rest.cursor)).observations == []


async def test_what_left_the_feed_before_it_was_archived_is_waited_for(app, archive, raw, one_home):
    await app.status.publish("t", "s0")
    await archive()
    cursor = (await app.status.feed()).cursor
    for n in range(1, 4):
        await app.status.publish("t", f"s{n}")
    raw.xtrim(app.engine().ns.keys.status_feed(0), maxlen=1, approximate=False)

    with pytest.raises(ArchiveUnavailable, match="not archived yet"):
        await app.status.feed(after=cursor)
    await archive()
    assert [each.status for each in (await app.status.feed(after=cursor)).observations] == ["s1", "s2", "s3"]


async def test_runs_and_observations_in_one_log_do_not_get_in_each_others_way(app, archive, start_worker, rows):
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    await start_worker()
    runs = []
    for n in range(20):
        runs.append(await add.enqueue(n, 1))
        await app.status.publish(f"t{n}", "seen", {"run": runs[-1].id})
    for run in runs:
        await run.result(timeout=30)
    await archive()

    assert {row.status for row in await rows("runs")} == {"completed"} and len(await rows("runs")) == 20
    assert len(await rows("statuses")) == 20 and await rows("gaps") == []
    assert len(await runs[0].history()) == 2


@pytest.fixture
def lose(app, raw, archivers):
    """Wipes the store and has it rebuilt."""

    async def run() -> None:
        raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
        for each in await archivers():
            assert await each._recover()

    return run


@pytest.mark.leaves("history")
async def test_a_rebuilt_store_knows_what_was_observed(app, archive, lose):
    before = await app.status.feed()
    said = [
        await app.status.publish("child", f"s{n}", {"n": n}, parent_id="above" if n == 0 else None, event_id=f"e{n}")
        for n in range(4)
    ]
    said.append(await app.status.publish("other", "done"))
    await archive()

    await lose()

    # Nobody has missed anything: not who was there before the first, nor who comes now.
    for page in (await app.status.feed(after=before.cursor), await app.status.feed()):
        assert {(one.id, one.task_id, one.status) for one in page.observations} == {
            (one.id, one.task_id, one.status) for one in said
        } and len(page.observations) == len(said)
    again = await app.status.publish("child", "s1", {"n": 1}, event_id="e1")
    assert again.deduplicated and again.id == said[1].id
    assert (await app.status.publish("other", "done")).deduplicated
    with pytest.raises(Conflict, match="belongs to 'above'"):
        await app.status.publish("child", "s9", parent_id="elsewhere")
    assert await app.status.history("child") == said[3::-1]
    assert await app.status.children("above") == [said[3]]
    later = await app.status.publish("other", "over")
    assert (await app.status.feed(after=page.cursor)).observations == [later]


async def test_a_feed_that_was_longer_goes_on_in_the_archive(app, archive, lose, monkeypatch):
    monkeypatch.setenv("WEFT_STATUS_FEED", "2")
    before = await app.status.feed()
    said = [await app.status.publish(f"t{n}", "done") for n in range(9)]
    await archive()

    await lose()

    cursor, seen = before.cursor, []
    while page := (await app.status.feed(after=cursor, limit=4)):
        if not page.observations:
            break
        cursor, seen = page.cursor, [*seen, *page.observations]
    assert sorted(one.task_id for one in seen) == sorted(one.task_id for one in said)
    assert [one.status for one in await app.status.history("t0")] == ["done"]
