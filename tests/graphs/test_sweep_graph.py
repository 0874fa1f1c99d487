"""The crash-point sweep over the graph of every construct: a worker dies at every boundary of every Redis call it makes.

The boundaries are counted by a run unharmed. Of calls that a run's life consists of every one is died at; of those that come
with time (leases, timers, wake-ups) the first few of each kind, before and after.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chaos.checker import Limits
from chaos.fleet import Fleet, WorkerProcess, wait_for
from chaos.server import ServerProcess
from graphs.attending import ALLOWED, attend, input_of, site
from graphs.every import KEPT, MAYBE, NODES_COME_TO, RESULT, STEPS, declare_every
from graphs.promises import broken_promises
from weft.sdk.graphrun import GraphRun
from weft.testing.crash import CRASH_AT, CRASH_LOG, read_points

#: Calls that make up the life of a graph run: the sweep dies at every one. A call of a new kind must be named here or below.
WORK = {
    "claim_steps", "commit_nodes", "commit_straight", "commit_steps", "stage_items", "start_graph", "park_step", "unfold_steps",
    "admit_steps", "reschedule_run", "end_run", "fire_timers", "put_away_graph", "pipeline", "GET", "SET", "HGET", "HMGET",
    "HGETALL", "LRANGE", "PEXPIRE", "ZREM", "drop_timers", "close_approvals",
}  # fmt: skip
#: Calls that come with time, with a connection or with the drain.
CONTACT = {
    "BLPOP", "CONFIG", "INFO", "SUBSCRIBE", "TIME", "XTRIM", "HDEL", "SCAN", "SSCAN", "ZSCAN", "SMEMBERS", "ZRANGE",
    "ZRANGEBYLEX", "read_timers", "renew_session", "take_lease", "drop_lease", "end_session", "emit_lost_steps", "report_steps",
    "expire_wait",
}  # fmt: skip
#: How many of each contact call the sweep dies at, before and after.
CONTACTS = 3

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def partitions() -> int:
    """The fleet's client reads one partition."""
    return 1


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with Fleet() as owner:
        yield owner.server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with site() as url:
        yield url


class Case:
    """One run of the graph in a namespace of its own."""

    def __init__(self, server: ServerProcess, url: str, **options: str) -> None:
        self.fleet = Fleet(server=server, namespace=f"every-{next(_numbers)}", **options)
        self.fleet.environ |= {**ALLOWED, "WEFT_EGRESS_PORTS": url.split(":")[2].partition("/")[0]}
        self.url = url

    def __enter__(self) -> Case:
        self.fleet.__enter__()
        self.begin()
        return self

    def begin(self) -> None:
        """Starts the run, and somebody who attends to it."""
        fleet = self.fleet
        self.run: GraphRun = fleet.call(declare_every(fleet.app).start(input_of(self.url)))
        self.attending = asyncio.run_coroutine_threadsafe(attend(fleet.app, self.run), fleet.loop)

    def __exit__(self, *error: object) -> None:
        client, keys = self.fleet.server.client, self.fleet.keys
        cursor = b"0"
        while True:  # what is kept of a thousand runs would slow down every look at the store
            cursor, found = client.execute_command("SCAN", cursor, "MATCH", keys.pattern(), "COUNT", 5000)
            if found:
                client.execute_command("UNLINK", *found)
            if cursor == b"0":
                break
        self.fleet.__exit__(*error)

    def victim(self, **env: str) -> WorkerProcess:
        return self.fleet.worker("victim", concurrency=4, ready=False, env=env)

    def ended(self) -> bool:
        return bool(self.fleet.server.client.execute_command("HGET", self.fleet.keys.run(0, self.run.id), "status"))

    def wrong(self, limits: Limits) -> list[str]:
        """Waits for the run and everything around it to end; returns what is not as it must be."""
        self.attending.result(90)
        return [*self.fleet.call(compare(self.run), 30), *self.promises(limits)]

    def promises(self, limits: Limits) -> list[str]:
        return broken_promises(self.fleet, limits)


