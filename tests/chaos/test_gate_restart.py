"""The server SIGKILLed and restarted while thousands of timers are set and thousands of runs wait at limits."""

from __future__ import annotations

import random

import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import Fleet, wait_for


def restarted(seed: int, *, timers: int, waiting: int, kills: int) -> None:
    rng = random.Random(seed)
    with Fleet(appendfsync="always") as fleet:
        for delay in (500, 1500, 2500, 3500):
            fleet.start_many("effect", [(n,) for n in range(timers // 4)], delay=f"{delay}ms")
        fleet.start_many("keyed", [(f"k{rng.randrange(40)}", n, 1) for n in range(waiting // 3)])
        # One key has most of what waits at two limits.
        hot = ["hot" if rng.random() < 0.6 else f"k{rng.randrange(40)}" for _ in range(waiting // 3)]
        fleet.start_many("booth", [(who, n, 1) for n, who in enumerate(hot)])
        fleet.start_many("narrow", [(n, 1) for n in range(waiting // 6)])
        fleet.start_many("narrow", [(n, 1) for n in range(waiting // 6)], delay="1s")
        fleet.start_workers(2)
        for _ in range(kills):
            seen = len(fleet.effects.find("after"))
            goal = seen + rng.randrange(20, (timers + waiting) // (2 * kills))
            wait_for("work to be done", lambda goal=goal: len(fleet.effects.find("after")) >= goal)
            fleet.server.restart()
        healed = fleet.now_ms()
        check_new_work(fleet)
        # A crash is a worker's death: there was none.
        state = check(fleet, Limits(crashes=0, late=30), healed_at_ms=healed, settle=120)
        assert len(state.runs) >= timers + waiting // 3 * 2


def test_a_killed_server_forgets_no_timer_and_no_line() -> None:
    restarted(1, timers=1_200, waiting=900, kills=2)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(4))
def test_a_server_killed_again_and_again_forgets_no_timer_and_no_line(seed: int) -> None:
    restarted(seed, timers=6_000, waiting=4_000, kills=6)
