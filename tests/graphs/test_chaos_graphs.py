"""Random graphs on worker processes that are killed and stopped: they come to what the reference says all the same."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections import Counter

import pytest
import redis

from chaos.fleet import Fleet, WorkerProcess, wait_for
from graphs.comparing import differences, start
from graphs.generator import Graph
from leaks import find_leaks

#: Longer than the lease of these fleets: a worker that is stopped so long has lost its steps when it goes on.
ZOMBIE_S = 1.6


@pytest.fixture(scope="session")
def partitions() -> int:
    """The fleet's client reads one partition."""
    return 1


class Trouble(threading.Thread):
    """Kills workers and makes zombies of them, one after the other, until it is told to end."""

    def __init__(self, fleet: Fleet, seed: int, every: float) -> None:
        super().__init__(daemon=True)
        self.fleet, self.rng, self.every = fleet, random.Random(seed), every
        self.over, self.quiet, self.released = threading.Event(), threading.Event(), threading.Event()
        self.done: Counter[str] = Counter()

    def run(self) -> None:
        while not self.over.wait(self.every * self.rng.uniform(0.5, 1.5)):
            worker = self.rng.choice(self.fleet.live_workers)
            if self.rng.random() < 0.6:
                worker.kill()
                self.fleet.worker()
                self.done["kills"] += 1
            else:
                self._freeze(worker)
                self.done["zombies"] += 1
        self.quiet.set()
        # The workers it started are to die with whoever started them, which to the kernel is this thread.
        self.released.wait()

    def _freeze(self, worker: WorkerProcess) -> None:
        worker.send(signal.SIGSTOP)
        time.sleep(ZOMBIE_S)
        worker.send(signal.SIGCONT)

    def end(self) -> None:
        """Makes no more trouble; the thread itself stays until it is released."""
        self.over.set()
        assert self.quiet.wait(60)


def go_through(seeds: range, *, wave: int, every: float, workers: int) -> None:
    with Fleet(lease="1s") as fleet:
        fleet.start_workers(workers)
        trouble = Trouble(fleet, seeds[0], every)
        trouble.start()
        found: list[str] = []
        for at in range(0, len(seeds), wave):
            graphs = [Graph(seed) for seed in seeds[at : at + wave]]
            found += fleet.call(_wave(fleet, graphs), 300)
            if len(found) > 20:
                break
        trouble.end()
        print(f"{len(seeds)} graphs, {dict(trouble.done)}")
        assert not found, "\n".join(found)
        keys = fleet.keys
        wait_for(
            "ended runs to be put away",
            lambda: not fleet.server.client.execute_command("ZCARD", keys.timers(0)),
        )
        for worker in fleet.live_workers:
            worker.stop()
        trouble.released.set()
        excused = ("sessions", "history")  # the log is trimmed by age, and the dead are listed until they are swept
        with redis.Redis(unix_socket_path=str(fleet.server.socket)) as client:
            leaks = [text for what, text in find_leaks(client, fleet.namespace) if what not in excused]
        assert not leaks, "\n".join(leaks)


async def _wave(fleet: Fleet, graphs: list[Graph]) -> list[str]:
    runs = [await start(fleet.app, graph) for graph in graphs]
    compared = (differences(graph, run, 90) for graph, run in zip(graphs, runs, strict=True))
    return [line for lines in await asyncio.gather(*compared) for line in lines]


def test_some_random_graphs_survive_killed_workers_and_zombies() -> None:
    go_through(range(2_000, 2_016), wave=16, every=0.7, workers=2)


@pytest.mark.chaos
def test_a_thousand_random_graphs_survive_killed_workers_and_zombies() -> None:
    go_through(range(3_000, 4_000), wave=50, every=1.5, workers=3)
