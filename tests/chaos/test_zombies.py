"""SIGSTOP beyond the lease, then SIGCONT: whatever the zombie says is refused, and it begins anew by itself."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import Fleet, wait_for
from weft.core.model import SessionInfo, Token
from weft.errors import SessionAlive, SessionLost
from weft.store.sessions import end_session, renew_session
from weft.store.steps import claim_steps, queue_streams
from weft.testing.crash import CRASH_AT, STOP_AT

REPLACED = "begins a new session"
REFUSED = "a result was refused"


def zombie(rounds: int) -> None:
    with Fleet() as fleet:
        fleet.keeper()
        victim = fleet.worker()
        for turn in range(1, rounds + 1):
            done, failed, chat = fleet.gate("done"), fleet.gate("failed"), fleet.gate("chat")
            runs = [
                fleet.start("stubborn", str(done), queue=victim.name),
                fleet.start("staged", str(failed), True, queue=victim.name),
                fleet.start("chatty", str(chat), queue=victim.name),
            ]
            wait_for("the steps to begin", lambda runs=runs: all(fleet.effects.find("before", run.id) for run in runs))
            victim.send(signal.SIGSTOP)
            # Only now there is another one who serves the victim's queue, so the steps were the victim's.
            rescuer = fleet.worker(f"rescuer{turn}", queues=victim.name)
            wait_for(
                "the steps to be given to the other worker, which runs them one at a time",
                lambda runs=runs, name=rescuer.name: any(
                    row.worker == name for run in runs for row in fleet.effects.find("before", run.id)
                ),
            )
            for path in (str(done), f"{failed}.1", f"{failed}.2", str(chat)):
                Path(path).touch()
            for run in runs:
                fleet.result(run)
                assert any(row.worker == rescuer.name for row in fleet.effects.find("before", run.id))

            victim.send(signal.SIGCONT)

            victim.await_log(REPLACED, count=turn)
            wait_for(
                "the zombie's own code to end",
                lambda runs=runs: any(
                    r.worker == victim.name and r.phase == "after" for r in fleet.effects.find(run=runs[0].id)
                ),
            )
            rescuer.stop()
        check_new_work(fleet)
        state = check(fleet, Limits(crashes=rounds))
        for run in fleet.started[: 3 * rounds]:
            kinds = [event.type for event in state.events[run]]
            assert kinds.count("reclaimed") == 1 and kinds.count("completed") == 1, kinds
            end = state.events[run][-1]
            assert end.by != victim.session, "the zombie's result was accepted"


def test_a_zombie_can_change_nothing_and_begins_anew() -> None:
    zombie(1)


@pytest.mark.chaos
@pytest.mark.parametrize("n", range(5))
def test_a_zombie_can_change_nothing_again_and_again(n: int) -> None:
    zombie(3)


def blocks(fleet: Fleet, name: str) -> bool:
    """Returns whether a connection of this name waits in a blocking call."""
    lines = fleet.server.client.execute_command("CLIENT", "LIST").decode().splitlines()
    clients = [dict(field.split("=", 1) for field in line.split()) for line in lines]
    return any(client["name"] == name and "b" in client["flags"] for client in clients)


def test_an_idle_zombie_does_not_begin_what_it_was_given_in_its_sleep() -> None:
    """An idle worker's claim waits in the server, which makes it though the worker stands still."""
    with Fleet() as fleet:
        fleet.keeper()
        victim = fleet.worker(env={"WEFT_REDIS_URL": f"{fleet.server.url}?client_name=victim"})
        stream = fleet.keys.tasks(0, victim.name, 5)
        for _ in range(2):  # no claim waits behind the first wait, which still has its connection to make
            fleet.result(fleet.start("effect", 3, queue=victim.name))
            wait_for("the victim to be idle", lambda: blocks(fleet, "victim"))
        victim.send(signal.SIGSTOP)
        done = fleet.gate("done")
        run = fleet.start("stubborn", str(done), queue=victim.name)

        wait_for(
            "the server to make the claim of the one who stands still",
            lambda: fleet.server.client.execute_command("XPENDING", stream, "weft", "-", "+", 10),
        )
        rescuer = fleet.worker("rescuer", queues=victim.name)
        wait_for(
            "the step to be given to the other worker",
            lambda: any(row.worker == rescuer.name for row in fleet.effects.find("before", run.id)),
        )

        victim.send(signal.SIGCONT)
        victim.await_log(REPLACED)

        assert not [row for row in fleet.effects.find("before", run.id) if row.worker == victim.name]
        done.touch()
        fleet.result(run)
        check_new_work(fleet)
        check(fleet, Limits(crashes=1))


def test_an_idle_zombie_that_claims_as_it_wakes_and_dies_strands_nothing() -> None:
    """Stopped right before a claim and swept: nothing of that claim may stay with a session nobody knows any more."""
    with Fleet() as fleet:
        # The first claim finds nothing; the second is made because the run below drops its pebble.
        points = {STOP_AT: "before:claim_steps:2", CRASH_AT: "after:claim_steps:2"}
        bystander = fleet.keeper()
        victim = fleet.worker("victim", queues="shared", env=points)
        run = fleet.start("effect", 3, queue="shared")
        wait_for("the victim to stop", lambda: psutil.Process(victim.pid).status() == psutil.STATUS_STOPPED)
        directory = fleet.keys.sessions(0)
        wait_for(
            "the victim to be swept",
            lambda: victim.session.encode() not in fleet.server.client.execute_command("HKEYS", directory),
        )

        victim.send(signal.SIGCONT)
        victim.await_end()

        fleet.worker("saviour", queues="shared")
        assert fleet.result(run, 20) == 10
        assert bystander.alive
        check(fleet)


def test_a_claim_that_arrives_after_its_session_was_swept_takes_nothing() -> None:
    """A command may lie in a socket while its sender sleeps or after it gave up: the sweeper may be quicker."""
    with Fleet() as fleet:
        run = fleet.start("effect", 3)
        ns, session = fleet.app._engines[fleet.loop].ns, "s-00000000000000000000ZOMBIE"
        about = msgspec.msgpack.encode(SessionInfo(session, "chaos", "here", 1, ["default"], [], 1, 0))
        streams = queue_streams(ns, 0, ["default"])

        async def sweep_then_claim() -> list[Token]:
            await renew_session(ns, 0, session=session, lease_ms=60_000, about=about)
            with pytest.raises(SessionAlive):
                await end_session(ns, 0, session=session, streams=streams, swept=True)
            await ns.read("DEL", ns.keys.session(0, session), p=0)
            await end_session(ns, 0, session=session, streams=streams, swept=True)
            return await claim_steps(ns, 0, session=session, queues=["default"], room=5)

        with pytest.raises(SessionLost):
            fleet.call(sweep_then_claim())
        fleet.worker()
        assert fleet.result(run) == 10
        check(fleet)
