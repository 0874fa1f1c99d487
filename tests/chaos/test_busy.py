"""Everybody is busy: a script of someone else, a paused server, no connections left, a blocked event loop."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest
import redis

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import Fleet, wait_for


def under(fault: Callable[[Fleet], None], seed: int) -> None:
    with Fleet() as fleet:
        fleet.start_workers(2)
        fleet.note_baseline()
        producers = [fleet.producer(n=200, seed=seed * 2 + i, rate=50) for i in range(2)]
        for _ in range(2):
            seen = len(fleet.acked())
            wait_for("starts under way", lambda seen=seen: len(fleet.acked()) >= seen + 30)
            fault(fleet)
        healed = fleet.now_ms()
        for producer in producers:
            producer.finish()
        check_new_work(fleet)
        check(fleet, Limits(success=0.9, crashes=0), healed_at_ms=healed)


def foreign_script(fleet: Fleet) -> None:
    """Somebody's endless script: the server answers BUSY to everybody else until it is killed."""
    fleet.server.set("busy-reply-threshold", "50")

    def run() -> None:
        client = redis.Redis(unix_socket_path=str(fleet.server.socket), socket_timeout=30)
        with contextlib.suppress(redis.RedisError), client:
            client.eval("while true do end", 0)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(2.5)  # the fault itself
    fleet.server.client.execute_command("SCRIPT", "KILL")
    thread.join()


def paused(fleet: Fleet) -> None:
    fleet.server.client.execute_command("CLIENT", "PAUSE", 2500, "ALL")
    time.sleep(2.5)  # the fault itself


def out_of_connections(fleet: Fleet) -> None:
    """No new connection is let in, and those that are there are cut."""
    fleet.server.set("maxclients", "1")
    fleet.server.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    time.sleep(2.5)  # the fault itself
    fleet.server.set("maxclients", "10000")


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", [foreign_script, paused, out_of_connections])
def test_a_busy_server_loses_nothing_and_counts_no_crash(fault: Callable[[Fleet], None], seed: int) -> None:
    under(fault, seed)


def test_a_blocked_event_loop_keeps_its_steps_and_is_named() -> None:
    """A task that blocks its worker's loop for longer than the lease: the lease is renewed by a thread of its own."""
    with Fleet(lease="600ms") as fleet:
        victim, _ = fleet.start_workers(2)
        gate = fleet.gate()
        held = fleet.start("hold", str(gate), queue=victim.name)
        wait_for("the step to begin", lambda: fleet.effects.find("before", held.id))
        run = fleet.start("blocking", 1_800, queue=victim.name)
        assert fleet.result(run) == 1_800
        gate.touch()
        assert fleet.result(held) == str(gate)
        assert "the event loop is blocked" in victim.log and "workload.py" in victim.log, victim.log
        check(fleet, Limits(crashes=0))
