"""A step that kills its process is quarantined after three worker deaths, and its neighbours complete."""

from __future__ import annotations

import time

import pytest

from chaos.checker import Limits, check, check_new_work, read_state
from chaos.fleet import KEEPER, Fleet, wait_for
from weft.core.model import MAX_CRASHES


def keep_alive(fleet: Fleet, n: int, **options: object) -> int:
    """Starts as many workers as are missing, as a supervisor would; returns how many."""
    missing = n - len([worker for worker in fleet.live_workers if worker.name != KEEPER])
    for _ in range(missing):
        fleet.worker(ready=False, **options)  # type: ignore[arg-type]
    return missing


def poisoned(*, neighbours: int, workers: int, concurrency: int, poisons: int = 1, lease: str = "1s") -> None:
    with Fleet(lease=lease) as fleet:
        fleet.keeper()
        keep_alive(fleet, workers, concurrency=concurrency)
        beside = [fleet.start("slow", i, 300) for i in range(neighbours)]
        poison = [fleet.start("poison", i) for i in range(poisons)]
        keys = [fleet.keys.run(0, run.id) for run in poison]

        def quarantined() -> bool:
            keep_alive(fleet, workers, concurrency=concurrency)
            return all(fleet.server.client.execute_command("HGET", key, "status") == b"failed" for key in keys)

        wait_for("the poison to be quarantined", quarantined, timeout=60 * poisons)
        for worker in fleet.live_workers:
            worker.await_ready()
        check_new_work(fleet)
        # Its neighbours complete: the checker compares every run with what it must come to.
        state = check(fleet, Limits(crashes=poisons * MAX_CRASHES))
        deaths = [worker for worker in fleet.workers if not worker.alive]
        # All deaths but the last may be for several of them; the last of each is its own doing.
        assert MAX_CRASHES - 1 + poisons <= len(deaths) <= poisons * MAX_CRASHES
        for run in poison:
            deliveries = [row.delivery for row in state.effects[run.id]]
            # Another's death may be counted for it too, before it has begun.
            assert (MAX_CRASHES if poisons == 1 else 1) <= len(deliveries) <= MAX_CRASHES
            assert deliveries == sorted(set(deliveries))
            counted = [event.facts.get("crashes") for event in state.events[run.id] if "crashes" in event.facts]
            assert sorted(set(counted)) == ["1", "2", "3"]
            assert state.events[run.id][-1].type == "failed"
            by = fleet.server.client.execute_command("HGET", fleet.keys.run(0, run.id), "by").decode()
            assert by in {worker.session for worker in deaths}
        if poisons == 1:
            # The last death was counted for nobody else.
            assert all(state.runs[run.id].number("crashes", 0) < MAX_CRASHES for run in beside)
        # And it is a dead letter, once.
        letters = fleet.server.client.execute_command("ZRANGE", fleet.keys.dlq(0), 0, -1)
        assert sorted(letters) == sorted(run.id.encode() for run in poison)


def test_a_poison_step_is_quarantined_and_its_neighbours_complete() -> None:
    poisoned(neighbours=4, workers=2, concurrency=1)


def test_steps_that_shared_a_worker_with_poison_are_not_quarantined_with_it() -> None:
    poisoned(neighbours=30, workers=2, concurrency=40)


@pytest.mark.chaos
def test_several_poison_steps_at_once_do_not_take_their_neighbours_with_them() -> None:
    poisoned(neighbours=30, workers=2, concurrency=10, poisons=3)


def test_an_outage_is_no_worker_death() -> None:
    """A step that runs through three outages longer than the lease is not poison."""
    with Fleet(lease="600ms") as fleet:
        fleet.worker()
        gate = fleet.gate()
        run = fleet.start("hold", str(gate))
        wait_for("the step to begin", lambda: fleet.effects.find("before", run.id))
        key = fleet.keys.session(0, fleet.workers[0].session)
        for _ in range(3):
            fleet.server.kill()
            time.sleep(0.8)  # the fault itself: an outage longer than the lease
            fleet.server.start()
            wait_for("the lease to be renewed", lambda: fleet.server.client.execute_command("GET", key) == b"alive")
        gate.touch()
        assert fleet.result(run) == str(gate)
        state = check(fleet, Limits(crashes=0))
        assert [row.delivery for row in state.effects[run.id] if row.phase == "before"] == [1]
        assert read_state(fleet).runs[run.id].number("crashes", 0) == 0
