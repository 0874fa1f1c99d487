"""One measurement of one peer: a fresh server, a producer, workers, a file that counts effects, and the clock.

Everything lives in two private temporary directories (data on disk, effects in shared memory) and is gone at the end.
"""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import effects
from bench.peers import BENCH, CACHE, Peer, node_modules
from bench.processes import DriverProcess, RoundFailed, driver_running, has_exited, last_line, running, wait_for_rest
from bench.server import Server, server_running

#: Seconds without a single new effect after which a drain counts as stuck.
STALL_S = 20.0
#: Seconds a worker may take to its first effect.
FIRST_EFFECT_S = 30.0
#: The drain's clock starts once this part of all tasks is done: start-up is not measured.
WARM_PART = 0.1
#: Seconds the count must stand still before it is compared with the number of tasks.
QUIET_S = 0.3
#: Round trips before the first that counts.
LATENCY_WARM_UP = 20
#: Batches of warm-up round trips before a worker counts as broken.
READY_ATTEMPTS = 3
#: Seconds a peer may spend on latency samples; a slow one is judged by fewer.
LATENCY_BUDGET_S = 12.0


@dataclass(frozen=True)
class Producer:
    """A running driver, as the cases use it."""

    peer: Peer
    driver: DriverProcess

    def enqueue(self, n: int, *, bulk: bool) -> float:
        """Enqueues `n` tasks and returns how many a second."""
        method = "enqueue_bulk" if bulk and self.peer.has_bulk else "enqueue_one"
        return n / self.driver.timed(method, n, timeout_s=60 + n / 500)

    def round_trips(self, n: int) -> list[float]:
        """Milliseconds of `n` enqueues, each awaited to its result."""
        samples: list[float] = self.driver.call("latency", n, timeout_s=60)
        return samples

    def worker_command(self, processes: int) -> list[str]:
        command: list[str] = self.driver.call("worker_command", processes, timeout_s=30)
        return command


#: How many times its tasks' number a peer's effects may be before its row fails.
MAX_SURPLUS = 1.01


