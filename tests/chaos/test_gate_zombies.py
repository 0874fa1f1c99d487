"""The holder of a slot stopped beyond its lease, then continued: whatever it says is refused, and the slot passes on once."""

from __future__ import annotations

import signal

import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import Fleet, wait_for
from chaos.test_zombies import REFUSED, REPLACED

GATE = "task|guarded"


def holders(fleet: Fleet) -> list[str]:
    return [run.decode() for run in fleet.server.client.execute_command("ZRANGE", fleet.keys.gate(0, GATE), 0, -1)]


def waiting(fleet: Fleet) -> list[str]:
    return [run.decode() for run in fleet.server.client.execute_command("ZRANGE", fleet.keys.line(0, GATE), 0, -1)]


def zombie_holder(rounds: int, *, fails: bool) -> None:
    with Fleet(lease="1s") as fleet:
        fleet.keeper()
        victim = fleet.worker()
        for turn in range(1, rounds + 1):
            files = [fleet.gate(f"{who}-{turn}") for who in ("first", "second", "third")]
            queue = victim.name
            first, second, third = [
                fleet.start("guarded", str(file), fails and file is files[0], queue=queue) for file in files
            ]
            wait_for("the holder to begin", lambda run=first: fleet.effects.find("before", run.id))
            assert (holders(fleet), waiting(fleet)) == ([first.id], [second.id, third.id])
            victim.send(signal.SIGSTOP)
            rescuer = fleet.worker(f"rescuer{turn}", queues=queue)
            wait_for("the step to be another's", lambda run=first: len(fleet.effects.find("before", run.id)) == 2)
            # A death gives no slot away: the run still has it.
            assert (holders(fleet), waiting(fleet)) == ([first.id], [second.id, third.id])
            files[0].touch()
            fleet.result(first)
            wait_for("the slot to pass on", lambda run=second: fleet.effects.find("before", run.id))

            # The zombie finds its file there: its own step ends, well or badly, and it says so.
            victim.send(signal.SIGCONT)

            victim.await_log(REPLACED, count=turn)
            wait_for(
                "the zombie's own code to end",
                lambda run=first: any(
                    r.worker == victim.name and r.phase == "after" for r in fleet.effects.find(run=run.id)
                ),
            )
            # It can also work again: what it does after its step shows that the outcome was sent or dropped.
            assert fleet.result(fleet.start("effect", turn, queue=queue)) == turn * turn + 1
            assert (holders(fleet), waiting(fleet)) == ([second.id], [third.id]), "the zombie moved a slot"
            assert not fleet.effects.find("before", third.id)
            for file, run in ((files[1], second), (files[2], third)):
                file.touch()
                fleet.result(run)
            rescuer.stop()
        check_new_work(fleet)
        state = check(fleet, Limits(crashes=rounds))
        for run in [id for id, row in state.runs.items() if row.spec.name == "guarded"]:
            kinds = [event.type for event in state.events[run]]
            assert kinds.count("reclaimed") <= 1 and kinds[-1] == "completed", kinds
            assert state.events[run][-1].by != victim.session or "reclaimed" not in kinds, "the zombie's word was taken"
        assert victim.log.count(REFUSED) <= rounds


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_a_slot_passes_on_once_whatever_its_zombie_says(fails: bool) -> None:
    zombie_holder(1, fails=fails)


@pytest.mark.chaos
@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_a_slot_passes_on_once_again_and_again(fails: bool) -> None:
    zombie_holder(6, fails=fails)
