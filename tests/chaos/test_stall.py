"""A server that stalls for longer than every timeout: commands of unknown outcome are settled, none is applied twice."""

from __future__ import annotations

import time

import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import Fleet, wait_for


def stalled(seed: int, *, seconds: float, n: int, rate: float, lease: str = "1500ms", times: int = 1) -> None:
    with Fleet(lease=lease) as fleet:
        fleet.start_workers(2)
        fleet.note_baseline()
        producers = [fleet.producer(n=n, seed=seed * 2 + i, rate=rate) for i in range(2)]
        for _ in range(times):
            seen = len(fleet.acked())
            wait_for("starts under way", lambda seen=seen: len(fleet.acked()) >= seen + 30)
            fleet.server.stall()
            time.sleep(seconds)  # the fault itself, not a way to wait for something
            fleet.server.resume()
        healed = fleet.now_ms()
        for producer in producers:
            producer.finish()
        check_new_work(fleet)
        check(fleet, Limits(success=0.9, crashes=0), healed_at_ms=healed)
        for worker in fleet.workers:
            assert "the event loop is blocked" not in worker.log, f"the server stalled, not the loop:\n{worker.log}"


def test_a_stalled_server_has_nothing_applied_twice() -> None:
    stalled(6, seconds=6.0, n=50, rate=60)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(6))
def test_a_server_stalled_for_eight_seconds_has_nothing_applied_twice(seed: int) -> None:
    stalled(seed, seconds=8.0, n=250, rate=80)


@pytest.mark.chaos
@pytest.mark.parametrize("seconds", [0.3, 0.6, 0.9, 1.1, 1.3, 1.45, 1.6, 1.8, 1.95, 2.2, 3.0, 4.5, 5.2])
def test_stalls_of_every_length_around_the_lease_count_no_crash(seconds: float) -> None:
    stalled(int(seconds * 100), seconds=seconds, n=250, rate=50, times=4)
