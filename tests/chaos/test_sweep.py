"""The crash-point sweep: a process is killed at every boundary of every Redis call it makes, before and after.

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
from collections.abc import Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor

import pytest

from chaos.checker import Limits, await_rest, check, check_new_work
from chaos.fleet import Fleet, ProducerProcess, WorkerProcess, wait_for
from chaos.server import ServerProcess
from weft.testing.crash import CRASH_AT, CRASH_LOG, read_points

#: What the producer asks for: every way to start a run, one after the other.
OPS = [
    ["effect", {"n": 1}, {}],
    ["flaky", {"n": 2, "fails": 1}, {}],
    ["effect", {"n": 3}, {"delay": "150ms"}],
    ["bulky", {"n": 4}, {}],
    ["swallow", {"text": "x" * 6_000}, {}],
    ["telling", {"n": 5}, {}],
    ["many", {"n": 6, "count": 3}, {}],
    ["effect", {"n": 7}, {"idempotency_key": "k"}],
    ["effect", {"n": 7}, {"idempotency_key": "k"}],
    ["doomed", {"n": 8}, {}],
]

#: Runs that those make, and outcomes that come of them: one attempt of `flaky` is committed twice.
RUNS, OUTCOMES = 11, 12

#: How often a producer makes each call of the work sort, at least and at most: a `start_runs` per operation, a `SET`
#: for the large input.
PRODUCER_WORK = {"start_runs": (len(OPS), len(OPS)), "SET": (1, 1)}
PRODUCER_CONTACT = {"CONFIG", "HMGET", "HSETNX", "INFO", "pipeline"}

#: A worker with one slot: a commit per outcome or two, a `SET` for the large result, a `GET` for the large input.
WORKER_WORK = {
    "claim_steps": (OUTCOMES // 2, OUTCOMES * 3),
    "commit_steps": (OUTCOMES // 2, OUTCOMES),
    "report_steps": (1, 3),
    "fire_timers": (1, 3),
    "SET": (1, 1),
    "GET": (1, 1),
    "end_session": (1, 1),
    "drop_lease": (2, 2),
}
WORKER_CONTACT = {
    "BLPOP", "CONFIG", "HGETALL", "HMGET", "INFO", "SUBSCRIBE", "TIME", "XTRIM", "SCAN", "ZSCAN", "pipeline",
    "read_timers", "renew_session", "take_lease", "emit_lost_steps", "SMEMBERS",
}  # fmt: skip
#: Contact calls that some runs of the scenario are over too soon to make.
RARE = {"SCAN", "ZSCAN", "emit_lost_steps", "TIME", "XTRIM", "HGETALL"}

#: How many of each contact call the sweep dies at.
CONTACTS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with Fleet() as owner:
        yield owner.server


_numbers = itertools.count(1)


def unique(word: str) -> str:
    """Names a namespace that no other case has."""
    return f"{word}-{next(_numbers)}"


def produce(fleet: Fleet, **env: str) -> ProducerProcess:
    return fleet.producer(ops=OPS, parallel=1, env=env)


def victim_of(fleet: Fleet, **env: str) -> WorkerProcess:
    return fleet.worker("victim", concurrency=1, ready=False, env=env)


def census(
    points: list[str], work: dict[str, tuple[int, int]], contact: set[str], rare: Set[str] = frozenset(RARE)
) -> list[str]:
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


def worker_points(server: ServerProcess) -> list[str]:
    """Runs the worker's scenario unharmed and returns where it can die."""
    with Fleet(server=server, namespace=unique("census")) as fleet:
        produce(fleet).finish()
        victim = victim_of(fleet, **{CRASH_LOG: str(fleet.directory / "points")}).await_ready()
        await_rest(fleet)
        victim.stop()
        check(fleet)
        return census(read_points(fleet.directory / "points"), WORKER_WORK, WORKER_CONTACT)


