"""The server SIGKILLed and restarted under load: nothing acknowledged is lost, no crash is counted, all go on."""

from __future__ import annotations

import random
import time

import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import Fleet, wait_for


def server_killed(seed: int, *, n: int, kills: int, rate: float, down: float = 0.0, partitions: int = 1) -> None:
    rng = random.Random(seed)
    # With `everysec` a server may put off a write for as long as a slow disk is busy with the last fsync, and answer all
    # the same: what it acknowledged in that time dies with it. Losing nothing takes `always`.
    with Fleet(partitions=partitions, appendfsync="always") as fleet:
        fleet.start_workers(2)
        fleet.note_baseline()
        producers = [fleet.producer(n=n, seed=seed * 2 + i, rate=rate) for i in range(2)]
        for _ in range(kills):
            seen = len(fleet.acked())
            goal = seen + rng.randrange(30, 60)
            wait_for("starts under way", lambda goal=goal: len(fleet.acked()) >= goal)
            fleet.server.kill()
            if down:
                # The outage itself is the fault: it lasts until every worker has noticed.
                for worker in fleet.workers:
                    worker.await_log("cannot be renewed")
            fleet.server.start()
        healed = fleet.now_ms()
        for producer in producers:
            producer.finish()
        check_new_work(fleet)
        check(fleet, Limits(success=0.95, crashes=0), healed_at_ms=healed)


def test_a_killed_and_restarted_server_loses_nothing() -> None:
    server_killed(1, n=60, kills=1, rate=60)


@pytest.mark.chaos
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_a_server_killed_again_and_again_loses_nothing(seed: int, partitions: int) -> None:
    server_killed(seed, n=400, kills=4, rate=100, partitions=partitions)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(5))
def test_a_server_that_stays_away_beyond_the_lease_counts_no_crash(seed: int) -> None:
    server_killed(seed, n=200, kills=1, rate=50, down=1)


@pytest.mark.chaos
@pytest.mark.parametrize("cut", [1, 200, 4_000, 40_000])
@pytest.mark.parametrize("seed", range(3))
def test_a_server_that_lost_the_tail_of_its_log_is_whole_again(seed: int, cut: int) -> None:
    """What the last moments wrote is gone, also where it was acknowledged; what is left must be consistent and go on."""
    with Fleet() as fleet:
        fleet.start_workers(2)
        producers = [fleet.producer(n=250, seed=seed * 2 + i, rate=80) for i in range(2)]
        wait_for("starts under way", lambda: len(fleet.acked()) >= 100)
        fleet.server.kill()
        time.sleep(1)  # what it acknowledged last is noted by those who asked a moment later
        lost = frozenset(fleet.acked())
        tail = max((fleet.directory / "appendonlydir").glob("*.incr.aof"), key=lambda path: path.stat().st_mtime)
        with tail.open("r+b") as file:
            file.truncate(max(0, tail.stat().st_size - cut))
        fleet.server.start()
        healed = fleet.now_ms()
        for producer in producers:
            producer.finish()
        check_new_work(fleet)
        # A commit that was lost is made again: the same delivery runs twice, and the log that told why is lost with it.
        limits = Limits(success=0.9, crashes=0, wiped=lost, same_delivery=2)
        state = check(fleet, limits, healed_at_ms=healed)
        assert len(state.runs) > 200