@dataclass(frozen=True)
class Measurement:
    """A fresh server and what is needed to start a peer on it; made by `measuring`."""

    peer: Peer
    server: Server
    driver_command: list[str]
    effects_file: Path
    env: dict[str, str]
    cwd: Path
    log: Path
    notes: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def producing(self) -> Iterator[Producer]:
        """A producer that is gone, connections and all, when the block ends."""
        with driver_running(self.driver_command, env=self.env, cwd=self.cwd, log=self.log) as driver:
            yield Producer(self.peer, driver)

    def prepare(self, command: list[str]) -> None:
        """Runs a command that starts the work, to its end."""
        done = subprocess.run(command, env=self.env, cwd=self.cwd, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RoundFailed(f"start: {done.stderr.strip().splitlines()[-1:]}")

    def drain(self, command: list[str], n: int) -> float:
        """Starts workers, waits for `n` effects and returns how many a second; fails unless there are exactly `n`."""
        with self.working(command) as worker:
            rate = self.watch(n, worker)
        self.verify(n)
        return rate

    def drain_part(self, command: list[str], before: int, n: int) -> float:
        """Like `drain`, for a queue that is not empty then: from so many effects to so many, and workers hand the rest back."""
        with running(command, env=self.env, cwd=self.cwd, log=self.log) as worker:
            return self.watch(n, worker, before=before)

    def latency(self, n: int) -> list[float]:
        """Milliseconds of up to `n` round trips to an idle worker process."""
        samples: list[float] = []
        with self.producing() as producer, self.working(producer.worker_command(1)) as worker:
            self._wait_for_worker(producer, worker)
            before = effects.count(self.effects_file)
            deadline = time.monotonic() + LATENCY_BUDGET_S
            while len(samples) < n and time.monotonic() < deadline:
                samples += producer.round_trips(min(20, n - len(samples)))
        self.verify(before + len(samples))
        return samples

    @contextlib.contextmanager
    def working(self, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Workers that are gone when the block ends; by then no effect was added for a moment."""
        with running(command, env=self.env, cwd=self.cwd, log=self.log) as worker:
            yield worker
            self._settle()

    def _wait_for_worker(self, producer: Producer, worker: subprocess.Popen[bytes]) -> None:
        """Makes round trips until a batch of them succeeds: SAQ's worker may abort a task that it takes while starting.

        None of these counts, but their effects are in before the first that does.
        """
        for attempt in range(1, READY_ATTEMPTS + 1):
            try:
                producer.round_trips(LATENCY_WARM_UP)
            except RoundFailed:
                if has_exited(worker):
                    raise RoundFailed(f"the worker ended: {last_line(self.log)}") from None
                if attempt == READY_ATTEMPTS:
                    raise
            else:
                break
        self._settle()
        wait_for_rest(worker.pid)

    def watch(
        self,
        n: int,
        worker: subprocess.Popen[bytes],
        *,
        before: int = 0,
        when_warm: Callable[[], None] | None = None,
    ) -> float:
        """The rate from the first tenth to the last effect; `when_warm` is called as its clock starts.

        `before`: how many there were when the workers began.
        """
        warm: tuple[int, float] | None = None
        seen, changed_at = 0, time.perf_counter()
        while True:
            done, now = effects.count(self.effects_file), time.perf_counter()
            if warm is None and done >= before + (n - before) * WARM_PART:
                warm = (done, now)
                if when_warm is not None:
                    when_warm()
            if done >= n and warm is not None:
                if done == warm[0]:
                    raise RoundFailed(f"{n:,} tasks were done before the clock started: raise --tasks")
                return (done - warm[0]) / (now - warm[1])
            if done != seen:
                seen, changed_at = done, now
            elif now - changed_at > (STALL_S if seen else FIRST_EFFECT_S):
                raise RoundFailed(f"stalled at {done:,} of {n:,}: {last_line(self.log)}")
            elif has_exited(worker):
                raise RoundFailed(f"the worker ended at {done:,} of {n:,}: {last_line(self.log)}")
            time.sleep(0.003)

    def _settle(self) -> None:
        """Waits until no effect was added for a moment, so that one too many is seen; a runaway is not waited for."""
        before, deadline = -1, time.monotonic() + STALL_S
        while before != (before := effects.count(self.effects_file)) and time.monotonic() < deadline:
            time.sleep(QUIET_S)

    def verify(self, n: int) -> None:
        """Fails unless there were exactly so many effects."""
        done = effects.count(self.effects_file)
        # A peer that runs a task twice now and then is at-least-once, as it says; its rate stands, with a note.
        if done < n or (done > n and (self.peer.is_ours or done > n * MAX_SURPLUS)):
            raise RoundFailed(f"{done:,} effects for {n:,} tasks")
        if done > n:
            self.notes.append(f"{done:,} effects for {n:,} tasks: some ran twice")


@contextlib.contextmanager
def measuring(peer: Peer, case: str, command: list[str], binary: Path) -> Iterator[Measurement]:
    """Starts a server; it is stopped and its files are removed when the block ends.

    Only what the peer said is kept, until the same case is measured again.
    """
    log = CACHE / "logs" / f"{peer.name}-{case.replace(',', '').replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    with contextlib.ExitStack() as stack:
        data = _private_directory(stack, None)
        effects_file = _private_directory(stack, effects.shared_memory()) / "effects"
        effects_file.touch()
        server = stack.enter_context(server_running(binary, data))
        yield Measurement(peer, server, command, effects_file, _environment(server.url, effects_file), data, log)


def _private_directory(stack: contextlib.ExitStack, parent: Path | None) -> Path:
    # A killed worker may still be writing its last file while the directory is removed.
    made = tempfile.TemporaryDirectory(prefix="weft-bench-", dir=parent, ignore_cleanup_errors=True)
    return Path(stack.enter_context(made))


def _environment(url: str, effects_file: Path) -> dict[str, str]:
    """Ours without any `WEFT_…` setting: Weft is measured with its defaults."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
    return kept | {
        "BENCH_REDIS_URL": url,
        effects.FILE_VARIABLE: str(effects_file),
        # The Weft that lies beside this bench, whichever is installed.
        "PYTHONPATH": f"{BENCH.parent}{os.pathsep}{BENCH.parent / 'src'}",
        "NODE_PATH": str(node_modules()),
    }