async def compare(run: GraphRun) -> list[str]:
    """Returns what a run came to otherwise than its table says."""
    found = []
    if (result := await run.result(10)) != RESULT:
        found.append(f"it gave {result}")
    for id, about in (await run.graph())["nodes"].items():
        status, wanted = NODES_COME_TO[id]
        output = about.get("output")
        fits = wanted(output) if callable(wanted) else output == wanted
        if about["status"] != status or not fits:
            found.append(f"node {id} is {about['status']} with {output!r:.100}")
    events = await run.history()
    ends = {event.step for event in events if event.type in ("step_completed", "step_failed")}
    if other := {step for step in ends ^ STEPS if not step.startswith(MAYBE)}:
        found.append(f"steps that ended, or did not: {sorted(other)}")
    if (kept := {event.step for event in events if event.type == "step_cached"}) != KEPT:
        found.append(f"kept outputs were taken by {sorted(kept)}")
    return found


def boundaries(server: ServerProcess, url: str) -> dict[str, list[str]]:
    """Runs the graph unharmed; returns where its worker can die, by the call."""
    with Case(server, url) as case:
        log = case.fleet.directory / "points"
        victim = case.victim(**{CRASH_LOG: str(log)})
        assert case.wrong(Limits(crashes=0)) == []
        victim.stop()
        found: defaultdict[str, list[str]] = defaultdict(list)
        for point in read_points(log):
            found[point.split(":")[1]].append(point)
    counts = {call: len(points) for call, points in sorted(found.items())}
    print(f"\n{sum(counts.values())} boundaries: {counts}")
    assert found.keys() <= WORK | CONTACT, f"calls of a new kind: {found.keys() - WORK - CONTACT}"
    return found


def kill_at(server: ServerProcess, url: str, point: str) -> tuple[bool, list[str]]:
    """Kills a worker at one point and lets another finish; tells whether it was reached, and what went wrong."""
    try:
        with Case(server, url, lease="1s") as case:
            victim = case.victim(**{CRASH_AT: point})
            wait_for(f"the victim to die at {point} or to be done", lambda: not victim.alive or case.ended())
            if victim.alive:  # the point may lie in what comes behind the end, or in its drain
                victim.process.terminate()
            died = victim.await_end() == -9
            case.fleet.worker("rescuer")
            return died, [f"{point}: {line}" for line in case.wrong(Limits(crashes=1))]
    except Exception as error:
        return True, [f"{point}: {type(error).__name__}: {error}"]


def sweep(points: list[str], server: ServerProcess, url: str, at_once: int) -> Counter[str]:
    """Dies at each point; returns how many were reached, by the call."""
    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(lambda point: kill_at(server, url, point), points))
    wrong = [line for _, lines in found for line in lines]
    assert not wrong, f"{len(wrong)} broken promises:\n" + "\n".join(wrong[:30])
    reached = Counter(point.split(":")[1] for point, (died, _) in zip(points, found, strict=True) if died)
    print(f"died at {reached.total()} of {len(points)} boundaries: {dict(sorted(reached.items()))}")
    return reached


def chosen(found: dict[str, list[str]]) -> list[str]:
    """Every boundary of work; the first of those that come with time."""
    points = []
    for call, passed in found.items():
        for when in ("before", "after"):
            of = [point for point in passed if point.startswith(when)]
            points += of if call in WORK else of[:CONTACTS]
    return points


def test_a_worker_may_die_at_some_boundaries_of_a_graph_of_every_construct(server: ServerProcess, url: str) -> None:
    rng, found = random.Random(5), boundaries(server, url)
    # The first ones of a kind come in every run, however calls are grouped.
    points = [
        rng.choice(found[call][: max(1, len(found[call]) // 3)])
        for call in ("commit_nodes", "stage_items", "start_graph")
    ]
    assert sweep(points, server, url, 3).total() >= 2


@pytest.mark.chaos
def test_a_worker_may_die_at_every_boundary_of_a_graph_of_every_construct(server: ServerProcess, url: str) -> None:
    points = chosen(boundaries(server, url))
    assert sweep(points, server, url, 4).total() > len(points) // 2
