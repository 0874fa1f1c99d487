"""Workers killed while they hold slots of limits: no slot is lost, none is given twice, rates and turns hold."""

from __future__ import annotations

import random
import time

import pytest

from chaos.checker import Limits, State, check, check_new_work
from chaos.crowds import executions
from chaos.fleet import Fleet, wait_for

#: What `paced` may begin, in how many seconds.
RATE, WINDOW = 4, 1.0


def ended(fleet: Fleet) -> int:
    return len(fleet.effects.find("after"))


def await_more(fleet: Fleet, n: int) -> None:
    """Waits until `n` more steps ended than had."""
    goal = ended(fleet) + n
    wait_for(f"{n} more steps to end", lambda: ended(fleet) >= goal)


def killed_holding(seed: int, *, keys: int, each: int, kills: int) -> None:
    rng = random.Random(seed)
    with Fleet(lease="1s") as fleet:
        fleet.keeper()
        victim = fleet.worker()
        items = [(f"k{k}", n, rng.randrange(20, 120)) for n in range(each) for k in range(keys)]
        for task in ("keyed", "booth"):
            fleet.start_many(task, rng.sample(items, len(items)))
        fleet.start_many("narrow", [(n, rng.randrange(20, 120)) for n in range(each * 3)])
        fleet.start_many("shaky", [(n, n % 3) for n in range(each)])
        fleet.start_many("narrow", [(n, 10) for n in range(each)], delay="900ms")
        for _ in range(kills):
            await_more(fleet, rng.randrange(3, 8))
            fleet.kill_holding(victim, least=3)
            victim = fleet.worker()
        check_new_work(fleet)
        state = check(fleet, Limits(crashes=kills, late=30), settle=90)
        reclaimed = [run for run, events in state.events.items() if any(event.type == "reclaimed" for event in events)]
        assert any(state.runs[run].spec.limits for run in reclaimed), "no slot was in a dead worker's hands"


def test_a_worker_killed_while_it_holds_slots_loses_none() -> None:
    killed_holding(1, keys=4, each=5, kills=2)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(6))
def test_workers_killed_again_and_again_while_they_hold_slots_lose_none(seed: int) -> None:
    killed_holding(seed, keys=6, each=30, kills=8)


def too_fast(state: State, admitted: dict[tuple[str, int], int], offset: float) -> list[str]:
    """Returns where more steps began in a stretch of the window than the rate allows.

    A step is let through, and told to the recorder a moment later: that moment is the only tolerance.
    """
    starts = []
    for one in executions(state.effects, {}):
        row = state.runs[one.run]
        if row.delivery == one.delivery:
            let_through = int(row.text("open").partition(":")[2].partition("-")[0])
        else:
            let_through = admitted[one.run, one.delivery]
        began = one.began + offset
        assert began * 1000 >= let_through - 1, "the clocks of the recorder and the server are not one"
        starts.append((let_through / 1000, began, one))
    return [
        f"{RATE + 1} began within {last[1] - first[0]:.3f} s: {first} … {last}"
        for group in (starts[i : i + RATE + 1] for i in range(len(starts) - RATE))
        for first, last in [(min(group), group[-1])]
        if last[1] - first[0] < WINDOW
    ] + [
        f"{RATE + 1} were let through within {b - a:.3f} s"
        for moments in [sorted(start[0] for start in starts)]
        for a, b in zip(moments, moments[RATE:], strict=False)
        if b - a < WINDOW
    ]


def paced(n: int, kills: int) -> None:
    with Fleet(lease="1s") as fleet:
        offset = time.time() - time.monotonic()
        fleet.keeper()
        victim = fleet.worker()
        fleet.start_many("paced", [(i, 150) for i in range(n)])
        admitted: dict[tuple[str, int], int] = {}
        for _ in range(kills):
            await_more(fleet, RATE + 1)
            for run, row in fleet.kill_holding(victim, least=2).items():
                admitted[run, row.delivery] = int(row.token.partition("-")[0])
            victim = fleet.worker()
        state = check(fleet, Limits(crashes=kills), settle=60 + n / RATE)
        assert not (wrong := too_fast(state, admitted, offset)), "\n".join(wrong)


def test_a_rate_holds_while_workers_are_killed() -> None:
    paced(14, kills=1)


@pytest.mark.chaos
@pytest.mark.parametrize("n", range(3))
def test_a_rate_holds_while_workers_are_killed_again_and_again(n: int) -> None:
    paced(80, kills=6)


def fair(seed: int, *, keys: int, each: int, newcomers: int, kills: int, task: str = "turn", slots: int = 20) -> None:
    rng = random.Random(seed)
    with Fleet(lease="1s") as fleet:
        fleet.keeper()
        victim = fleet.worker(concurrency=slots)
        fleet.start_many(task, [(f"busy{k}", n, 20) for n in range(each) for k in range(keys)])
        deaths = set(rng.sample(range(newcomers), kills))
        came: list[tuple[str, float]] = []
        for n in range(newcomers):
            await_more(fleet, rng.randrange(1, 2 * keys))
            run = fleet.start(task, f"new{n}", n, 20).id
            came.append((run, time.monotonic()))
            if n in deaths:
                fleet.kill_holding(victim)
                victim = fleet.worker(concurrency=slots)
        state = check(fleet, Limits(crashes=kills), settle=90)
        began = executions(state.effects, fleet.deaths)
        for run, at in came:
            if task == "wide" and any(event.type == "reclaimed" for event in state.events[run]):
                continue  # it had its turn, and its worker died with it
            first = next(one.began for one in began if one.run == run)
            others = {one.run for one in began if at < one.began < first}
            assert len(others) <= 2 * keys, f"{len(others)} others of {keys} busy keys went before the new key's {run}"


def test_a_new_key_gets_its_turn_while_workers_are_killed() -> None:
    fair(2, keys=4, each=12, newcomers=3, kills=1)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(4))
def test_new_keys_get_their_turn_while_workers_are_killed_again_and_again(seed: int) -> None:
    fair(seed, keys=8, each=60, newcomers=20, kills=5)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(4))
def test_new_keys_get_their_turn_in_a_queue_where_others_have_many_while_workers_are_killed(seed: int) -> None:
    fair(seed, keys=4, each=40, newcomers=12, kills=4, task="wide", slots=1)
