"""A fleet of real processes around one private server: workers, producers and the effect recorder.

Everything is waited for by what it leaves behind (log lines, recorder rows, state in the store) under a deadline, and
every process is ended by its id however the scenario ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import psutil
import redis

import weft
from chaos.recorder import ADDRESS, Effects
from chaos.server import ServerProcess
from chaos.workload import client_app
from weft.core.model import MAX_CRASHES, SPEC_DECODER
from weft.sdk.run import Run
from weft.store.keys import GROUP, Keyspace
from weft.store.runs import RunRow

T = TypeVar("T")

#: Seconds anything may take that has to happen. Generous: the machine may be busy; a test that waits this long fails.
PATIENCE = 40.0

#: Looks, a tenth of a second apart, in which a worker that has begun opens nothing more.
STILL = 5

#: The name of a worker that only keeps house.
KEEPER = "keeper"

#: What `weft worker` says when it serves, and when it has drained.
READY, STOPPED = "ready  session=", "stopped  pid="

MIX: dict[str, float] = {
    "effect": 6, "slow": 2, "plain": 2, "flaky": 3, "delayed": 2, "bulky": 1, "swallow": 1, "keyed": 2, "urgent": 1,
    "many": 1, "doomed": 1,
}  # fmt: skip


def wait_for(what: str, probe: Callable[[], T], timeout: float = PATIENCE, every: float = 0.02) -> T:
    """Returns the first truthy answer of `probe`; fails, saying what it waited for, when there is none in time."""
    deadline = time.monotonic() + timeout
    while True:
        if answer := probe():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain for: {what}")
        time.sleep(every)


class Member:
    """One process of the fleet and its log."""

    #: When the scenario killed it, in the recorder's seconds.
    died_at: float | None = None

    def __init__(self, fleet: Fleet, name: str, module: str, args: list[str], env: dict[str, str]) -> None:
        self.name = name
        self.log_path = fleet.directory / f"{name}.log"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *args],
                env={**fleet.environ, "CHAOS_NAME": name, **env},
                cwd=fleet.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def await_log(self, text: str, timeout: float = PATIENCE, *, count: int = 1) -> None:
        def seen() -> bool:
            if self.log.count(text) >= count:
                return True
            if not self.alive and self.log.count(text) < count:
                raise AssertionError(
                    f"{self.name} ended ({self.process.returncode}) without saying {text!r}:\n{self.log}"
                )
            return False

        wait_for(f"{self.name} to say {text!r}", seen, timeout)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self.process.kill()
        self.process.wait()
        self.died_at = time.monotonic()

    def await_end(self, timeout: float = PATIENCE) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end:\n{self.log[-3000:]}") from None


class WorkerProcess(Member):
    """A worker. Besides the shared queues it serves one of its own name, so that it can be asked for new work alone."""

    def await_ready(self) -> WorkerProcess:
        self.await_log(READY)
        return self

    @property
    def session(self) -> str:
        """The session it began with."""
        return self.log.partition(READY)[2].split()[0]

    def stop(self, timeout: float = PATIENCE) -> None:
        """SIGTERM, and waits for a clean end."""
        self.send(signal.SIGTERM)
        self.await_end(timeout)
        code = self.process.returncode
        assert STOPPED in self.log, f"{self.name} ended ({code}) without draining:\n{self.log[-3000:]}"


class ProducerProcess(Member):
    """A producer and the ledger it keeps."""

    ledger: Path

    def entries(self) -> list[dict[str, Any]]:
        lines = self.ledger.read_text().splitlines(keepends=True) if self.ledger.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def acked(self) -> list[str]:
        return [run for entry in self.entries() if "ack" in entry for run in entry["runs"]]

    def errors(self) -> list[dict[str, Any]]:
        return [entry for entry in self.entries() if "err" in entry]

    def await_acks(self, n: int, timeout: float = PATIENCE) -> None:
        wait_for(f"{n} acknowledged starts of {self.name}", lambda: len(self.acked()) >= n or not self.alive, timeout)

    def finish(self, timeout: float = 120.0) -> None:
        code = self.await_end(timeout)
        assert code == 0, f"{self.name} ended with {code}:\n{self.log[-3000:]}"


class Fleet:
    """Owns every process of one scenario."""

    def __init__(
        self,
        *,
        lease: str = "1500ms",
        partitions: int = 1,
        namespace: str = "chaos",
        server: ServerProcess | None = None,
        **config: str,
    ) -> None:
        """`server` is one that somebody else owns, shared with other fleets by namespaces."""
        self.directory = Path(tempfile.mkdtemp(prefix="weft-chaos-", dir="/tmp"))
        self._borrowed = server is not None
        #: Whether the server holds other namespaces too.
        self.shared = self._borrowed
        self.namespace, self.partitions = namespace, partitions
        self.keys = Keyspace(namespace)
        self.server = server or ServerProcess(self.directory, **config)
        self.members: list[Member] = []
        self.workers: list[WorkerProcess] = []
        self.producers: list[ProducerProcess] = []
        #: Runs that the scenario itself started and was told so: id -> nothing more than that.
        self.started: list[str] = []
        self.started_at = time.monotonic()
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "PYTEST_"))},
            "PYTHONPATH": os.pathsep.join([str(Path(weft.__file__).parents[1]), str(Path(__file__).parents[1])]),
            "WEFT_REDIS_URL": self.server.url,
            "WEFT_NAMESPACE": namespace,
            "WEFT_LEASE": lease,
            "WEFT_ARCHIVE": "no",  # losses of the store have scenarios of their own
            "WEFT_PARTITIONS": str(partitions),
            ADDRESS: str(self.directory / "r"),
            "CHAOS_FLEET": str(self.directory),
        }
        self.effects = Effects(self.directory / "r", self.directory / "effects")
        #: File descriptors of each worker before the fault; see `note_baseline`.
        self.baseline: dict[str, int] = {}
        self._names = itertools.count(1)
        self._loop: LoopThread | None = None

    def __enter__(self) -> Fleet:
        try:
            if not self._borrowed:
                self.server.start()
            (self.directory / "effects").touch()
            self.members.append(
                Member(self, "recorder", "chaos.recorder", [str(self.effects.address), str(self.effects.file)], {})
            )
            wait_for("the recorder's socket", self.effects.address.exists)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self._show_logs()
        self.close()

    # --- members ----------------------------------------------------------------------------------

    def worker(
        self,
        name: str = "",
        *,
        queues: str = "default",
        concurrency: int = 20,
        grace: float = 30.0,
        ready: bool = True,
        env: dict[str, str] | None = None,
    ) -> WorkerProcess:
        """Starts a worker process."""
        name = name or f"w{next(self._names)}"
        words = [
            "worker",
            "chaos.workload:app",
            "-q",
            f"{queues},{name}",
            "-c",
            str(concurrency),
            "--grace",
            f"{grace}s",
        ]
        worker = WorkerProcess(self, name, "weft", words, env or {})
        self.members.append(worker)
        self.workers.append(worker)
        return worker.await_ready() if ready else worker

    def keeper(self) -> WorkerProcess:
        """Starts a worker that serves nothing but does the housekeeping: nobody waits for a dead leader's lease."""
        return self.worker(KEEPER, queues="nothing")

    def start_workers(self, n: int, **options: Any) -> list[WorkerProcess]:
        """Starts workers side by side and waits for all."""
        workers = [self.worker(ready=False, **options) for _ in range(n)]
        return [worker.await_ready() for worker in workers]

    def producer(
        self,
        *,
        n: int = 0,
        seed: int = 0,
        ops: list[Any] | None = None,
        mix: dict[str, float] | None = None,
        rate: float = 0,
        parallel: int = 8,
        env: dict[str, str] | None = None,
    ) -> ProducerProcess:
        """Starts a producer process that makes `n` calls, or just those of `ops`."""
        name = f"p{next(self._names)}"
        plan = {"n": n, "seed": seed, "mix": mix or MIX, "rate": rate, "parallel": parallel, "ops": ops}
        ledger = self.directory / f"{name}.ledger"
        producer = ProducerProcess(self, name, "chaos.producer", [str(ledger), json.dumps(plan)], env or {})
        producer.ledger = ledger
        self.members.append(producer)
        self.producers.append(producer)
        return producer

    def note_baseline(self) -> None:
        """Notes what every worker holds, to compare with after the heal, once all that it begins with is connected."""
        found: dict[str, int] = {}
        still = 0
        while still < STILL:
            found, before = {each.name: psutil.Process(each.pid).num_fds() for each in self.live_workers}, found
            still = still + 1 if found == before else 0
            time.sleep(0.1)
        self.baseline = found

    def now_ms(self) -> int:
        """The server's clock."""
        seconds, micros = self.server.client.execute_command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    @property
    def live_workers(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.alive]

    def freeze(self, worker: WorkerProcess) -> dict[str, RunRow]:
        """SIGSTOP, and waits until it stands still; returns the runs whose steps are in its hands."""
        worker.send(signal.SIGSTOP)
        wait_for(
            f"{worker.name} to stop", lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED, every=0.001
        )
        return self.in_hand(worker)

    def in_hand(self, worker: WorkerProcess, queue: str = "default", priority: int = 5) -> dict[str, RunRow]:
        """The runs whose steps a worker has claimed from one queue and not ended."""
        client, stream = self.server.client, self.keys.tasks(0, queue, priority)
        try:
            pending = client.execute_command("XPENDING", stream, GROUP, "-", "+", 1000, worker.session)
        except redis.ResponseError as error:
            # A queue that was emptied is no longer there, and a new one has no group before the first claim.
            if not str(error).startswith("NOGROUP"):
                raise
            return {}
        found = {}
        for entry, *_ in pending:
            for _, fields in client.execute_command("XRANGE", stream, entry, entry):
                flat = client.execute_command("HGETALL", self.keys.run(0, run := fields[1].decode()))
                hash = {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}
                found[run] = RunRow(run, SPEC_DECODER.decode(hash["spec"]), hash)
        return found

    def kill_holding(
        self, worker: WorkerProcess, least: int = 1, *, more: Callable[[], object] = lambda: None
    ) -> dict[str, RunRow]:
        """Kills a worker while it holds steps, none of which dies its third death by it: that would be another story.

        `more` brings work now and then, where others may be done with all there is before this one has any.
        """
        deadline = time.monotonic() + PATIENCE
        next_more = time.monotonic() + 1.0
        while True:
            held = self.freeze(worker)
            if len(held) >= least and all(int(row.text("crashes") or 0) < MAX_CRASHES - 1 for row in held.values()):
                worker.kill()
                return held
            worker.send(signal.SIGCONT)
            if time.monotonic() > next_more:
                more()
                next_more = time.monotonic() + 1.0
            assert time.monotonic() < deadline, f"{worker.name} never held {least} steps: {held}"
            time.sleep(0.02)

    @property
    def deaths(self) -> dict[str, float]:
        """When the scenario killed whom."""
        return {member.name: member.died_at for member in self.members if member.died_at is not None}

    # --- driving by hand --------------------------------------------------------------------------

    @property
    def app(self) -> Any:
        return self._thread.app

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop `call` runs on."""
        return self._thread.loop

    @property
    def _thread(self) -> LoopThread:
        if self._loop is None:
            self._loop = LoopThread(self)
        return self._loop

    def call(self, work: Coroutine[Any, Any, T], timeout: float = PATIENCE) -> T:
        """Runs a coroutine on the scenario's own client and returns its result."""
        return self._thread.call(work, timeout)

    def start(self, task: str, *args: Any, timeout: float = PATIENCE, **options: Any) -> Run[Any]:
        """Starts one run from the test's own process."""
        run = self.call(self.app.tasks[task].options(**options).enqueue(*args), timeout)
        self.started.append(run.id)
        return run  # type: ignore[no-any-return]

    def start_many(self, task: str, items: list[tuple[Any, ...]], **options: Any) -> list[str]:
        """Starts many runs of one task; returns their ids."""
        runs = self.call(self.app.tasks[task].options(**options).enqueue_many(items))
        self.started += [run.id for run in runs]
        return [run.id for run in runs]

    def result(self, run: Run[Any], timeout: float = PATIENCE) -> Any:
        return self.call(run.result(timeout), timeout + 5)

    def gate(self, name: str = "gate") -> Path:
        """Names a file that `hold` waits for; `touch` it to let go."""
        return self.directory / f"{name}-{next(self._names)}"

    def acked(self) -> list[str]:
        """Every run whose start was acknowledged to anybody."""
        return [*self.started, *(run for producer in self.producers for run in producer.acked())]

    # --- end --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends every process that this fleet started, and those they started."""
        if self._loop is not None:
            self._loop.close()
        for member in self.members:
            with contextlib.suppress(ProcessLookupError):
                member.process.kill()
            member.process.wait()
        if not self._borrowed:
            self.server.close()
        for process in self._strays():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _strays(self) -> list[psutil.Process]:
        """Children of killed workers: found by the variable that only this fleet's processes have."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("CHAOS_FLEET") == str(self.directory):
                    found.append(process)
        return found

    def _show_logs(self) -> None:
        for member in self.members:
            if text := member.log:
                sys.stderr.write(f"\n----- {member.name} (alive: {member.alive}) -----\n{text[-4000:]}")


class LoopThread:
    """A client of the fleet's store on a loop of its own, so that scenarios read as plain lines."""

    def __init__(self, fleet: Fleet) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="chaos client", daemon=True)
        self._thread.start()
        self.app = client_app(fleet.server.url, fleet.namespace)

    def call(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.call(self.app.close(), 10)
        with contextlib.suppress(Exception):
            self.call(_cancel_rest(), 5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()


async def _cancel_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
