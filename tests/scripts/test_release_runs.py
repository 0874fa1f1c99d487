"""release_runs: lets finished, archived runs expire early."""

import pytest
from partition import completed

from weft.store.archived import Ended, release_runs


@pytest.fixture
async def ended(part):
    token = await part.claimed()
    assert await part.commit(completed(token)) == ["ok"]
    return token.run


async def test_a_finished_run_expires_sooner_and_never_later(part, ns, p, ended):
    key = part.keys.run(p, ended)
    assert await release_runs(ns, p, [Ended(ended, 2)], hot_ms=60_000) == ["released"]
    assert 0 < part.raw.pttl(key) <= 60_000

    assert await release_runs(ns, p, [Ended(ended, 2)], hot_ms=900_000) == ["released"]
    assert part.raw.pttl(key) <= 60_000


async def test_its_blobs_go_with_it(part, ns, p, ended):
    given, result = part.keys.blob(p, ended, "a"), part.keys.blob(p, ended, "b")
    part.raw.set(given, "x", px=3_600_000)
    part.raw.set(result, "x", px=3_600_000)
    await release_runs(ns, p, [Ended(ended, 2, "a", "b")], hot_ms=60_000)
    assert part.raw.pttl(given) <= 60_000 and part.raw.pttl(result) <= 60_000


async def test_a_run_of_which_the_archive_lacks_something_is_kept(part, ns, p, ended):
    before = part.raw.pttl(part.keys.run(p, ended))
    assert await release_runs(ns, p, [Ended(ended, 1)], hot_ms=60_000) == ["kept"]
    part.raw.hset(part.keys.run(p, ended), "logged", 3)
    assert await release_runs(ns, p, [Ended(ended, 2)], hot_ms=60_000) == ["logged 3"]
    assert part.raw.pttl(part.keys.run(p, ended)) > before - 10_000


async def test_log_lines_that_are_archived_go_with_it(part, ns, p, ended):
    lines = part.keys.tasklog(p, ended)
    part.raw.hset(part.keys.run(p, ended), "logged", 3)
    part.raw.rpush(lines, "x")
    part.raw.pexpire(lines, 3_600_000)
    assert await release_runs(ns, p, [Ended(ended, 2, logged=2)], hot_ms=60_000) == ["logged 3"]
    assert await release_runs(ns, p, [Ended(ended, 2, logged=3)], hot_ms=60_000) == ["released"]
    assert part.raw.pttl(lines) <= 60_000


@pytest.mark.leaves("open runs")
async def test_an_open_run_is_kept_and_one_that_is_gone_does_no_harm(part, ns, p):
    (run,) = await part.start()
    before = part.snapshot()
    assert await release_runs(ns, p, [Ended(run, 1), Ended("r0-gone", 1)], hot_ms=1) == ["kept", "gone"]
    assert part.snapshot() == before


async def test_it_refuses_other_epochs(part, ns, p, ended, refuses_other_epochs):
    await refuses_other_epochs(lambda: release_runs(ns, p, [Ended(ended, 2)], hot_ms=1))
