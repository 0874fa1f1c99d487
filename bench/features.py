"""What limits, timers and schedules cost: Weft beside itself, in the same run."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator

from bench import effects
from bench.driver import script
from bench.measurement import Measurement
from bench.processes import RoundFailed, has_exited, last_line, running

APP = "bench.features_app"
#: Distinct keys of the keyed cases.
KEYS = 1000
#: Seconds between the start of a producer of delayed runs and their second, per thousand of them.
LEAD_S_PER_1000 = 0.25
#: Seconds a case may take before it fails.
PATIENCE_S = 240.0

Figures = dict[str, float]


def ask(m: Measurement, *words: object) -> dict[str, float]:
    """Runs one producer to its end and returns what it printed."""
    command = [sys.executable, "-m", APP, *map(str, words)]
    done = subprocess.run(
        command, env=m.env, cwd=m.cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode:
        raise RoundFailed(f"{' '.join(command[2:])}: {done.stderr.strip().splitlines()[-1:]}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def worker(*words: str) -> list[str]:
    return [script("weft"), "worker", f"{APP}:app", "-c", "100", *words]


def limits_case(m: Measurement, task: str, n: int) -> Figures:
    """Seconds from the first enqueue to the last effect, and the rate of the drain alone."""
    enqueued = ask(m, "enqueue", task, n, KEYS)["seconds"]
    rate = m.drain(worker(), n)
    return {f"limits_{task}": rate, f"total_{task}": n / (enqueued + n / rate)}


def archive_case(m: Measurement, name: str, n: int) -> Figures:
    """The rate of a drain whose worker archives what it did, as every worker does, or does not."""
    ask(m, "enqueue", "plain", n, KEYS)
    return {name: m.drain(worker(*(["--no-archive"] if name == "unarchived" else [])), n)}


def timers_case(m: Measurement, n: int) -> Figures:
    """Delayed runs that are due in one second, beside another queue that must not feel it."""
    with _serving(m, "-q", "default") as busy, _serving(m, "-q", "quick"):
        base = ask(m, "later", n, 3 + n / 1000 * LEAD_S_PER_1000)
        if base["left"] < 0:
            raise RoundFailed(f"the producer was {-base['left']:.1f} s too slow: the second had begun")
        sampler = subprocess.Popen(
            [sys.executable, "-m", APP, "quick", str(base["left"] + 8)],
            env=m.env, cwd=m.cwd, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        while time.time() < base["base"] - 0.005:
            if effects.count(m.effects_file):
                raise RoundFailed("a timer fired early")
            time.sleep(0.002)
        while (done := effects.count(m.effects_file)) < n:
            if has_exited(busy) or time.time() > base["base"] + PATIENCE_S:
                raise RoundFailed(f"stalled at {done:,} of {n:,}: {last_line(m.log)}")
            time.sleep(0.005)
        took = time.time() - base["base"]
        told, _ = sampler.communicate(timeout=60)
        quick = json.loads(told.splitlines()[-1])
    return {"timers_s": took, "timers_quick_p50": quick["p50"], "timers_quick_p99": quick["p99"]}


def schedules_case(m: Measurement, n: int) -> Figures:
    """The part of a core that one worker needs for schedules that all tick every minute, their no-op runs included."""
    ask(m, "schedules", n)
    with _serving(m) as process:
        time.sleep(61 - time.time() % 60)  # the first tick may meet schedules that were just made
        _await(m, process, effects.count(m.effects_file) // n * n + n)
        began, before, count = time.monotonic(), _cpu(process), effects.count(m.effects_file)
        tick = 60 - time.time() % 60 + time.time()
        _await(m, process, count + n)
        late = time.time() - tick
        time.sleep(max(0.0, 60 - (time.monotonic() - began)))
        return {"schedules_core": (_cpu(process) - before) / (time.monotonic() - began), "schedules_late_s": late}


def _await(m: Measurement, process: subprocess.Popen[bytes], n: int) -> None:
    deadline = time.monotonic() + 150
    while effects.count(m.effects_file) < n:
        if has_exited(process) or time.monotonic() > deadline:
            raise RoundFailed(f"stalled at {effects.count(m.effects_file):,} of {n:,}: {last_line(m.log)}")
        time.sleep(0.01)


@contextlib.contextmanager
def _serving(m: Measurement, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with running(worker(*words), env=m.env, cwd=m.cwd, log=m.log) as process:
        time.sleep(1.0)
        yield process


def _cpu(process: subprocess.Popen[bytes]) -> float:
    """Processor seconds a process has used; Linux only, like the figures beside it."""
    with open(f"/proc/{process.pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
