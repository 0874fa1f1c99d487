"""Steps that fork, or go to another directory: the worker around them stays what it is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_project import Project

TASKS = """
import multiprocessing, os
from weft import Weft

app = Weft("forks")

@app.task
def pool() -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2])

@app.task
def twice() -> str:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return "child" if child == 0 else "parent"

@app.task
async def twice_on_the_loop() -> str:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return "child" if child == 0 else "parent"

@app.task(pool="process")
def pool_in_a_process() -> list[int]:
    return pool.fn()

@app.task(pool="process")
def twice_in_a_process() -> str:
    return twice.fn()

@app.task
async def wander(to: str) -> None:
    os.chdir(to)

@app.task(pool="process")
def where() -> str:
    return os.getcwd()
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path, tasks=TASKS)
    yield project
    project.close()


def _result(project: Project, *words: str) -> object:
    run = project.weft("enqueue", *words).out.strip()
    project.weft("runs", "watch", run)
    return project.weft("runs", "show", run, "--json").document["result"]


def test_what_steps_do_to_their_process_stays_theirs(project: Project) -> None:
    worker = project.start("worker")

    # A pool ends its children with SIGTERM, and the loop of the worker must not hear of it.
    assert _result(project, "pool") == [1, 2]
    # A child that comes back as well has the worker's connections: it must not answer in its place.
    assert _result(project, "twice") == "parent"
    assert _result(project, "twice_on_the_loop") == "parent"
    # The same in a process of the pool, where an answer too many would become that of the next run.
    assert _result(project, "pool_in_a_process") == [1, 2]
    assert [_result(project, "twice_in_a_process") for _ in range(2)] == ["parent", "parent"]
    # Modules and the embedded store are found from where the worker was started.
    assert _result(project, "wander", f"to={project.root.parent}") is None
    assert _result(project, "where") == str(project.root.resolve())
    assert "stopping" not in worker.text

    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
