"""What an operator's slip can tear apart: consumers, groups, streams, timers, pebbles, the directory. All is cured."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import Fleet, wait_for
from weft.store.keys import GROUP, TIMER_WAKE


def delete_consumers(fleet: Fleet) -> None:
    stream = fleet.keys.tasks(0, "default", 5)
    for consumer in fleet.server.client.execute_command("XINFO", "CONSUMERS", stream, GROUP):
        fleet.server.client.execute_command("XGROUP", "DELCONSUMER", stream, GROUP, consumer[1])


def destroy_group(fleet: Fleet) -> None:
    fleet.server.client.execute_command("XGROUP", "DESTROY", fleet.keys.tasks(0, "default", 5), GROUP)


def delete_stream(fleet: Fleet) -> None:
    fleet.server.client.execute_command("DEL", fleet.keys.tasks(0, "default", 5))


def delete_timers(fleet: Fleet) -> None:
    fleet.server.client.execute_command("DEL", fleet.keys.timers(0))


def delete_pebbles(fleet: Fleet) -> None:
    fleet.server.client.execute_command("DEL", fleet.keys.wake(0, "default"), fleet.keys.wake(0, TIMER_WAKE))


def delete_directory(fleet: Fleet) -> None:
    fleet.server.client.execute_command("DEL", fleet.keys.sessions(0))


def delete_leases(fleet: Fleet) -> None:
    for service in ("timers", "sweeper"):
        fleet.server.client.execute_command("DEL", fleet.keys.lock(0, service))


TEARS = [delete_consumers, destroy_group, delete_stream, delete_timers, delete_pebbles, delete_directory, delete_leases]


def torn(tears: list[Callable[[Fleet], None]], *, queued: int, delayed: int) -> None:
    with Fleet() as fleet:
        fleet.start_workers(2, concurrency=3)
        for tear in tears:
            gate = fleet.gate()
            held = [fleet.start("hold", str(gate)) for _ in range(6)]
            wait_for("the steps to begin", lambda held=held: all(fleet.effects.find("before", r.id) for r in held))
            # All slots are taken: what is started now stays in the queue, some of it on a timer.
            many = fleet.call(fleet.app.tasks["effect"].enqueue_many([(i,) for i in range(queued)]))
            fleet.started += [run.id for run in many]
            for i in range(delayed):
                fleet.start("effect", i, delay="300ms")

            tear(fleet)

            gate.touch()
            for run in held:
                fleet.result(run)
            wait_for("the queue to empty", lambda: not fleet.server.client.execute_command("XLEN", _stream(fleet)))
        check_new_work(fleet)
        # A destroyed group forgets who holds what: a step under way is handed out again under the same token, and the
        # store knows of no second delivery. Its result is still committed once.
        same = 2 if destroy_group in tears else 1
        check(fleet, Limits(crashes=0, same_delivery=same, late=30), settle=60)


def _stream(fleet: Fleet) -> str:
    return fleet.keys.tasks(0, "default", 5)


def test_a_deleted_consumer_group_or_stream_is_cured() -> None:
    torn([delete_consumers, destroy_group, delete_stream, delete_timers], queued=10, delayed=3)


@pytest.mark.chaos
@pytest.mark.parametrize("tear", TEARS)
def test_whatever_is_torn_is_cured(tear: Callable[[Fleet], None]) -> None:
    torn([tear] * 3, queued=50, delayed=10)


@pytest.mark.chaos
@pytest.mark.parametrize("tear", [delete_stream, delete_consumers, destroy_group, delete_timers])
def test_thousands_of_torn_runs_are_cured(tear: Callable[[Fleet], None]) -> None:
    torn([tear], queued=3_000, delayed=40)
