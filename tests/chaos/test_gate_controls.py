"""What operators decide under load, while workers are killed: it holds from the moment nothing older is under way."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.crowds import executions, most_at_once
from chaos.fleet import Fleet, wait_for
from chaos.recorder import Row

#: The least number of steps that show what is allowed, and the seconds in which nothing may show what is not.
SHOW, QUIET = 12, 0.3


class Load:
    """A fleet with more work than a scenario uses up, and eyes on what is begun."""

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        self.fleet, self.rng = fleet, rng
        self.controls = fleet.app.controls
        self.n = 0
        #: Which task and key a run is of.
        self.kinds: dict[str, tuple[str, str]] = {}

    def add(self, n: int) -> None:
        """Starts more runs of every kind."""
        keys = [f"k{i}" for i in range(4)]
        for task in ("keyed", "booth"):
            items = [(keys[i % len(keys)], self.n + i, self.rng.randrange(5, 40)) for i in range(n)]
            runs = self.fleet.start_many(task, items)
            self.kinds |= {run: (task, who) for run, (who, _, _) in zip(runs, items, strict=True)}
        runs = self.fleet.start_many("narrow", [(self.n + i, self.rng.randrange(5, 40)) for i in range(n)])
        self.kinds |= dict.fromkeys(runs, ("narrow", ""))
        self.n += n

    def set(self, work: Any) -> Any:
        return self.fleet.call(work)

    def begun(self, since: float, task: str = "", who: str = "") -> list[Row]:
        """What began after a moment."""
        rows = [row for row in self.fleet.effects.find("before") if row.at > since and row.run in self.kinds]
        return [row for row in rows if self.kinds[row.run] in ((task, who or self.kinds[row.run][1]),) or not task]

    def under_way(self, task: str = "", who: str = "") -> list[str]:
        """Runs of a kind that some worker holds."""
        return [
            run
            for worker in self.fleet.live_workers
            for run in self.fleet.in_hand(worker)
            if not task or self.kinds[run] == (task, who or self.kinds[run][1])
        ]

    @contextmanager
    def shut(self, what: str, task: str = "", who: str = "") -> Iterator[None]:
        """Nothing of a kind begins in here, once what was under way is over; then it goes on."""
        wait_for(f"{what}: what is under way to end", lambda: not self.under_way(task, who))
        since = time.monotonic()
        yield
        time.sleep(QUIET)  # nothing is waited for: something must not happen
        assert not (rows := self.begun(since, task, who)), f"{what}, and yet began: {rows}"

    def await_begun(self, n: int, task: str = "", who: str = "") -> None:
        """Adds runs of every kind and waits until so many of one kind begin: there is always something to do."""
        since = time.monotonic()
        self.add(SHOW)
        wait_for(f"{n} steps of {task or 'any'} {who} to begin", lambda: len(self.begun(since, task, who)) >= n)

    def held_to(self, gate: str, task: str, n: int) -> None:
        """A limit of n is kept, from when those who were let through before it are fewer."""
        size = lambda: self.fleet.server.client.execute_command("ZCARD", self.fleet.keys.gate(0, gate))  # noqa: E731
        wait_for(f"{gate} to have room for {n}", lambda: size() <= n)
        since = time.monotonic()
        self.await_begun(SHOW, task)
        effects: dict[str, list[Row]] = {}
        for row in self.fleet.effects.rows():
            if self.kinds.get(row.run, ("", ""))[0] == task:
                effects.setdefault(row.run, []).append(row)
        crowd = executions(effects, self.fleet.deaths)
        # One that has not ended yet is as long as this look; one that ended before the limit held does not count.
        done = [one for one in crowd if one.ended > since]
        assert most_at_once(done) <= n, f"{most_at_once(done)} of {task} ran at once, {n} are allowed"


def change_a_limit(load: Load) -> None:
    for n in (1, 5, 2):
        load.set(load.controls.limit(task="narrow", concurrency=n))
        load.held_to("task|narrow", "narrow", n)
    load.set(load.controls.unlimit(task="narrow"))
    load.held_to("task|narrow", "narrow", 3)


def limit_a_queue(load: Load) -> None:
    load.set(load.controls.limit(queue="default", concurrency=2))
    load.await_begun(SHOW)
    load.set(load.controls.limit(queue="default", concurrency=6))
    load.await_begun(SHOW)
    load.set(load.controls.unlimit(queue="default"))
    load.await_begun(SHOW)


def pause_the_queue(load: Load) -> None:
    load.set(load.controls.pause(queue="default"))
    with load.shut("the queue is paused"):
        load.add(5)
    load.set(load.controls.resume(queue="default"))
    load.await_begun(SHOW)


def pause_a_task(load: Load) -> None:
    load.set(load.controls.pause(task="booth"))
    with load.shut("the task is paused", "booth"):
        load.await_begun(3, "narrow")
    load.set(load.controls.resume(task="booth"))
    load.await_begun(3, "booth")


def strike_a_key(load: Load) -> None:
    strike = load.set(load.controls.strike("keyed", {"who": "k1"}))
    with load.shut("the key is struck", "keyed", "k1"):
        load.await_begun(3, "keyed", "k0")
    load.set(load.controls.unstrike(strike))
    load.await_begun(3, "keyed", "k1")


CHANGES: list[Callable[[Load], None]] = [change_a_limit, limit_a_queue, pause_the_queue, pause_a_task, strike_a_key]


def steered(seed: int, changes: list[Callable[[Load], None]], *, load: int, kill: bool) -> None:
    rng = random.Random(seed)
    with Fleet(lease="1s") as fleet:
        fleet.keeper()
        victim, _ = fleet.start_workers(2)
        under = Load(fleet, rng)
        under.add(load)
        killed = 0
        for change in changes:
            change(under)
            under.add(load // 2)
            if kill:
                fleet.kill_holding(victim, more=lambda: under.add(load // 2))
                victim, killed = fleet.worker(), killed + 1
        check_new_work(fleet)
        check(fleet, Limits(crashes=killed, at_once={"task|narrow": 5}, log_lines=600), settle=120)
        left = fleet.server.client.execute_command("HGETALL", fleet.keys.controls(0))
        assert not left, f"controls are left: {left}"


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_an_operator_decides_holds_under_load(change: Callable[[Load], None]) -> None:
    steered(1, [change], load=30, kill=False)


def test_what_an_operator_decides_holds_while_a_worker_is_killed() -> None:
    steered(3, [pause_a_task, limit_a_queue], load=20, kill=True)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(4))
def test_what_operators_decide_holds_again_and_again_while_workers_are_killed(seed: int) -> None:
    order = CHANGES * 3
    random.Random(seed).shuffle(order)
    steered(seed, order, load=60, kill=True)
