"""A child process for CPU-bound tasks: `python -m weft.worker.child FD MAIN`. Takes jobs until its socket closes."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from weft.engine.steps import sequel_of
from weft.errors import WorkFailed
from weft.sdk.app import importing
from weft.sdk.current import CURRENT, Current
from weft.sdk.task import Task
from weft.worker.frames import Job, Reply, receive, send
from weft.worker.resources import Resources
from weft.worker.threads import end_copy

#: The name a script gets here that was `__main__` in the worker, so that its `if __name__ == "__main__"` stays asleep.
MAIN = "__weft_main__"


def serve(sock: socket.socket, main: str) -> None:
    """Runs jobs one after the other; closes what they had opened when the worker lets go."""
    own, working, pid = Own(), threading.Event(), os.getpid()
    threading.Thread(target=_follow, args=(sock, working), daemon=True).start()
    while True:
        try:
            job = receive(sock, Job)
            working.set()
            reply = _run(sock, job, main, own)
            end_copy(pid)  # a copy would answer as well, and the worker would take that for the answer to its next job
            working.clear()
            send(sock, reply)
        except (EOFError, OSError):
            return own.close()


def _follow(sock: socket.socket, working: threading.Event) -> None:
    """Ends this process when its worker dies during a function: another worker runs the step then, and both would run."""
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", 0))
    poll.poll()
    working.wait()  # a worker that hangs up in between lets go of this process, which sees that itself
    os._exit(1)


class Own:
    """The resources of this process. Its loop runs only while one is opened or closed: there is nothing else on it."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._resources = Resources(_here)

    def of(self, task: Task[Any, Any]) -> dict[str, Any]:
        """Returns what a task's parameters get."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(self._resources.of(task))

    def close(self) -> None:
        if self._runner is not None:
            self._runner.run(self._resources.close())
            self._runner.close()


async def _here(function: Callable[[], Any]) -> Any:
    return function()


def _run(sock: socket.socket, job: Job, main: str, own: Own) -> Reply:
    task: Task[Any, Any] | None = None
    try:
        task = _find(job.module, job.name, main)
        send(sock, Reply(begun=True))
        here = Current(
            job.token, lambda text: send(sock, Reply(report=text or " ")), lambda line: send(sock, Reply(line=line))
        )
        CURRENT.set(lambda: here)
        args, kwargs = task.signature.decode(job.data, formed=job.token.spec.formed)
        if task.needs:
            kwargs |= own.of(task)
        return Reply(data=task.signature.returns.encode(task.fn(*args, **kwargs)))
    except BaseException as error:  # noqa: BLE001 - whatever user code raises is the step's outcome
        # There is no such task in this process, and another attempt would not find it either.
        return Reply(sequel=sequel_of(error, *((task.retry_on, task.fatal_on) if task else ((), ()))))


def _find(module: str, name: str, main: str) -> Task[Any, Any]:
    found: Any = _main_module(main) if module == "__main__" else importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Task):
        raise WorkFailed(
            f"{module}.{name} is not a task in a fresh process: declare pool='process' tasks at module level"
        )
    return found


def _main_module(path: str) -> Any:
    if MAIN not in sys.modules:
        spec = importlib.util.spec_from_file_location(MAIN, path)
        if spec is None or spec.loader is None:
            raise WorkFailed("the worker's main script cannot be imported in a child process: put the task in a module")
        sys.modules[MAIN] = module = importlib.util.module_from_spec(spec)
        importing.main = True
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[MAIN]  # half a module: the next job is told the same
            raise
        finally:
            importing.main = False
    return sys.modules[MAIN]


if __name__ == "__main__":
    # Whoever stops a service may signal all its processes, as systemd does. Whether this one goes on is the worker's to say: it
    # hangs up, or kills it. A handler, since what is ignored would stay so in programs that a task starts.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    # What a function forks is its own: `multiprocessing` ends its children so, and would wait for them for ever.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
