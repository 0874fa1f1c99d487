"""A full server: starts are refused at once and clearly, workers drain what is there, and then all goes on."""

from __future__ import annotations

import time

import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import Fleet, wait_for
from weft.errors import Unavailable


def fill(fleet: Fleet) -> None:
    """Sets the limit below what is used: from now on nothing that may grow is let in."""
    used = int(fleet.server.info("memory")["used_memory"])
    fleet.server.set("maxmemory", str(used - 100_000))


def full(*, steps: int, reconnect: bool) -> None:
    with Fleet() as fleet:
        first = fleet.worker()
        gate = fleet.gate()
        held = [fleet.start("hold", str(gate)) for _ in range(5)]
        bulky = [fleet.start("staged", str(gate)) for _ in range(2)]
        wait_for("the steps to begin", lambda: all(fleet.effects.find("before", r.id) for r in held))
        runs = [fleet.start("flaky", i, 2, delay="400ms") for i in range(steps)]

        fill(fleet)

        # 1. A start is refused at once, with the reason and the remedy.
        began = time.monotonic()
        with pytest.raises(Unavailable, match="maxmemory") as refused:
            fleet.call(fleet.app.tasks["effect"].enqueue(1))
        assert time.monotonic() - began < 2, "a full server is no hiccup: waiting for it helps nobody"
        assert refused.value.code == "not_executed"
        with pytest.raises(Unavailable):
            fleet.call(fleet.app.tasks["swallow"].enqueue("x" * 9_000))

        # 2. What is there drains: steps, retries and timers, also over connections made while the server is full.
        if reconnect:
            fleet.server.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        for name in ("", ".1", ".2"):
            (gate.parent / f"{gate.name}{name}").touch()
        for run in [*held, *bulky, *runs]:
            fleet.result(run)

        # 3. A worker that starts while the server is full helps to drain it.
        second = fleet.worker()

        fleet.server.set("maxmemory", "0")
        assert first.alive and second.alive
        check_new_work(fleet)
        check(fleet, Limits(crashes=0))


def test_a_full_server_refuses_starts_and_drains() -> None:
    full(steps=5, reconnect=True)


def test_a_result_too_large_for_a_full_server_waits_for_room() -> None:
    with Fleet() as fleet:
        fleet.worker(concurrency=1)
        gate = fleet.gate()
        held = fleet.start("hold", str(gate))
        wait_for("the step to begin", lambda: fleet.effects.find("before", held.id))
        run = fleet.start("bulky", 3)
        fill(fleet)
        gate.touch()
        wait_for("the result to be made", lambda: fleet.effects.find("after", run.id))
        fleet.workers[0].await_log("a large value cannot be moved")

        fleet.server.set("maxmemory", "0")

        assert fleet.result(run) == "3" * 9_000
        state = check(fleet, Limits(crashes=0))
        assert [event.type for event in state.events[run.id]] == ["queued", "completed"]


@pytest.mark.chaos
@pytest.mark.parametrize("reconnect", [False, True])
@pytest.mark.parametrize("n", range(3))
def test_a_full_server_drains_many(reconnect: bool, n: int) -> None:
    full(steps=200, reconnect=reconnect)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(4))
def test_a_server_that_fills_and_empties_under_load_loses_nothing(seed: int) -> None:
    with Fleet() as fleet:
        fleet.start_workers(2)
        producers = [fleet.producer(n=400, seed=seed * 2 + i, rate=80) for i in range(2)]
        for turn in range(1, 5):
            for producer in producers:
                producer.await_acks(40 * turn)
            fill(fleet)
            for producer in producers:
                before = len(producer.errors())
                wait_for("a refusal", lambda p=producer, b=before: len(p.errors()) > b or not p.alive)
            fleet.server.set("maxmemory", "0")
        for producer in producers:
            producer.finish()
        check_new_work(fleet)
        check(fleet, Limits(success=0.3, crashes=0, late=30))
