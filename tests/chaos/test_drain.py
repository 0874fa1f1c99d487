"""SIGTERM: nothing more is claimed, steps finish or are handed back, and no attempt and no crash is counted."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import STOPPED, Fleet, WorkerProcess, wait_for

#: What is under way when the signal comes: a coroutine, a thread, a process, and code that will not be cancelled.
STEPS = ("hold", "hold_thread", "hold_process", "stubborn")


def begin(fleet: Fleet, victim: WorkerProcess, gate: Path) -> list[str]:
    """Starts one step of every kind on the victim; none ends by itself soon."""
    ids = [fleet.start(task, str(gate), queue=victim.name).id for task in STEPS]
    wait_for("every step to begin", lambda: {row.run for row in fleet.effects.find("before")} >= set(ids))
    return ids


def drained(*, grace: float, signals: int, rounds: int = 1) -> None:
    with Fleet() as fleet:
        gate = fleet.gate()
        victim = fleet.worker("victim", grace=grace)
        runs = begin(fleet, victim, gate)
        for turn in range(rounds):
            began = time.monotonic()
            for _ in range(signals):
                victim.send(signal.SIGTERM)
                if signals > 1:
                    victim.await_log("stopping:", count=1)
            assert victim.await_end(timeout=15) == 0, victim.log
            assert time.monotonic() - began < (grace if signals == 1 else 0) + 6
            assert STOPPED in victim.log
            # Handed back, at once and by itself: nobody has to wait for a lease to run out.
            for run in runs:
                token = fleet.server.client.execute_command("HGET", fleet.keys.run(0, run), "open").decode()
                assert int(token.partition(":")[0]) == turn + 2, f"{run} was not handed back: {token}"
            last = turn == rounds - 1
            if last:
                gate.touch()
            victim = fleet.worker(f"next{turn}", queues="victim", grace=grace)
            if not last:
                wait_for(
                    "every step to begin again",
                    lambda name=victim.name: (
                        {r.run for r in fleet.effects.find("before") if r.worker == name} >= set(runs)
                    ),
                )
        check_new_work(fleet)
        state = check(fleet, Limits(crashes=0))
        for run in runs:
            kinds = [event.type for event in state.events[run]]
            assert kinds.count("returned") == rounds, kinds
            assert state.runs[run].number("attempt", 1) == 1
            assert state.runs[run].number("crashes", 0) == 0


def test_steps_beyond_the_grace_are_handed_back() -> None:
    drained(grace=0.5, signals=1)


def test_a_second_sigterm_hands_back_at_once() -> None:
    drained(grace=60, signals=2)


@pytest.mark.chaos
def test_a_step_handed_back_again_and_again_is_not_poison() -> None:
    drained(grace=0.3, signals=1, rounds=5)


def test_steps_that_end_within_the_grace_are_committed_and_nothing_more_is_claimed() -> None:
    with Fleet() as fleet:
        gate = fleet.gate()
        victim = fleet.worker("victim", grace=30)
        run = fleet.start("hold", str(gate), queue="victim")
        wait_for("the step to begin", lambda: fleet.effects.find("before", run.id))

        victim.send(signal.SIGTERM)
        victim.await_log("draining")
        late = fleet.start("effect", 1, queue="victim")
        gate.touch()
        assert victim.await_end() == 0

        assert fleet.call(run.status()) == "completed"
        assert fleet.call(late.status()) == "queued"
        fleet.worker(queues="victim")
        assert fleet.result(late) == 2
        state = check(fleet, Limits(crashes=0))
        assert [event.type for event in state.events[late.id]] == ["queued", "completed"]


def test_a_worker_told_to_stop_while_the_store_is_away_ends_soon_and_loses_nothing() -> None:
    with Fleet() as fleet:
        gate = fleet.gate()
        victim = fleet.worker("victim", grace=0.3)
        run = fleet.start("hold", str(gate), queue="victim")
        wait_for("the step to begin", lambda: fleet.effects.find("before", run.id))
        fleet.server.kill()
        victim.await_log("cannot be renewed")

        victim.send(signal.SIGTERM)
        victim.await_end(timeout=25)

        fleet.server.start()
        gate.touch()
        fleet.worker(queues="victim")
        assert fleet.result(run) == str(gate)
        check(fleet)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(5))
def test_workers_replaced_one_by_one_under_load_burn_nothing(seed: int) -> None:
    """A rolling deploy: under load every worker is drained and replaced, and no step notices."""
    with Fleet() as fleet:
        fleet.start_workers(2, grace=2)
        producers = [fleet.producer(n=300, seed=seed * 2 + i, rate=60) for i in range(2)]
        while any(producer.alive for producer in producers):
            oldest = fleet.live_workers[0]
            fleet.worker(grace=2)
            oldest.stop()
        for producer in producers:
            producer.finish()
        check_new_work(fleet)
        check(fleet, Limits(crashes=0))