def producer_points(server: ServerProcess) -> list[str]:
    with Fleet(server=server, namespace=unique("census")) as fleet:
        produce(fleet, **{CRASH_LOG: str(fleet.directory / "points")}).finish()
        fleet.worker()
        check(fleet)
        return census(read_points(fleet.directory / "points"), PRODUCER_WORK, PRODUCER_CONTACT)


def kill_worker_at(server: ServerProcess, point: str) -> bool:
    """Kills a worker at one point and lets another one finish; returns whether the point was reached."""
    with Fleet(server=server, namespace=unique("worker"), lease="1s") as fleet:
        produce(fleet).finish()
        victim = victim_of(fleet, **{CRASH_AT: point})
        wait_for(
            f"the victim to die at {point} or to have nothing left to do",
            lambda: not victim.alive or _all_done(fleet),
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


def kill_producer_at(server: ServerProcess, point: str) -> bool:
    """Kills a producer at one point; a second one asks for the same again, as a user would."""
    with Fleet(server=server, namespace=unique("producer"), lease="1s") as fleet:
        victim = produce(fleet, **{CRASH_AT: point})
        died = victim.await_end() == -9
        produce(fleet).finish()
        rescuer = fleet.worker("rescuer")
        # Timers that came due before there was a worker are late by no fault of their own.
        state = check(fleet, Limits(crashes=0, success=0.4), healed_at_ms=fleet.now_ms())
        assert len(state.runs) >= RUNS
        rescuer.stop()
        return died


def _all_done(fleet: Fleet) -> bool:
    client, log = fleet.server.client, fleet.keys.log(0)
    ends = sum(
        value.partition(b"|")[2].startswith((b"completed", b"failed"))
        for _, fields in client.execute_command("XRANGE", log, "-", "+")
        for value in fields[5::2]
    )
    return ends == RUNS


def sweep(
    points: Iterable[str],
    kill: object,
    server: ServerProcess,
    *,
    at_once: int,
    work: dict[str, tuple[int, int]] = WORKER_WORK | PRODUCER_WORK,
) -> None:
    """Kills at every point, several at once: each has a namespace of its own."""
    points = list(points)
    least = {call: at_least for call, (at_least, _) in work.items()}
    with ThreadPoolExecutor(at_once) as pool:
        reached = list(pool.map(kill, itertools.repeat(server), points))  # type: ignore[arg-type]
    missed = [point for point, died in zip(points, reached, strict=True) if not died]
    print(f"killed at {len(points) - len(missed)} of {len(points)} boundaries; not reached this time: {missed}")
    # What comes with time does not come every time; the least of what a run's life consists of does.
    assert not [point for point in missed if int(point.split(":")[2]) <= least.get(point.split(":")[1], 0)]
    assert len(missed) <= max(1, len(points) // 5)


def sample(points: list[str], work: dict[str, tuple[int, int]], n: int, seed: int) -> list[str]:
    """Returns some points, spread over calls of both sorts, that are passed in every run."""
    certain = [p for p in points if int(p.split(":")[2]) <= work.get(p.split(":")[1], (1, 1))[0]]
    rng = random.Random(seed)
    of_work = [point for point in certain if point.split(":")[1] in work]
    of_contact = [point for point in certain if point not in of_work and point.split(":")[1] not in RARE]
    return [*rng.sample(of_work, n), *rng.sample(of_contact, n // 2)]


def test_a_worker_may_die_at_some_boundaries(server: ServerProcess) -> None:
    sweep(sample(worker_points(server), WORKER_WORK, 3, seed=1), kill_worker_at, server, at_once=4)


def test_a_producer_may_die_at_some_boundaries(server: ServerProcess) -> None:
    sweep(sample(producer_points(server), PRODUCER_WORK, 2, seed=3), kill_producer_at, server, at_once=3)


@pytest.mark.chaos
def test_a_worker_may_die_at_every_boundary(server: ServerProcess) -> None:
    sweep(worker_points(server), kill_worker_at, server, at_once=6)


@pytest.mark.chaos
def test_a_producer_may_die_at_every_boundary(server: ServerProcess) -> None:
    sweep(producer_points(server), kill_producer_at, server, at_once=6)
