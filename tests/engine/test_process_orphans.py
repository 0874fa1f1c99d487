"""A worker that dies takes the processes of its tasks with it: another worker runs their steps, and both would run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import process_tasks
import pytest

from weft.core.model import RunSpec, Token
from weft.worker.frames import Job, send
from weft.worker.processes import _Child


@pytest.fixture
def child() -> Iterator[_Child]:
    made = _Child()
    yield made
    made.kill()
    made._process.wait(10)


def job(task: str, *args: object) -> Job:
    found = process_tasks.app.tasks[task]
    token = Token(0, 1, "r0-0000000000000000000000", "1-1", 1, 1, RunSpec(task), 0)
    return Job(found.fn.__module__, found.fn.__qualname__, token, found.signature.encode(args, {}))


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)


def test_a_child_whose_worker_dies_during_a_function_ends_with_it(child: _Child, tmp_path: Path) -> None:
    send(child._socket, job("hang", str(tmp_path / "pid")))
    wait_for(tmp_path / "pid")

    child._socket.close()  # as the kernel does for a worker that was killed

    assert child._process.wait(5) == 1  # the function would have slept for a minute


async def test_a_child_that_is_let_go_between_functions_leaves_by_itself(child: _Child) -> None:
    reply = await child.call(job("where"), lambda text: None, lambda line: None, lambda: None)
    assert reply.sequel is None
    await asyncio.to_thread(child.end)
    assert child._process.poll() == 0
