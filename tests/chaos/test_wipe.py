"""FLUSHALL in the middle of everything: what it held is gone, and every process goes on with new work by itself."""

from __future__ import annotations

import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import Fleet, wait_for

WARNING = "the store lost this partition"


def older_than_its_epoch(fleet: Fleet) -> None:
    """Epochs count seconds: a wipe within the second of its creation would give the same one again."""
    epoch = int(fleet.server.client.execute_command("HGET", fleet.keys.epoch(0), "number"))
    wait_for("the clock to pass the epoch", lambda: fleet.now_ms() // 1000 > epoch)


def wiped(seed: int, *, n: int, wipes: int) -> None:
    with Fleet() as fleet:
        fleet.start_workers(2)
        fleet.note_baseline()
        producers = [fleet.producer(n=n, seed=seed + i, rate=60) for i in range(2)]
        for turn in range(1, wipes + 1):
            gate = fleet.gate()
            fleet.start("hold", str(gate))
            fleet.start("effect", 1, delay="1h")
            for producer in producers:
                producer.await_acks(20 * turn)
            older_than_its_epoch(fleet)

            fleet.server.client.execute_command("FLUSHALL")

            gate.touch()
            for worker in fleet.workers:
                worker.await_log(WARNING, count=turn)
            # Calls that were under way at the wipe were answered before or after it: nobody can tell which.
            seen = [len(producer.entries()) for producer in producers]
            for producer, count in zip(producers, seen, strict=True):
                wait_for("later calls", lambda p=producer, c=count: len(p.entries()) > c + 20 or not p.alive)
        lost = frozenset(fleet.acked())
        for producer in producers:
            producer.finish()
        check_new_work(fleet)
        state = check(fleet, Limits(success=0.9, wiped=lost))
        assert len(state.runs) > 3, "nothing new was done"


def test_a_wiped_store_is_noticed_and_new_work_goes_on() -> None:
    wiped(9, n=60, wipes=1)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(6))
def test_a_store_wiped_again_and_again_is_noticed_every_time(seed: int) -> None:
    wiped(seed * 10, n=400, wipes=3)
