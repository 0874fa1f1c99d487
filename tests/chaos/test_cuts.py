"""SCRIPT FLUSH and CLIENT KILL in a loop, under load: every cut connection and forgotten script is survived."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import Fleet


@contextmanager
def every(seconds: float, act: Callable[[], object]) -> Iterator[list[int]]:
    """Does something again and again beside the scenario; the list counts how often."""
    stop, count = threading.Event(), [0]

    def loop() -> None:
        while not stop.wait(seconds):
            act()
            count[0] += 1

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield count
    finally:
        stop.set()
        thread.join()


def under_cuts(seed: int, *, n: int, partitions: int = 1) -> None:
    rng = random.Random(seed)
    with Fleet(partitions=partitions) as fleet:
        fleet.start_workers(2)
        fleet.note_baseline()
        turns = itertools.count()

        def harm() -> None:
            """Closes every connection but its own, at every second turn after all scripts were forgotten."""
            if next(turns) % 2:
                fleet.server.client.execute_command("SCRIPT", "FLUSH")
            for kind in ("normal", "pubsub"):
                fleet.server.client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

        with every(0.05, harm) as count:
            producers = [fleet.producer(n=n, seed=rng.randrange(1 << 30), rate=60) for _ in range(2)]
            for producer in producers:
                producer.finish()
        assert count[0] >= 10, "the fault hardly happened"
        healed = fleet.now_ms()
        check_new_work(fleet)
        check(fleet, Limits(success=0.9, crashes=0), healed_at_ms=healed)


def test_scripts_forgotten_and_connections_cut_lose_nothing() -> None:
    under_cuts(5, n=60)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("partitions", [1, 4])
def test_scripts_forgotten_and_connections_cut_for_long(seed: int, partitions: int) -> None:
    under_cuts(seed, n=300, partitions=partitions)
