"""A store that loses everything under running processes: `weft worker` has it rebuilt by itself, `weft recover` by hand."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator

import psutil
import pytest
import redis
from cli_project import Project, archiving, until


@pytest.fixture
def project(tmp_path) -> Iterator[Project]:
    with archiving(tmp_path / "shop") as project:
        yield project


def store(project: Project) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(project.root / ".weft" / "valkey.sock"))


def archived(project: Project) -> dict[str, str]:
    """Returns the status of every run in the database."""
    path = project.root / ".weft" / "archive.sqlite"
    if not path.exists():
        return {}
    connection = sqlite3.connect(path)
    try:
        return dict(connection.execute("SELECT id, status FROM weft_runs").fetchall())
    except sqlite3.OperationalError:  # the tables are just being made
        return {}
    finally:
        connection.close()


def test_a_worker_has_a_wiped_store_rebuilt_and_goes_on(project: Project) -> None:
    worker = project.start("worker", "--grace", "0s")
    done = project.weft("enqueue", "add", "a=1", "b=2", "--watch", "--json").documents[0]["run_id"]
    held = project.weft("enqueue", "hold", "name=one", "--json").document["run_id"]
    until((project.root / "one.started.1.1").exists)
    later = project.weft("enqueue", "add", "a=2", "b=3", "--delay", "4s", "--json").document["run_id"]
    until(lambda: {done, held, later} <= archived(project).keys() and archived(project)[done] == "completed")

    waited = archived(project)[later] == "queued"
    store(project).flushall()

    # What ran goes on under another delivery, what waited waits, and what had ended has not begun again.
    until((project.root / "one.started.1.2").exists)
    (project.root / "one.go").touch()
    until(lambda: archived(project).get(held) == "completed" and archived(project).get(later) == "completed")
    shown = project.weft("runs", "show", later, "--json").document
    assert shown["status"] == "completed"
    told = project.weft("runs", "events", later, "--json").documents
    # On a slow machine it may have ended before.
    assert [event["type"] for event in told] == ["queued", *["recovered"] * waited, "completed"]
    assert project.weft("runs", "show", done, "--json").document["status"] == "completed"
    worker.process.terminate()
    assert worker.wait() == 0


@pytest.mark.chaos  # tests/archive/test_old_stores has the same without processes
def test_an_old_file_of_the_store_is_noticed_and_what_it_forgot_comes_back(project: Project) -> None:
    first = project.weft("enqueue", "add", "a=1", "b=1", "--json").document["run_id"]
    project.weft("archiver", "--once")
    client = store(project)
    old = client.dump("weft:{0}:run:" + first)
    keys = {key: client.dump(key) for key in client.scan_iter(match="weft:*")}
    assert old is not None
    worker = project.start("worker", "--grace", "0s")
    until(lambda: archived(project).get(first) == "completed")
    worker.process.terminate()
    assert worker.wait() == 0
    second = project.weft("enqueue", "add", "a=2", "b=2", "--json").document["run_id"]
    project.weft("archiver", "--once")
    client.flushall()
    for key, data in keys.items():
        client.restore(key, 0, data)

    told = project.weft("recover", "--dry-run", "--json").documents
    assert [each["runs"] for each in told] == [1] and "went back" in told[0]["lost"]
    assert client.exists("weft:{0}:run:" + first) and not client.exists("weft:{0}:run:" + second)
    (done,) = project.weft("recover", "--json").documents
    assert done["runs"] == 1 and done["epoch"] > 0

    assert "lost nothing" in project.weft("recover").out
    worker = project.start("worker", "--grace", "0s")
    until(lambda: archived(project).get(second) == "completed")
    events = project.weft("runs", "events", first, "--json").documents
    assert [event["type"] for event in events] == ["queued", "completed"]
    worker.process.terminate()
    assert worker.wait() == 0


def test_the_archiver_beside_a_worker_ends_with_it_however_it_goes(project: Project) -> None:
    worker = project.start("worker", "--grace", "0s")
    process = psutil.Process(worker.process.pid)
    until(lambda: any("archiver" in child.cmdline() for child in process.children()))
    (beside,) = [child for child in process.children() if "archiver" in child.cmdline()]

    worker.signal(signal.SIGKILL)

    until(lambda: not beside.is_running() or beside.status() == psutil.STATUS_ZOMBIE)


def test_a_recovery_whose_archiver_was_killed_is_taken_up_by_the_worker(project: Project) -> None:
    worker = project.start("worker", "--grace", "0s")
    later = project.weft("enqueue", "add", "a=2", "b=3", "--delay", "3s", "--json").document["run_id"]
    until(lambda: later in archived(project))

    # The archiver is killed where the store is emptied and closed, and nothing is written yet.
    for child in psutil.Process(worker.process.pid).children():
        if "archiver" in child.cmdline():
            child.suspend()
            killed = child
    server = store(project)
    epoch = next(key for key in server.scan_iter() if key.endswith(b":epoch"))
    number = int(server.hget(epoch, "number"))
    with server.pipeline() as pipe:
        pipe.flushall()
        pipe.hset(epoch, "recovering", number + 1)
        pipe.execute()
    killed.kill()

    until(lambda: archived(project).get(later) == "completed")
    worker.process.terminate()
    assert worker.process.wait(60) == 0
