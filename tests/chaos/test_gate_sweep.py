"""The crash-point sweep over limits: a worker and a producer die at every boundary of work that waits, joins and settles.

The sorts of calls are those of `test_sweep`; the scenario has a census of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.checker import Limits, await_rest, check, check_new_work
from chaos.fleet import Fleet, ProducerProcess, wait_for
from chaos.server import ServerProcess
from chaos.test_sweep import PRODUCER_CONTACT, RARE, WORKER_CONTACT, census, sample, sweep, unique, victim_of
from weft.testing.crash import CRASH_AT, CRASH_LOG, read_points

#: Everything that meets a limit or counts as one with another: lines of one key, of a task and of both; a retry that gives
#: its slot back; a delay before a gate; equal calls; calls that settle.
OPS = [
    *(["keyed", {"who": "a", "n": n, "ms": 5}, {}] for n in range(3)),
    *(["booth", {"who": who, "n": n, "ms": 5}, {}] for n, who in enumerate("aabb")),
    *(["turn", {"who": who, "n": n, "ms": 5}, {}] for n, who in enumerate("aab")),
    ["shaky", {"n": 1, "fails": 1}, {}],
    ["turn", {"who": "b", "n": 9, "ms": 5}, {"delay": "100ms"}],
    ["single", {"n": 1}, {}],
    ["single", {"n": 1}, {}],
    ["settled", {"n": 1}, {}],
    ["settled", {"n": 2}, {}],
]
#: Runs that those make: of two equal calls one, of two that settle one.
RUNS = len(OPS) - 2
OUTCOMES = RUNS + 1

#: The second call that settles tries to change the first, and starts none when it can.
PRODUCER_WORK = {"start_runs": (len(OPS) - 1, len(OPS)), "debounce_run": (1, 2)}
WORKER_WORK = {
    "claim_steps": (3, OUTCOMES * 3),
    "commit_steps": (3, OUTCOMES),
    "admit_steps": (2, OUTCOMES * 3),
    "fire_timers": (1, 4),
    "end_session": (1, 1),
    "drop_lease": (2, 2),
}
#: Besides those of every worker: a look at who holds the slots that others wait for.
GATED_CONTACT = {*WORKER_CONTACT, "ZRANGE"}
#: Contact calls that come only while somebody waits, or do not come in a scenario as short as this.
SOMETIMES = {*RARE, "ZRANGE"}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with Fleet() as owner:
        yield owner.server


def produce(fleet: Fleet, **env: str) -> ProducerProcess:
    return fleet.producer(ops=OPS, parallel=1, env=env)


def worker_points(server: ServerProcess) -> list[str]:
    with Fleet(server=server, namespace=unique("gated")) as fleet:
        produce(fleet).finish()
        victim = victim_of(fleet, **{CRASH_LOG: str(fleet.directory / "points")}).await_ready()
        await_rest(fleet)
        victim.stop()
        check(fleet)
        return census(read_points(fleet.directory / "points"), WORKER_WORK, GATED_CONTACT, SOMETIMES)


def producer_points(server: ServerProcess) -> list[str]:
    with Fleet(server=server, namespace=unique("gated")) as fleet:
        produce(fleet, **{CRASH_LOG: str(fleet.directory / "points")}).finish()
        fleet.worker()
        check(fleet)
        return census(read_points(fleet.directory / "points"), PRODUCER_WORK, PRODUCER_CONTACT | {"GET"}, SOMETIMES)


def kill_worker_at(server: ServerProcess, point: str) -> bool:
    """Kills a worker at one point and lets another one finish; returns whether the point was reached."""
    with Fleet(server=server, namespace=unique("gated"), lease="1s") as fleet:
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
    with Fleet(server=server, namespace=unique("gated"), lease="1s") as fleet:
        died = produce(fleet, **{CRASH_AT: point}).await_end() == -9
        produce(fleet).finish()
        rescuer = fleet.worker("rescuer")
        # Timers that came due before there was a worker are late by no fault of their own.
        state = check(fleet, Limits(crashes=0, success=0.4), healed_at_ms=fleet.now_ms())
        assert len(state.runs) >= RUNS
        assert sum(row.spec.name == "single" for row in state.runs.values()) == 1, "equal calls became two runs"
        rescuer.stop()
        return died


def _all_done(fleet: Fleet) -> bool:
    entries = fleet.server.client.execute_command("XRANGE", fleet.keys.log(0), "-", "+")
    ends = sum(
        value.partition(b"|")[2].startswith((b"completed", b"failed"))
        for _, fields in entries
        for value in fields[5::2]
    )
    return ends == RUNS


def test_a_worker_may_die_at_some_boundaries_of_limited_work(server: ServerProcess) -> None:
    points = sample(worker_points(server), WORKER_WORK, 3, seed=2)
    sweep(points, kill_worker_at, server, at_once=4, work=WORKER_WORK)


def test_a_producer_may_die_at_some_boundaries_of_limited_work(server: ServerProcess) -> None:
    points = sample(producer_points(server), PRODUCER_WORK, 2, seed=5)
    sweep(points, kill_producer_at, server, at_once=3, work=PRODUCER_WORK)


@pytest.mark.chaos
def test_a_worker_may_die_at_every_boundary_of_limited_work(server: ServerProcess) -> None:
    sweep(worker_points(server), kill_worker_at, server, at_once=6, work=WORKER_WORK)


@pytest.mark.chaos
def test_a_producer_may_die_at_every_boundary_of_limited_work(server: ServerProcess) -> None:
    sweep(producer_points(server), kill_producer_at, server, at_once=6, work=PRODUCER_WORK)
