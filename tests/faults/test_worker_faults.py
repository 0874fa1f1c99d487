"""Faults around workers that die or fall silent: real processes, killed and stopped, with leases that really expire."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.checker import Limits, check
from chaos.fleet import Fleet, wait_for


@pytest.fixture(scope="session")
def partitions() -> int:
    """The fleet's client reads one partition."""
    return 1


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet(lease="1s") as fleet:
        yield fleet


def await_steps(fleet: Fleet, n: int) -> None:
    """Waits until so many steps have begun."""
    wait_for(f"{n} steps to begin", lambda: len(fleet.effects.find("before")) >= n)


def test_4_and_8_a_crash_between_taking_and_applying_loses_nothing_and_dead_letters_nothing(fleet: Fleet) -> None:
    victim, gate = fleet.worker("victim"), fleet.gate()
    runs = [fleet.start("hold", str(gate)) for _ in range(5)]
    await_steps(fleet, 5)

    victim.kill()  # all five are taken, and none is applied
    fleet.worker("rescuer")
    await_steps(fleet, 10)
    gate.touch()

    assert [fleet.result(run) for run in runs] == [str(gate)] * 5
    infos = [fleet.call(run.info()) for run in runs]
    assert {(info.attempt, info.delivery, info.crashes) for info in infos} == {(1, 2, 1)}
    assert not list(fleet.call(fleet.app.dlq.list()))
    check(fleet, Limits(crashes=1))


def test_5_abandoned_work_is_recovered_on_every_queue(fleet: Fleet) -> None:
    queues = ["default", "mail", "pages", "night"]
    victim = fleet.worker("victim", queues=",".join(queues))
    gate = fleet.gate()
    runs = [
        fleet.start("hold", str(gate), queue=queue, priority=priority) for queue in queues for priority in (1, 5, 10)
    ]
    await_steps(fleet, len(runs))

    victim.kill()
    # Each queue has a worker of its own: nobody recovers for the others what they do not look at.
    for queue in queues:
        fleet.worker(f"on-{queue}", queues=queue, ready=False)
    await_steps(fleet, 2 * len(runs))
    gate.touch()

    assert [fleet.result(run) for run in runs] == [str(gate)] * len(runs)
    check(fleet, Limits(crashes=1))


def test_7_lease_expiry_is_seen_with_real_ttls(fleet: Fleet) -> None:
    victim, gate = fleet.worker("victim"), fleet.gate()
    run = fleet.start("hold", str(gate))
    await_steps(fleet, 1)
    client, key = fleet.server.client, fleet.keys.session(0, victim.session)
    assert 0 < client.execute_command("PTTL", key) <= 1_000
    other = fleet.worker("other")

    victim.send(signal.SIGSTOP)  # it says nothing more, and nobody else touches its lease
    wait_for("the lease to expire by itself", lambda: client.execute_command("PTTL", key) < 0)
    await_steps(fleet, 2)
    Path(gate).touch()

    assert fleet.result(run) == str(gate)
    assert [row.worker for row in fleet.effects.find("before")] == ["victim", "other"]
    assert other.alive
    victim.send(signal.SIGCONT)  # a zombie: what it still says is refused
    check(fleet, Limits(crashes=1))
