"""kill -9 of workers: before the effect, after it, after the commit was applied but before its reply was read."""

from __future__ import annotations

import random
from pathlib import Path

import psutil
import pytest

from chaos.checker import Limits, State, check, check_new_work
from chaos.fleet import Fleet, wait_for
from weft.testing.crash import CRASH_AT


def open_gates(gate: Path) -> None:
    for number in (1, 2):
        Path(f"{gate}.{number}").touch()


def executions(state: State, run: str) -> list[int]:
    """The deliveries that were executed, in order."""
    return [row.delivery for row in state.effects[run] if row.phase == "before"]


def test_a_worker_killed_before_its_effect_loses_nothing() -> None:
    with Fleet() as fleet:
        gate = fleet.gate()
        fleet.keeper()
        victim = fleet.worker()
        run = fleet.start("staged", str(gate))
        wait_for("the step to begin", lambda: fleet.effects.find("before", run.id))

        victim.kill()
        open_gates(gate)
        fleet.worker()

        assert fleet.result(run) == str(gate)
        state = check(fleet, Limits(crashes=1))
        assert executions(state, run.id) == [1, 2]
        assert [row.delivery for row in state.effects[run.id] if row.phase == "effect"] == [2]


def test_a_worker_killed_after_its_effect_has_it_again_under_the_same_key_and_a_higher_fence() -> None:
    with Fleet() as fleet:
        gate = fleet.gate()
        fleet.keeper()
        victim, other = fleet.start_workers(2, concurrency=1)
        run = fleet.start("staged", str(gate))
        Path(f"{gate}.1").touch()
        first = wait_for("the effect", lambda: fleet.effects.find("effect", run.id))[0]

        next(worker for worker in (victim, other) if worker.name == first.worker).kill()
        open_gates(gate)

        assert fleet.result(run) == str(gate)
        state = check(fleet, Limits(crashes=1))
        second = [row for row in state.effects[run.id] if row.phase == "effect"][1]
        assert (second.key, second.attempt, second.delivery) == (first.key, 1, 2)
        assert second.fence > first.fence


def test_a_worker_killed_between_the_commit_and_its_reply_is_not_run_again() -> None:
    with Fleet() as fleet:
        victim = fleet.worker(env={CRASH_AT: "after:commit_steps:1"})
        run = fleet.start("effect", 4)
        victim.await_end()
        fleet.worker()

        assert fleet.result(run) == 17
        check_new_work(fleet)
        state = check(fleet, Limits(crashes=0))
        assert executions(state, run.id) == [1]
        assert [event.type for event in state.events[run.id]] == ["queued", "completed"]


@pytest.mark.chaos
def test_the_children_of_a_killed_worker_do_not_outlive_their_work() -> None:
    with Fleet() as fleet:
        victim = fleet.worker()
        run = fleet.start("busy", 1_500)
        child = wait_for("the child to work", lambda: fleet.effects.find("before", run.id))[0].pid
        assert child != victim.pid

        victim.kill()

        wait_for("the orphan to end", lambda: not psutil.pid_exists(child))
        fleet.worker()
        assert fleet.result(run) == 1_500
        check(fleet, Limits(crashes=1))


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
def test_twenty_workers_killed_at_once_under_load_lose_nothing(seed: int) -> None:
    with Fleet() as fleet:
        doomed = fleet.start_workers(20, concurrency=10)
        producers = [fleet.producer(n=400, seed=seed * 2 + i, rate=150) for i in range(2)]
        for producer in producers:
            producer.await_acks(150)
        wait_for("work to be under way", lambda: len(fleet.effects.rows()) > 200)

        for worker in doomed:
            worker.process.kill()
        for worker in doomed:
            worker.process.wait()
        fleet.start_workers(3)

        for producer in producers:
            producer.finish()
        check_new_work(fleet)
        check(fleet, Limits(crashes=20, late=30), settle=90)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(5))
def test_workers_killed_one_by_one_under_load_lose_nothing(seed: int) -> None:
    rng = random.Random(seed)
    with Fleet() as fleet:
        fleet.start_workers(3)
        producers = [fleet.producer(n=500, seed=seed * 2 + i, rate=60) for i in range(2)]
        killed = 0
        while any(producer.alive for producer in producers):
            enough = len(fleet.effects.rows()) + rng.randrange(20, 150)
            wait_for(
                "more work, or the end of it",
                lambda enough=enough: len(fleet.effects.rows()) > enough or not any(p.alive for p in producers),
            )
            rng.choice(fleet.live_workers).kill()
            killed += 1
            fleet.worker()
            if killed == 8:
                break
        for producer in producers:
            producer.finish()
        check_new_work(fleet)
        # Three deaths around one step quarantine it: with eight kills a bystander may meet three of them.
        state = check(fleet, Limits(crashes=killed, late=30, skip=frozenset({"I2"})), settle=90)
        wrong = [run for run, row in state.runs.items() if b"Poisoned" in row.fields.get("error", b"")]
        assert not wrong, f"bystanders were quarantined: {wrong}"
