"""Crash-point sweeps: a process is killed at every boundary of every Redis call it makes, before and after.

The boundaries of a scenario are counted by running it once unharmed. How many there are of each kind is of two sorts:

- *work*: calls that a run's life consists of. Their least and their greatest number follow from the scenario and are
  asserted (outcomes that end together share a commit, so even these vary); the sweep kills at every one of them.
- *contact*: calls that come with time (leases, timers, wake-ups, checks of the server behind a new connection). Their
  number varies from run to run, so only their kinds are asserted; the sweep kills at the first few of each.

A call of a new kind fails the census, and whoever added it says here of which sort it is.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from chaos.checker import Limits, State, await_rest, check, check_new_work
from chaos.fleet import Fleet, ProducerProcess, WorkerProcess, wait_for
from chaos.server import ServerProcess
from weft.testing.crash import CRASH_AT, CRASH_LOG, read_points

#: How often a call is made, at least and at most, by its name.
Work = dict[str, tuple[int, int]]

#: How many of each contact call the sweep dies at.
CONTACTS = 4

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Scenario:
    """What a producer asks for, and the calls that it and a worker with one slot make of it."""

    name: str
    ops: list[Any]
    #: Runs that those make.
    runs: int
    producer_work: Work
    producer_contact: Set[str]
    worker_work: Work
    worker_contact: Set[str]
    #: Contact calls that some runs of the scenario are over too soon to make.
    rare: Set[str]
    #: What else holds of the runs, however often the producer asked.
    holds: Callable[[State], None] = lambda state: None

    def fleet(self, server: ServerProcess, **options: Any) -> Fleet:
        """Makes a fleet in a namespace that no other case has."""
        return Fleet(server=server, namespace=f"{self.name}-{next(_numbers)}", **options)

    def produce(self, fleet: Fleet, **env: str) -> ProducerProcess:
        return fleet.producer(ops=self.ops, parallel=1, env=env)

    def worker_points(self, server: ServerProcess) -> list[str]:
        """Runs the worker's part unharmed and returns where it can die."""
        with self.fleet(server) as fleet:
            self.produce(fleet).finish()
            victim = victim_of(fleet, **{CRASH_LOG: str(fleet.directory / "points")}).await_ready()
            await_rest(fleet)
            victim.stop()
            check(fleet)
            return census(read_points(fleet.directory / "points"), self.worker_work, self.worker_contact, self.rare)

    def producer_points(self, server: ServerProcess) -> list[str]:
        with self.fleet(server) as fleet:
            self.produce(fleet, **{CRASH_LOG: str(fleet.directory / "points")}).finish()
            fleet.worker()
            check(fleet)
            return census(read_points(fleet.directory / "points"), self.producer_work, self.producer_contact, self.rare)

    def kill_worker_at(self, server: ServerProcess, point: str) -> bool:
        """Kills a worker at one point and lets another one finish; returns whether the point was reached."""
        with self.fleet(server, lease="1s") as fleet:
            self.produce(fleet).finish()
            victim = victim_of(fleet, **{CRASH_AT: point})
            wait_for(
                f"the victim to die at {point} or to have nothing left to do",
                lambda: not victim.alive or self._all_done(fleet),
            )
            if victim.alive:  # the point may lie in its drain
                victim.process.terminate()
                victim.await_end()
            assert victim.process.returncode in (-9, 0), victim.log
            rescuer = fleet.worker("rescuer")
            healed = fleet.now_ms()
            check_new_work(fleet)
            check(fleet, Limits(crashes=1), healed_at_ms=healed)
            rescuer.stop()
            return victim.process.returncode == -9

    def kill_producer_at(self, server: ServerProcess, point: str) -> bool:
        """Kills a producer at one point; a second one asks for the same again, as a user would."""
        with self.fleet(server, lease="1s") as fleet:
            died = self.produce(fleet, **{CRASH_AT: point}).await_end() == -9
            self.produce(fleet).finish()
            rescuer = fleet.worker("rescuer")
            # Timers that came due before there was a worker are late by no fault of their own.
            state = check(fleet, Limits(crashes=0, success=0.4), healed_at_ms=fleet.now_ms())
            assert len(state.runs) >= self.runs
            self.holds(state)
            rescuer.stop()
            return died

    def _all_done(self, fleet: Fleet) -> bool:
        entries = fleet.server.client.execute_command("XRANGE", fleet.keys.log(0), "-", "+")
        ends = sum(
            value.partition(b"|")[2].startswith((b"completed", b"failed"))
            for _, fields in entries
            for value in fields[5::2]
        )
        return ends == self.runs


def victim_of(fleet: Fleet, **env: str) -> WorkerProcess:
    return fleet.worker("victim", concurrency=1, ready=False, env=env)


def census(points: list[str], work: Work, contact: Set[str], rare: Set[str]) -> list[str]:
    """Checks what was passed against what is declared; returns the points to die at."""
    counts = Counter(point.rpartition(":")[0] for point in points)
    print(f"\n{len(points)} boundaries of {len(counts)} kinds passed: {dict(sorted(counts.items()))}")
    for call, (least, most) in work.items():
        before, after = counts[f"before:{call}"], counts[f"after:{call}"]
        # A call that is under way when the worker is told to stop is cancelled: it is begun and not ended.
        assert least <= after <= before <= min(most, after + 1), f"{call}: {before} and {after}, not {least} to {most}"
    seen = {kind.partition(":")[2] for kind in counts}
    assert seen <= work.keys() | contact, f"calls of a new kind: {seen - work.keys() - contact}"
    assert seen >= (work.keys() | contact) - rare, f"calls that are never made: {(work.keys() | contact) - seen}"
    chosen = []
    for kind, n in sorted(counts.items()):
        most = n if kind.partition(":")[2] in work else min(n, CONTACTS)
        chosen += [f"{kind}:{k}" for k in range(1, most + 1)]
    print(f"{len(chosen)} of them to die at")
    return chosen


def sweep(
    points: Iterable[str],
    kill: Callable[[ServerProcess, str], bool],
    server: ServerProcess,
    *,
    at_once: int,
    work: Work,
) -> None:
    """Kills at every point, several at once: each has a namespace of its own."""
    points = list(points)
    least = {call: at_least for call, (at_least, _) in work.items()}
    with ThreadPoolExecutor(at_once) as pool:
        reached = list(pool.map(kill, itertools.repeat(server), points))
    missed = [point for point, died in zip(points, reached, strict=True) if not died]
    print(f"killed at {len(points) - len(missed)} of {len(points)} boundaries; not reached this time: {missed}")
    # What comes with time does not come every time; the least of what a run's life consists of does.
    assert not [point for point in missed if int(point.split(":")[2]) <= least.get(point.split(":")[1], 0)]
    assert len(missed) <= max(1, len(points) // 5)


def sample(points: list[str], work: Work, rare: Set[str], n: int, seed: int) -> list[str]:
    """Returns some points, spread over calls of both sorts, that are passed in every run."""
    certain = [p for p in points if int(p.split(":")[2]) <= work.get(p.split(":")[1], (1, 1))[0]]
    rng = random.Random(seed)
    of_work = [point for point in certain if point.split(":")[1] in work]
    of_contact = [point for point in certain if point not in of_work and point.split(":")[1] not in rare]
    return [*rng.sample(of_work, n), *rng.sample(of_contact, n // 2)]
