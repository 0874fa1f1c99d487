"""Processes for CPU-bound functions. A function over its time limit is killed with its process.

Each child is a fresh interpreter that imports the module of the task (`worker/child.py`); arguments, results and
errors cross a socket as msgpack frames, never as pickle.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.core.model import Token
from weft.core.steering import Sequel
from weft.errors import WorkFailed
from weft.sdk.task import Task
from weft.worker.frames import Job, Reply, receive, send

#: Processes one worker keeps at most, whatever its concurrency: more than cores only adds switching.
MAX_PROCESSES = max(2, os.cpu_count() or 1)


#: Seconds a child is given to start and import the task's module.
START_SECONDS = 60.0
#: Seconds a child is given to close the resources it opened.
CLOSE_SECONDS = 10.0


class RemoteFailure(WorkFailed):
    """A function failed in its process."""

    code = "remote_failure"

    def __init__(self, sequel: Sequel) -> None:
        super().__init__(sequel.record.message)
        self.sequel = sequel


class Processes:
    """A small pool of child processes, made when first needed."""

    def __init__(self) -> None:
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._room = asyncio.Semaphore(MAX_PROCESSES)
        #: Where children start, whatever directory a step went to since: modules and the embedded store are found from there.
        self._directory = _working_directory()

    async def run(
        self,
        task: Task[Any, Any],
        token: Token,
        data: bytes,
        report: Callable[[str], None],
        keep: Callable[[bytes], None],
        begin: Callable[[], None],
    ) -> bytes:
        """Runs a task in a child; cancelling kills that child. Calls `begin` when a child is free and ready."""
        async with self._room:
            child = self._idle.pop() if self._idle else self._spawn()
            child.has_resources = child.has_resources or bool(task.needs)
            try:
                reply = await child.call(
                    Job(task.fn.__module__, task.fn.__qualname__, token, data), report, keep, begin
                )
            except BaseException:
                self._all.discard(child)
                child.kill()
                raise
            self._idle.append(child)
        if reply.sequel is not None:
            raise RemoteFailure(reply.sequel)
        return reply.data

    async def close(self) -> None:
        """Ends all children; an idle one closes its resources first."""
        await asyncio.gather(*(asyncio.to_thread(child.end) for child in self._idle if child.has_resources))
        for child in self._all:
            child.kill()
        self._all.clear()
        self._idle.clear()

    def _spawn(self) -> _Child:
        child = _Child(self._directory)
        self._all.add(child)
        return child


def _working_directory() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed: a child is told nothing, and inherits that
        return None


class _Child:
    """One child process and the socket to it."""

    def __init__(self, directory: str | None = None) -> None:
        self.has_resources = False
        self._socket, theirs = socket.socketpair()
        main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "weft.worker.child", str(theirs.fileno()), main],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or directory or "." for path in sys.path)},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is the worker's to handle
            )

    async def call(
        self, job: Job, report: Callable[[str], None], keep: Callable[[bytes], None], begin: Callable[[], None]
    ) -> Reply:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        late = WorkFailed(f"the process has not imported {job.module} within {START_SECONDS:g} s")
        starting = loop.call_later(START_SECONDS, _deliver, future, late)

        def begun() -> None:
            starting.cancel()
            if not future.done():
                begin()

        threading.Thread(target=self._talk, args=(loop, future, job, report, keep, begun), daemon=True).start()
        try:
            return await future
        finally:
            starting.cancel()

    def _talk(
        self,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Reply],
        job: Job,
        report: Callable[[str], None],
        keep: Callable[[bytes], None],
        begun: Callable[[], None],
    ) -> None:
        outcome: Reply | BaseException
        with contextlib.suppress(RuntimeError):  # the loop may be gone by now
            try:
                send(self._socket, job)
                while (outcome := receive(self._socket, Reply)).report or outcome.line or outcome.begun:
                    if outcome.begun:
                        loop.call_soon_threadsafe(begun)
                    elif outcome.line:
                        keep(outcome.line)
                    else:
                        # A lone space is a heartbeat: an empty report would look like the end.
                        loop.call_soon_threadsafe(report, outcome.report if outcome.report.strip() else "")
            except (EOFError, OSError):
                code = self._process.wait()
                outcome = WorkFailed(f"the process that ran the function died (exit code {code})", exit_code=code)
            loop.call_soon_threadsafe(_deliver, future, outcome)

    def end(self) -> None:
        """Hangs up and waits: a child that nobody talks to closes what it opened and leaves."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_SECONDS)

    def kill(self) -> None:
        self._process.kill()
        self._socket.close()
        # Reaped in the background: a killed child is gone in a moment, and nothing here needs to wait for that.
        threading.Thread(target=self._process.wait, daemon=True).start()


def _deliver(future: asyncio.Future[Reply], outcome: Reply | BaseException) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
