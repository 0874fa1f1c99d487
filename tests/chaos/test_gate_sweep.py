"""The crash-point sweep over limits: a worker and a producer die at every boundary of work that waits, joins and settles.

The sorts of calls are those of `boundaries`; the scenario has a census of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.boundaries import Scenario, sample, sweep
from chaos.checker import State
from chaos.fleet import Fleet
from chaos.server import ServerProcess
from chaos.test_sweep import PRODUCER_CONTACT, RARE, WORKER_CONTACT

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
    "forget_unique": (1, 2),
    "end_session": (1, 1),
    "drop_lease": (2, 2),
}
#: Besides those of every worker: a look at who holds the slots that others wait for.
GATED_CONTACT = {*WORKER_CONTACT, "ZRANGE"}
#: Contact calls that come only while somebody waits, or do not come in a scenario as short as this.
SOMETIMES = {*RARE, "ZRANGE"}


def equal_calls_are_one(state: State) -> None:
    assert sum(row.spec.name == "single" for row in state.runs.values()) == 1, "equal calls became two runs"


GATED = Scenario(
    name="gated",
    ops=OPS,
    runs=RUNS,
    producer_work=PRODUCER_WORK,
    producer_contact=PRODUCER_CONTACT | {"GET"},
    worker_work=WORKER_WORK,
    worker_contact=GATED_CONTACT,
    rare=SOMETIMES,
    holds=equal_calls_are_one,
)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with Fleet() as owner:
        yield owner.server


def test_a_worker_may_die_at_some_boundaries_of_limited_work(server: ServerProcess) -> None:
    points = sample(GATED.worker_points(server), WORKER_WORK, GATED.rare, 3, seed=2)
    sweep(points, GATED.kill_worker_at, server, at_once=4, work=WORKER_WORK)


def test_a_producer_may_die_at_some_boundaries_of_limited_work(server: ServerProcess) -> None:
    points = sample(GATED.producer_points(server), PRODUCER_WORK, GATED.rare, 2, seed=5)
    sweep(points, GATED.kill_producer_at, server, at_once=3, work=PRODUCER_WORK)


@pytest.mark.chaos
def test_a_worker_may_die_at_every_boundary_of_limited_work(server: ServerProcess) -> None:
    sweep(GATED.worker_points(server), GATED.kill_worker_at, server, at_once=6, work=WORKER_WORK)


@pytest.mark.chaos
def test_a_producer_may_die_at_every_boundary_of_limited_work(server: ServerProcess) -> None:
    sweep(GATED.producer_points(server), GATED.kill_producer_at, server, at_once=6, work=PRODUCER_WORK)
