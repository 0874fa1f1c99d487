"""Ends that race: cancels and deadlines against completion, retries, delays and dying workers. Each run ends once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import Fleet, wait_for


async def contest(app: Any, rng: random.Random, n: int) -> list[str]:
    """Starts runs and ends most of them from outside, about when they end by themselves; returns their ids."""

    async def one(i: int) -> str:
        ms = rng.randrange(20, 300)
        options: dict[str, Any] = {}
        if rng.random() < 0.4:
            options["deadline"] = f"{max(1, ms + rng.randrange(-30, 60))}ms"
        if rng.random() < 0.3:
            options["delay"] = f"{rng.randrange(1, 200)}ms"
        if rng.random() < 0.3:
            run = await app.tasks["flaky"].options(**options).enqueue(i, rng.randrange(1, 4))
        else:
            run = await app.tasks["slow"].options(**options).enqueue(i, ms)
        if rng.random() < 0.6:
            await asyncio.sleep(max(0, ms + rng.randrange(-20, 60)) / 1000)
            await asyncio.gather(*(run.cancel(f"call {k}") for k in range(rng.randrange(1, 4))))
        return str(run.id)

    return list(await asyncio.gather(*(one(i) for i in range(n))))


def contested(seed: int, *, n: int, rounds: int, kills: int) -> None:
    rng = random.Random(seed)
    with Fleet(lease="1s") as fleet:
        fleet.start_workers(2)
        for turn in range(rounds):
            runs = fleet.call(contest(fleet.app, rng, n), timeout=60)
            fleet.started += runs
            if turn < kills:
                wait_for("work under way", lambda: len(fleet.effects.rows()) > 10)
                rng.choice(fleet.live_workers).kill()
                fleet.worker()
        check_new_work(fleet)
        state = check(fleet, Limits(contested=frozenset(fleet.started), crashes=kills, late=30))
        ends = {row.text("status") for row in state.runs.values()}
        assert ends == {"completed", "failed", "cancelled"}, f"the race was won by one side only: {ends}"


def test_a_run_that_is_cancelled_as_it_ends_ends_once() -> None:
    contested(1, n=80, rounds=1, kills=0)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(8))
def test_runs_that_are_cancelled_as_they_end_and_as_workers_die_end_once(seed: int) -> None:
    # Not three: a step that was with each of them would be taken for what killed them.
    contested(seed, n=150, rounds=4, kills=2)
