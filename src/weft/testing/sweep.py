"""`crash_everywhere`: kills a worker at every boundary of the calls that a run's life consists of, and looks what became of it.

The boundaries of a scenario are counted by running it once unharmed. Then, once per boundary and each time on an empty
namespace, a worker process is killed there as by a pulled plug, and another one finishes the work. And once more per boundary
what the worker holds is delivered twice: it stands still there until another one has taken its work and finished it, then goes
on as if nothing had happened.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from weft.errors import HistoryExpired, UserError
from weft.sdk.run import Run, SyncRun
from weft.testing.crash import CRASH_AT, CRASH_LOG, STOP_AT, read_points
from weft.testing.harness import Harness
from weft.testing.target import load_app

#: The calls in which a run's state moves. Others come with time (leases, wake-ups) and tell little about an app.
CALLS = (
    "claim_steps",
    "commit_steps",
    "commit_flows",
    "commit_told",
    "mail_run",
    "report_steps",
    "fire_timers",
    "SET",
    "GET",
)
#: The lease of the workers: how long the next one waits before it takes the steps of the dead.
LEASE = "500ms"
#: Seconds between two looks at a process or a run.
LOOK = 0.02
#: Seconds that a worker works on whose steps another one has finished.
AFTERLIFE = 0.3

Runs = Run[Any] | SyncRun[Any] | Sequence[Run[Any] | SyncRun[Any]]


class CrashEverywhere:
    """Sweeps over the boundaries of one app's scenarios. `target` is what a process of its own imports: `module:app`."""

    def __init__(self, target: str, *, redis_url: str, directory: Path) -> None:
        self._target, self._redis_url, self._log = target, redis_url, directory / "points"
        self._app = load_app(target)
        #: The boundaries of the last call at which a worker stood still while another one did its work.
        self.doubled: list[str] = []
        #: What the runs gave when nobody was harmed.
        self._results: list[Any] = []

    def __call__(
        self,
        start: Callable[[], Runs],
        check: Callable[[Any], None] | None = None,
        *,
        calls: Sequence[str] | None = CALLS,
        each: int = 3,
        duplicates: bool = True,
        patience: float = 60.0,
    ) -> list[str]:
        """Runs a scenario once unharmed, then per boundary; returns the boundaries at which a worker died.

        `start` starts runs, by `.sync` verbs, and returns them; `check` gets the same when all have ended, and says what must
        hold (none: that they completed, with what they gave unharmed). `each` boundaries of every kind are taken, `calls`
        limits the kinds (None: all). `duplicates`: also deliver twice what a worker holds at each of them. No step of a
        workflow may be committed twice, whatever `check` looks at.
        """
        self._log.unlink(missing_ok=True)
        self._results, self.doubled = [], []
        self._case(start, check, {CRASH_LOG: str(self._log)}, patience)
        points = _choose(read_points(self._log), calls, each)
        died = self._each(points, CRASH_AT, "die", lambda env: self._case(start, check, env, patience))
        if not died:
            raise UserError("no boundary was reached: does the scenario start a run that this app's worker executes?")
        if duplicates:
            self.doubled = self._each(
                points, STOP_AT, "stand still", lambda env: self._case(start, check, env, patience)
            )
        return died

    def _each(self, points: Sequence[str], harm: str, what: str, case: Callable[[dict[str, str]], bool]) -> list[str]:
        """Harms a worker at one boundary after the other; returns those that were reached."""
        reached = []
        for point in points:
            try:
                if case({harm: point}):
                    reached.append(point)
            except BaseException as error:
                error.add_note(f"the worker was to {what} at {point}")
                raise
        return reached

    def _case(
        self, start: Callable[[], Runs], check: Callable[[Any], None] | None, env: dict[str, str], patience: float
    ) -> bool:
        """Runs the scenario with a worker that may die or stand still and one that finishes; returns whether it did."""
        with Harness(self._app, redis_url=self._redis_url) as harness:
            started = start()
            runs = [started] if isinstance(started, (Run, SyncRun)) else list(started)
            first = self._spawn(harness.namespace, env)
            try:
                _wait(
                    lambda: first.poll() is not None or _stands(first) or _ended(runs),
                    patience,
                    "the first worker to die, to stand still or to finish",
                    runs,
                )
                if harmed := _stands(first):
                    self._finish(harness.namespace, runs, patience)
                    first.send_signal(signal.SIGCONT)
                    time.sleep(AFTERLIFE)
                first.terminate()  # the boundary may lie in its drain
                _wait(lambda: first.poll() is not None or _stands(first), patience, "the first worker to end")
                harmed = harmed or first.poll() is None or first.returncode < 0
            finally:
                first.kill()
                first.wait()
            self._finish(harness.namespace, runs, patience)
            for run in runs:
                _check_once(run)
            if check is not None:
                check(started)
            else:
                self._compare([run.sync.result(timeout=patience) for run in runs])
            return harmed

    def _finish(self, namespace: str, runs: Sequence[Run[Any] | SyncRun[Any]], patience: float) -> None:
        """Has another worker do what is left."""
        if _ended(runs):
            return
        second = self._spawn(namespace, {})
        try:
            _wait(lambda: _ended(runs), patience, f"another worker to finish {runs}", runs)
        finally:
            second.terminate()
            second.wait(patience)

    def _compare(self, results: list[Any]) -> None:
        self._results = self._results or results
        assert results == self._results, f"unharmed the runs gave {self._results!r}, now {results!r}"

    def _spawn(self, namespace: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "weft.testing.victim", self._target, self._redis_url, namespace]
        path = os.pathsep.join(part or str(Path.cwd()) for part in sys.path)
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, "WEFT_LEASE": LEASE, **env})


def _choose(points: list[str], calls: Sequence[str] | None, each: int) -> list[str]:
    taken: Counter[str] = Counter()
    chosen = []
    for point in points:
        kind = point.rpartition(":")[0]
        taken[kind] += 1
        if taken[kind] <= each and (calls is None or kind.partition(":")[2] in calls):
            chosen.append(point)
    return chosen


def _check_once(run: Run[Any] | SyncRun[Any]) -> None:
    """Looks whether any step of a workflow was committed twice."""
    if run.sync.info().kind != "workflow":
        return
    try:
        steps = Counter(event.step for event in run.sync.history() if event.type == "step_completed")
    except HistoryExpired:
        return
    twice = [step for step, n in steps.items() if n > 1]
    assert not twice, f"steps {', '.join(twice)} of run {run.id} were committed more than once"


def _stands(process: subprocess.Popen[bytes]) -> bool:
    """Tells whether a process of ours stands still."""
    if process.returncode is not None:
        return False
    try:
        return os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _ended(runs: Sequence[Run[Any] | SyncRun[Any]]) -> bool:
    return all(run.sync.status().finished for run in runs)


def _wait(check: Callable[[], bool], patience: float, what: str, runs: Sequence[Run[Any] | SyncRun[Any]] = ()) -> None:
    until = time.monotonic() + patience
    while not check():
        if time.monotonic() > until:
            open_ = [run for run in runs if not run.sync.status().finished]
            told = "".join(f"\nrun {run.id}: {run.sync.explain().text}" for run in open_)
            raise TimeoutError(f"waited {patience:g} s in vain for {what}{told}")
        time.sleep(LOOK)
