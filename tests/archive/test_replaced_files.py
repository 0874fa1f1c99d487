"""The file of an SQLite archive is deleted, moved or replaced while it is open: nothing is written to the one that is gone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from weft.errors import ArchiveUnavailable, ForeignArchive, HistoryExpired

pytestmark = pytest.mark.leaves("history")


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "archive.sqlite"


@pytest.fixture
def database_url(file) -> str:
    """SQLite only: a server keeps its files to itself."""
    return f"sqlite:///{file}"


@pytest.fixture
def chain(app):
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    graph = app.graph("chain")
    graph.task("first", call="add", with_={"a": 1, "b": 1})
    graph.task("second", call="add", with_={"a": "${first}", "b": 1}, after="first")
    return graph


@pytest.fixture
async def archiver(archivers):
    """One archiver of each partition that stays open, as a function that lets all archive what there is."""
    made = await archivers()

    async def run() -> None:
        for each in made:
            try:
                await each.drain()
            except ArchiveUnavailable:
                each.on_fault()
                raise

    return run


def take_away(file: Path, to: Path) -> None:
    """Moves a database with what belongs to it."""
    for suffix in ("", "-wal", "-shm"):
        if (part := Path(f"{file}{suffix}")).exists():
            part.rename(f"{to}{suffix}")


def copy(file: Path, to: Path) -> None:
    with sqlite3.connect(file) as source, sqlite3.connect(to) as target:
        source.backup(target)
    source.close()
    target.close()


async def test_a_file_that_is_gone_takes_nothing_and_is_waited_for(
    chain, start_worker, archiver, file, tmp_path, logged, rows
):
    await start_worker()
    await (await chain.start()).result(20)
    await archiver()

    take_away(file, tmp_path / "elsewhere")
    later = await chain.start()
    await later.result(20)
    for _ in range(2):
        with pytest.raises(ArchiveUnavailable, match="its file is gone"):
            await archiver()
    waiting = logged()

    assert not file.exists() and [run for run, _, _ in waiting if run == later.id]
    take_away(tmp_path / "elsewhere", file)
    await archiver()
    assert {(event.run, event.seq, event.entry) for event in await rows("events")} >= waiting


async def test_a_file_that_goes_within_a_transaction_has_kept_nothing(chain, start_worker, archiver, file, monkeypatch):
    from weft.archive import bulk

    await start_worker()
    await (await chain.start()).result(20)
    await archiver()
    honest = bulk.insert

    async def insert(*args, **options):
        file.unlink(missing_ok=True)
        await honest(*args, **options)

    monkeypatch.setattr(bulk, "insert", insert)
    await (await chain.start()).result(20)
    with pytest.raises(ArchiveUnavailable, match="its file is gone"):
        await archiver()


async def test_an_older_copy_is_gone_on_with_and_gets_what_it_lacks(
    app, chain, start_worker, archiver, file, tmp_path, logged, rows
):
    await start_worker()
    await archiver()
    copy(file, tmp_path / "older")
    await (await chain.start()).result(20)
    await archiver()

    take_away(file, tmp_path / "elsewhere")
    (tmp_path / "older").rename(file)
    run = await chain.start()
    await run.result(20)
    with pytest.raises(ArchiveUnavailable, match="was replaced"):
        await archiver()
    await archiver()

    assert {(event.run, event.seq, event.entry) for event in await rows("events")} == logged()
    # The definition had been stored in the file that is gone.
    (version,) = await app.definitions.versions("chain")
    assert version.digest in {row.digest for row in await rows("blobs")}


async def test_another_database_in_its_place_is_refused(chain, start_worker, archiver, file, tmp_path):
    await start_worker()
    await (await chain.start()).result(20)
    await archiver()

    take_away(file, tmp_path / "elsewhere")
    sqlite3.connect(file).close()
    file.touch()
    await (await chain.start()).result(20)
    with pytest.raises(ArchiveUnavailable, match="was replaced"):
        await archiver()
    with pytest.raises(ForeignArchive):
        await archiver()


@pytest.mark.leaves("open runs")
async def test_runs_that_went_on_behind_an_older_copy_are_marked_and_not_run_again(
    app, chain, start_worker, archiver, archivers, file, tmp_path, raw, forget
):
    ran = []

    @app.task
    async def once(n: int) -> int:
        ran.append(n)
        return n

    ended, untouched, delayed = [await once.options(delay="1h").enqueue(n) for n in range(3)]
    await archiver()
    copy(file, tmp_path / "older")
    worker = await start_worker()
    await ended.reschedule(delay="0s")
    assert await ended.result(20) == 0
    await delayed.reschedule(delay="2h")
    await worker.stop()
    await archiver()
    forget(ended)
    for p in range(app.engine().ns.partitions):
        raw.xtrim(app.engine().ns.keys.log(p), maxlen=0)

    take_away(file, tmp_path / "elsewhere")
    (tmp_path / "older").rename(file)
    with pytest.raises(ArchiveUnavailable, match="was replaced"):
        await archiver()
    await archiver()

    reader = app.engine().cold.reader
    assert [(await reader.run(run.id)).state.gap for run in (ended, delayed, untouched)] == [1, 1, 0]
    with pytest.raises(HistoryExpired, match="its archive has a gap"):
        await ended.info()
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
    for each in await archivers():
        assert await each._recover()
    await start_worker()
    assert await untouched.status() == "queued" and ran == [0]
