"""Three schedulers, one of them stopped for hours and woken: each tick of each schedule has one run."""

from __future__ import annotations

import signal
from datetime import UTC, datetime

import psutil

from chaos.fleet import Fleet, wait_for
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
        if run.status == "completed":
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
    return [(found["schedule"], found["tick"]) for found in tags]
