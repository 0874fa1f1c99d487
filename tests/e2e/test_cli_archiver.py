"""The archive from the command line: workers archive by themselves, `weft archiver` alone, `weft migrate` on request."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator

import psutil
import pytest
from cli_project import Project, archiving, until

from weft.archive.schema import HEAD


@pytest.fixture
def project(tmp_path) -> Iterator[Project]:
    with archiving(tmp_path / "shop") as project:
        yield project


def archived(project: Project, run: str) -> str:
    """Returns the status of a run in the database, or nothing."""
    path = project.root / ".weft" / "archive.sqlite"
    if not path.exists():
        return ""
    connection = sqlite3.connect(path)
    try:
        found = connection.execute("SELECT status FROM weft_runs WHERE id = ?", (run,)).fetchone()
    except sqlite3.OperationalError:  # the tables are just being made
        return ""
    finally:
        connection.close()
    return found[0] if found else ""


def test_a_worker_archives_by_itself_and_the_doctor_tells(project: Project) -> None:
    worker = project.start("worker", "--grace", "0s")
    run = project.weft("enqueue", "add", "a=1", "b=2", "--watch", "--json").documents[0]["run_id"]
    until(lambda: archived(project, run) == "completed")
    (beside,) = psutil.Process(worker.pid).children()
    assert os.getsid(beside.pid) == beside.pid, (
        "Ctrl-C in the terminal does not reach it: the worker ends it when it has drained"
    )

    told = project.weft("doctor", "--json").document["database"]
    assert told["status"] == "ok" and told["url"].endswith("/.weft/archive.sqlite") and told["schema"] == HEAD
    assert (told["lag_entries"], told["gaps"]) == (0, 0)
    assert "weft_archive_lag_entries 0" in project.weft("queues", "ls", "--prometheus").out
    worker.process.terminate()
    assert worker.wait() == 0


def test_a_worker_that_is_told_not_to_archives_nothing_and_an_archiver_does(project: Project) -> None:
    worker = project.start("worker", "--grace", "0s", "--no-archive")
    run = project.weft("enqueue", "add", "a=1", "b=2", "--watch", "--json").documents[0]["run_id"]
    worker.process.terminate()
    assert worker.wait() == 0
    assert not (project.root / ".weft" / "archive.sqlite").exists()
    assert project.weft("doctor", "--json").document["database"]["status"] == "off"

    archiver = project.start("archiver")
    until(lambda: archived(project, run) == "completed")
    archiver.signal(signal.SIGTERM)
    assert archiver.wait() == 0
    # Another database is refused, until the first one is given up.
    other = {"WEFT_DATABASE_URL": "sqlite:///other.sqlite"}
    assert "another database" in project.weft("archiver", "--once", code=1, **other).err
    assert project.weft("doctor", "--json", code=1, **other).document["ok"] is False
    assert project.weft("archiver", "--retire", "--json").document == {"retired": 1}
    done = project.weft("archiver", "--once", "--json", **other)
    assert "archived 2 events" in done.err and done.document["archived"] == 2


def test_a_schema_is_shown_applied_and_refused(project: Project) -> None:
    path = project.root / ".weft" / "archive.sqlite"
    shown = project.weft("migrate", "--dry-run", "--json").document
    assert (shown["before"], shown["head"], shown["schema"]) == ("", HEAD, "")
    assert not path.exists()

    assert project.weft("migrate", "--json").document["schema"] == HEAD
    assert project.weft("migrate", "--json").document["before"] == HEAD

    connection = sqlite3.connect(path)
    connection.execute("UPDATE weft_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    assert "upgrade this process" in project.weft("migrate", code=1).err
    assert "upgrade this process" in project.weft("archiver", "--once", code=1).err
