"""The crash-point sweep over every way to start a run and everything that becomes of one. See `boundaries`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.boundaries import Scenario, sample, sweep
from chaos.fleet import Fleet
from chaos.server import ServerProcess

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
    "BLPOP", "CONFIG", "HDEL", "HGETALL", "HMGET", "INFO", "SUBSCRIBE", "TIME", "XTRIM", "SCAN", "ZSCAN", "pipeline",
    "ZRANGEBYLEX", "read_timers", "renew_session", "take_lease", "emit_lost_steps", "SMEMBERS",
}  # fmt: skip
#: Contact calls that some runs of the scenario are over too soon to make.
RARE = {"HDEL", "SCAN", "ZSCAN", "emit_lost_steps", "TIME", "XTRIM", "HGETALL", "ZRANGEBYLEX"}

PLAIN = Scenario(
    name="plain",
    ops=OPS,
    runs=RUNS,
    producer_work=PRODUCER_WORK,
    producer_contact=PRODUCER_CONTACT,
    worker_work=WORKER_WORK,
    worker_contact=WORKER_CONTACT,
    rare=RARE,
)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with Fleet() as owner:
        yield owner.server


def test_a_worker_may_die_at_some_boundaries(server: ServerProcess) -> None:
    points = sample(PLAIN.worker_points(server), WORKER_WORK, PLAIN.rare, 3, seed=1)
    sweep(points, PLAIN.kill_worker_at, server, at_once=4, work=WORKER_WORK)


def test_a_producer_may_die_at_some_boundaries(server: ServerProcess) -> None:
    points = sample(PLAIN.producer_points(server), PRODUCER_WORK, PLAIN.rare, 2, seed=3)
    sweep(points, PLAIN.kill_producer_at, server, at_once=3, work=PRODUCER_WORK)


@pytest.mark.chaos
def test_a_worker_may_die_at_every_boundary(server: ServerProcess) -> None:
    sweep(PLAIN.worker_points(server), PLAIN.kill_worker_at, server, at_once=6, work=WORKER_WORK)


@pytest.mark.chaos
def test_a_producer_may_die_at_every_boundary(server: ServerProcess) -> None:
    sweep(PLAIN.producer_points(server), PLAIN.kill_producer_at, server, at_once=6, work=PRODUCER_WORK)
