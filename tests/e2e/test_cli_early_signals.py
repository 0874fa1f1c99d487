"""Signals that come while a worker is still starting: it stops as it does later, with code 0."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_project import PATIENCE, TASKS, Project

#: Says that it is being imported, and does not come to an end.
SLOW = """
import sys, threading
print("importing", file=sys.stderr, flush=True)
threading.Event().wait()
"""

COMMANDS = ["worker", "worker --processes 2", "dev", "archiver"]
SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.close()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        yield server


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("words", COMMANDS)
def test_a_signal_while_the_app_is_imported_stops_it(words: str, number: signal.Signals, project: Project) -> None:
    (project.root / "tasks.py").write_text(SLOW + TASKS)
    started = project.start(*words.split(), ready="importing")
    started.signal(number)
    assert started.wait() == 0, started.text
    assert "stopped before it began" in started.text and "Traceback" not in started.text


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("words", COMMANDS)
def test_a_signal_during_the_first_look_at_the_store_stops_it(
    words: str, number: signal.Signals, project: Project, silent: socket.socket
) -> None:
    url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
    started = project.start(*words.split(), ready=None, env={"WEFT_REDIS_URL": url})
    looking, _ = silent.accept()
    with looking:
        assert looking.recv(1), "it has begun to ask"
        started.signal(number)
        assert started.wait() == 0, started.text
    assert "stopp" in started.text and "Traceback" not in started.text


def test_a_fleet_told_to_stop_at_its_first_look_starts_nobody(project: Project, silent: socket.socket) -> None:
    url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
    parent = project.start("worker", "--processes", "2", ready=None, env={"WEFT_REDIS_URL": url})
    looking, _ = silent.accept()
    with looking:
        parent.signal(signal.SIGTERM)
        assert parent.wait() == 0
    assert "stopping all worker processes" in parent.text and "ready" not in parent.text
