"""Readers whose database is not the one that the namespace is archived to: they are told, and not that nothing ever was."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from weft import NotFound, Weft
from weft.ids import partition_of


@pytest.fixture
async def mistaken(server, namespace, tmp_path):
    """The same store, read with another database."""
    url = f"sqlite:///{tmp_path / 'mistaken.sqlite'}"
    async with Weft("mistaken", redis_url=server.url, namespace=namespace, database_url=url) as other:
        yield other


@pytest.fixture
async def archived(app, start_worker, archive, raw):
    """A run that only the archive has."""

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    await start_worker()
    run = await add.enqueue(1, 2)
    await run.result(10)
    await archive()
    raw.delete(app.engine().ns.keys.run(partition_of(run.id), run.id))
    return run


@pytest.mark.parametrize("made", [False, True])
async def test_a_run_of_another_database_is_not_called_unknown(archived, mistaken, made):
    if made:
        await mistaken.retention.show()
        from weft.engine.lag import migrate_database

        await migrate_database(mistaken.engine().cold, apply=True)

    for ask in (mistaken.runs.get(archived.id).info, mistaken.runs.get(archived.id).result):
        with pytest.raises(
            NotFound, match=r"the archive has it, and that is .*, not sqlite:.*mistaken.sqlite: set WEFT_"
        ):
            await ask()
    assert await archived.result() == 3


async def test_a_run_that_never_was_is_called_so_by_the_right_database(archived, app):
    unknown = archived.id[:-3] + "000"
    with pytest.raises(NotFound, match="it never was, or it is no longer kept"):
        await app.runs.get(unknown).info()


async def test_lists_without_their_archive_say_so_once(archived, mistaken, app, caplog):
    assert [info.id for info in await app.runs.list()] == [archived.id] and not caplog.records

    assert await mistaken.runs.list() == [] and await mistaken.runs.count() == {}

    (said,) = [record for record in caplog.records if "lists and counts lack" in record.getMessage()]
    assert "mistaken.sqlite" in said.getMessage()


async def test_a_recovery_by_another_database_is_refused(archived, mistaken, server, namespace, tmp_path):
    env = {
        **os.environ,
        "WEFT_REDIS_URL": server.url,
        "WEFT_NAMESPACE": namespace,
        "WEFT_DATABASE_URL": f"sqlite:///{tmp_path / 'mistaken.sqlite'}",
    }
    command = [sys.executable, "-m", "weft", "recover", "--dry-run"]
    done = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True, cwd=tmp_path)

    assert done.returncode == 1 and "is archived to" in done.stderr and "set WEFT_DATABASE_URL" in done.stderr
    assert not (tmp_path / "mistaken.sqlite").exists()
