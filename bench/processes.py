"""Starts processes in a group of their own and makes sure none outlives the benchmark.

Only groups started here are ever signalled. `DriverProcess` talks to a driver; every answer has a deadline.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: Seconds between a polite SIGTERM and SIGKILL for what is left of the group.
GRACE_S = 5.0
#: A process tree is at rest when it takes no more than this part of a core for so many seconds; the third is how long to wait.
REST_PART, REST_S, REST_BUDGET_S = 0.1, 0.5, 15.0

_running: set[subprocess.Popen[bytes]] = set()


class RoundFailed(Exception):
    """This round gives no figure; the message says why."""


@contextlib.contextmanager
def running(
    command: list[str], *, env: Mapping[str, str], cwd: Path, log: Path, **pipes: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command as leader of a new session; its whole group is gone when the block ends. Talk goes to `log`."""
    with log.open("ab") as talk:
        streams = {"stdin": subprocess.DEVNULL, "stdout": talk, "stderr": talk, **pipes}
        process = subprocess.Popen(command, env=dict(env), cwd=cwd, start_new_session=True, **streams)
    _running.add(process)
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes], *, grace_s: float = GRACE_S) -> None:
    """Asks the group to end, then kills what is left of it. Safe to call twice."""
    if process not in _running:
        return
    _signal_group(process, signal.SIGTERM)
    try:
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and not has_exited(process):
            time.sleep(0.02)
    finally:
        # The leader is not reaped yet, so its id cannot have become somebody else's.
        _signal_group(process, signal.SIGKILL)
        process.wait()
        _running.discard(process)


@contextlib.contextmanager
def halted(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The whole group of a process stands still within the block."""
    _signal_group(process, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal_group(process, signal.SIGCONT)


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process ended, without reaping it (which would free its id while its group may still live)."""
    if process.returncode is not None or not hasattr(os, "waitid"):  # macOS has no waitid before Python 3.13
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def cpu_seconds(pid: int) -> float:
    """Seconds of processor time that a process has taken; 0 where the system does not tell."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def wait_for_rest(pid: int) -> None:
    """Waits until a process and all that it started are up and idle: what starts beside a worker is not what a step takes."""
    deadline, before = time.monotonic() + REST_BUDGET_S, float("-inf")
    while time.monotonic() < deadline:
        now = sum(cpu_seconds(each) for each in _tree(pid))
        if now - before <= REST_PART * REST_S:
            return
        before = now
        time.sleep(REST_S)


def _tree(pid: int) -> set[int]:
    """A process and its descendants; only itself where the system does not tell."""
    parents = {int(path.name): int(stat[1]) for path in Path("/proc").glob("[0-9]*") if (stat := _stat(path.name))}
    tree, size = {pid}, 0
    while size != len(tree):
        size = len(tree)
        tree |= {child for child, parent in parents.items() if parent in tree}
    return tree


def _stat(pid: int | str) -> list[str]:
    """What the system tells of a process behind its name; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def last_line(log: Path) -> str:
    """The last line a process said, for an error message."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1][:200] if lines else "it said nothing"


class DriverProcess:
    """A running driver. `call` asks it for one thing and waits for the answer."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self._buffer = b""

    def call(self, method: str, *arguments: int, timeout_s: float) -> Any:
        """What the driver's method returned; raises `RoundFailed` on its error, its end or the deadline."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([method, *arguments]).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RoundFailed(f"the driver ended: {last_line(self._log)}") from None
        reply = json.loads(self._read_line(method, time.monotonic() + timeout_s))
        if "error" in reply:
            raise RoundFailed(f"{method}: {reply['error'][:200]}")
        return reply["value"]

    def timed(self, method: str, *arguments: int, timeout_s: float) -> float:
        """Seconds a call took. One clock for every peer; the pipe adds about a tenth of a millisecond."""
        start = time.perf_counter()
        self.call(method, *arguments, timeout_s=timeout_s)
        return time.perf_counter() - start

    def _read_line(self, method: str, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RoundFailed(f"{method}: no answer in time")
            data = os.read(descriptor, 65536)
            if not data:
                raise RoundFailed(f"the driver ended: {last_line(self._log)}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


@contextlib.contextmanager
def driver_running(command: list[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> Iterator[DriverProcess]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with running(command, env=env, cwd=cwd, log=log, **pipes) as process, process:
        try:
            yield DriverProcess(process, log)
        finally:
            # `Popen.__exit__` would wait for the driver's end; it has to be stopped first.
            stop(process)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # PermissionError is how macOS says that only zombies are left in the group.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@atexit.register
def _stop_all() -> None:
    for process in list(_running):
        stop(process, grace_s=0.5)
