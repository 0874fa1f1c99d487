"""mark_archived: notes how far the log is archived, and trims what was archived long enough ago."""

import pytest

from weft.errors import ForeignArchive
from weft.store.archived import mark_archived, read_mark


async def mark(ns, p, entry, *, indexed=None, n=0, database="d1", hot_ms=300_000):
    name, upto = f"url of {database}", indexed or entry
    return await mark_archived(ns, p, database=database, name=name, entry=entry, indexed=upto, n=n, hot_ms=hot_ms)


async def entries(part, p):
    return [entry.decode() for entry, _ in part.raw.xrange(part.keys.log(p))]


@pytest.mark.leaves("open runs")
async def test_the_mark_tells_the_entry_and_how_many_are_behind_it(part, ns, p):
    for _ in range(3):
        await part.start()
    first, second, last = await entries(part, p)

    assert await mark(ns, p, first, n=1) == 0
    found = await read_mark(ns, p)
    assert (found.database, found.name, found.entry, found.lag_entries) == ("d1", "url of d1", first, 2)

    await mark(ns, p, second, n=1)
    assert (await read_mark(ns, p)).lag_entries == 1
    await mark(ns, p, last, n=1)
    found = await read_mark(ns, p)
    assert (found.lag_entries, found.lag_ms) == (0, 0)


@pytest.mark.leaves("open runs")
async def test_who_comes_to_the_end_knows_the_number_whatever_was_trimmed_before(part, ns, p):
    for _ in range(3):
        await part.start()
    part.raw.xtrim(part.keys.log(p), maxlen=1, approximate=False)
    (last,) = await entries(part, p)

    await mark(ns, p, last, n=1)

    assert part.raw.hget(part.keys.archived(p), "passed") == b"3"


async def test_a_log_without_an_entry_is_marked_too(part, ns, p):
    assert await mark(ns, p, "0-0") == 0
    found = await read_mark(ns, p)
    assert (found.entry, found.lag_entries) == ("0-0", 0)


async def test_another_database_is_refused_and_nothing_is_changed(part, ns, p):
    await mark(ns, p, "0-0")
    before = part.snapshot()

    with pytest.raises(ForeignArchive, match="url of d1"):
        await mark(ns, p, "0-0", database="d2")

    assert part.snapshot() == before


@pytest.mark.leaves("history")
async def test_what_is_archived_goes_when_it_is_old_enough_and_nothing_else(part, ns, p):
    for _ in range(300):
        part.raw.xadd(part.keys.log(p), {"at": "1", "by": "c", "r0-x": "1|held||"})
    ids = await entries(part, p)

    assert await mark(ns, p, ids[250], n=251) == 0
    assert await entries(part, p) == ids

    trimmed = await mark(ns, p, ids[250], hot_ms=-10_000)
    left = await entries(part, p)
    assert 0 < trimmed <= 250 and left == ids[trimmed:] and ids[250] in left


@pytest.mark.leaves("history")
async def test_what_is_kept_and_not_indexed_stays_however_old_it_is(part, ns, p):
    for _ in range(300):
        part.raw.xadd(part.keys.log(p), {"at": "1", "by": "c", "r0-x": "1|held||"})
    ids = await entries(part, p)

    assert await mark(ns, p, ids[250], indexed="0-0", n=251, hot_ms=-10_000) == 0
    await mark(ns, p, ids[250], indexed=ids[120], hot_ms=-10_000)

    assert ids[120] in await entries(part, p)
    assert part.raw.hmget(part.keys.archived(p), "entry", "indexed") == [ids[250].encode(), ids[120].encode()]


@pytest.mark.leaves("history")
async def test_a_log_whose_entries_are_ahead_of_the_clock_does_not_grow_until_that_has_caught_up(part, ns, p):
    ahead = part.raw.time()[0] * 1000 + 86_400_000
    part.raw.xadd(part.keys.log(p), {"at": "1", "by": "c", "r0-x": "1|held||"}, id=f"{ahead}-0")
    for _ in range(299):
        part.raw.xadd(part.keys.log(p), {"at": "1", "by": "c", "r0-x": "1|held||"})
    ids = await entries(part, p)
    assert ids[299] == f"{ahead}-299"

    trimmed = await mark(ns, p, ids[250], n=251)

    left = await entries(part, p)
    assert 0 < trimmed <= 250 and left == ids[trimmed:] and ids[250] in left


async def test_it_refuses_other_epochs(ns, p, refuses_other_epochs):
    await refuses_other_epochs(lambda: mark(ns, p, "0-0"))


@pytest.mark.leaves("open runs")
async def test_a_log_that_is_archived_from_its_first_entry_is_whole(part, ns, p):
    await part.start()
    await mark(ns, p, "0-0")
    assert part.raw.hget(part.keys.archived(p), "whole") == b"1"

    (entry,) = await entries(part, p)
    await mark(ns, p, entry, n=1)
    assert part.raw.hget(part.keys.archived(p), "whole") == b"1"


@pytest.mark.leaves("open runs")
async def test_a_log_that_lost_entries_before_its_archive_is_not_whole(part, ns, p):
    for _ in range(2):
        await part.start()
    part.raw.xtrim(part.keys.log(p), maxlen=1, approximate=False)

    await mark(ns, p, "0-0")
    assert part.raw.hget(part.keys.archived(p), "whole") is None


@pytest.mark.leaves("open runs")
async def test_an_archive_that_goes_on_at_an_entry_may_lack_what_was_before(part, ns, p):
    await part.start()
    (entry,) = await entries(part, p)

    await mark(ns, p, entry)
    assert part.raw.hget(part.keys.archived(p), "whole") is None
