"""Three schedulers, one of them stopped for hours and woken: each tick of each schedule has one run."""

from __future__ import annotations

import random
import signal
from datetime import UTC, datetime

import psutil
import pytest

from chaos.checker import Limits, check, check_new_work
from chaos.fleet import Fleet, WorkerProcess, wait_for
from weft.store.timers import set_clock
from weft.testing.crash import CRASH_AT, STOP_AT

HOUR = 3_600_000

#: Schedules that tick at the same moments; the names differ so that each has runs of its own.
NAMES = [f"s{n}" for n in range(5)]


class Clock:
    """The store's clock, moved ahead of time by hand."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.ahead = fleet, 0
        self.ns = fleet.app._engines[fleet.loop].ns
        self.start = fleet.now_ms()

    def to_the_hour(self, n: int) -> None:
        """Goes to a second after the nth full hour since the beginning."""
        due = (self.start // HOUR + n) * HOUR + 1_000
        self.ahead = due - self.fleet.now_ms()
        self.fleet.call(set_clock(self.ns, 0, self.ahead))

    def tick(self, n: int) -> str:
        return datetime.fromtimestamp((self.start // HOUR + n) * 3600, UTC).isoformat().replace("+00:00", "Z")


def ticks_of(fleet: Fleet) -> dict[str, list[str]]:
    """The ticks of every schedule for which the log tells of a run, in order: one that ran twice stands there twice."""
    found: dict[str, list[str]] = {name: [] for name in NAMES}
    for run in fleet.call(fleet.app.runs.list(limit=10_000)):
        if run.status == "completed" and "schedule" in run.tags:
            found[run.tags["schedule"]].append(run.tags["tick"])
    return {name: sorted(ticks) for name, ticks in found.items()}


def test_each_tick_has_one_run_however_many_schedulers_there_are_and_one_sleeps() -> None:
    with Fleet(lease="1500ms") as fleet:
        fleet.call(fleet.app.open())
        clock = Clock(fleet)
        for name in NAMES:
            fleet.call(fleet.app.schedules.create(name, "0 * * * *", "effect", (3,), overlap="allow", catch_up="all"))
        # The first worker leads: it has read and decided about its third look at ticks, and stops right before the script.
        points = {STOP_AT: "before:tick_schedules:3", CRASH_AT: "after:tick_schedules:3"}
        sleeper = fleet.worker("sleeper", queues="nothing", env=points)
        clock.to_the_hour(1)
        fleet.start_workers(2)
        expected = [clock.tick(1)]
        wait_for("the first ticks", lambda: ticks_of(fleet) == dict.fromkeys(NAMES, expected))
        for n in (2, 3, 4):
            clock.to_the_hour(n)
            expected.append(clock.tick(n))
            wait_for(f"the ticks of hour {n}", lambda: ticks_of(fleet) == dict.fromkeys(NAMES, expected))
        assert psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED

        # Hours later, long after the runs of that tick could have been forgotten, it goes on where it stood.
        fleet.call(_forget(fleet))
        sleeper.send(signal.SIGCONT)
        # It dies as soon as the server has answered that script: so it has been heard.
        sleeper.await_end()
        clock.to_the_hour(5)
        wait_for("the ticks of hour 5", lambda: ticks_of(fleet) == {name: [clock.tick(5)] for name in NAMES})
        # Every start is an event of the log: one for each schedule and tick, forgotten or not.
        queued = fleet.call(_queued(fleet))
        assert sorted(queued) == sorted((name, clock.tick(n)) for name in NAMES for n in range(1, 6))


def schedulers_at_odds(seed: int, *, hours: int, kills: int) -> None:
    """Three schedulers: whoever leads is stopped at any moment, left to sleep for hours, woken; or killed for good.

    What ticks waits at a limit and holds its slots when a worker dies, so a tick that were started twice would show.
    """
    rng = random.Random(seed)
    with Fleet(lease="1s") as fleet:
        fleet.call(fleet.app.open())
        clock = Clock(fleet)
        for name in NAMES:
            fleet.call(
                fleet.app.schedules.create(name, "0 * * * *", "narrow", (3, 20), overlap="allow", catch_up="all")
            )
        fleet.start_workers(3)
        dying = set(rng.sample(range(1, hours + 1), kills))
        sleeping: list[tuple[int, WorkerProcess]] = []
        expected = []
        for n in range(1, hours + 1):
            leader = leader_of(fleet)
            if leader is not None and n in dying:
                leader.kill()
                fleet.worker()
            elif leader is not None and len(sleeping) < 2:
                leader.send(signal.SIGSTOP)
                sleeping.append((n, leader))
            clock.to_the_hour(n)
            expected.append(clock.tick(n))
            wait_for(f"the ticks of hour {n}", lambda: ticks_of(fleet) == dict.fromkeys(NAMES, expected))
            while sleeping and (n - sleeping[0][0] >= 2 or n == hours):
                sleeping.pop(0)[1].send(signal.SIGCONT)
        clock.to_the_hour(hours + 1)
        expected.append(clock.tick(hours + 1))
        check_new_work(fleet)
        wait_for("the last ticks", lambda: ticks_of(fleet) == dict.fromkeys(NAMES, expected))
        # A stopped one counts as dead until it is woken.
        state = check(fleet, Limits(crashes=hours))
        queued = fleet.call(_queued(fleet))
        assert sorted(queued) == sorted((name, tick) for name in NAMES for tick in expected)
        assert len(state.runs) >= len(queued)


def leader_of(fleet: Fleet) -> WorkerProcess | None:
    """The worker that holds the timers' lease now, if it is one that runs in its first session."""
    owner = fleet.server.client.execute_command("GET", fleet.keys.lock(0, "timers"))
    return next((worker for worker in fleet.live_workers if owner and worker.session.encode() == owner), None)


def test_each_tick_has_one_run_while_leaders_sleep_and_die() -> None:
    schedulers_at_odds(4, hours=2, kills=1)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(4))
def test_each_tick_has_one_run_while_leaders_sleep_and_die_for_a_day(seed: int) -> None:
    schedulers_at_odds(seed, hours=12, kills=4)


async def _forget(fleet: Fleet) -> None:
    """Lets the finished runs expire now rather than after their hour."""
    for run in await fleet.app.runs.list(limit=10_000):
        fleet.server.client.execute_command("DEL", fleet.keys.run(0, run.id))


async def _queued(fleet: Fleet) -> list[tuple[str, str]]:
    from weft.core.model import SPEC_DECODER
    from weft.store.log import parse_entry

    ns = fleet.app.engine().ns
    entries = await ns.read("XRANGE", ns.keys.log(0), "-", "+", p=0)
    events = [event for entry, fields in entries for event in parse_entry(entry, fields)]
    tags = [SPEC_DECODER.decode(event.payload).tags for event in events if event.type == "queued"]
    return [(found["schedule"], found["tick"]) for found in tags if "schedule" in found]
