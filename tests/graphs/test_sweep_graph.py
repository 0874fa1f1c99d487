"""The crash-point sweep over one graph of every construct: a worker dies at every boundary of its Redis calls.

The boundaries are counted by a run unharmed. Those of calls that a run's life consists of are all died at; of those that come
with time (leases, timers, wake-ups) the first few.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chaos.fleet import Fleet, wait_for
from chaos.server import ServerProcess
from graphs.comparing import differences, start
from graphs.generator import CONSTRUCTS, Graph
from weft.testing.crash import CRASH_AT, CRASH_LOG, read_points

#: Calls that make up the life of a graph run.
WORK = {"claim_steps", "commit_nodes", "commit_steps", "stage_items", "HGET", "HMGET", "HGETALL", "GET", "SET"}
#: How many of the other calls the sweep dies at.
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


def whole() -> Graph:
    """A graph that uses every construct there is."""
    graph = Graph(7, n=len(CONSTRUCTS), fatal=False)
    assert graph.used >= set(CONSTRUCTS)
    return graph


def boundaries(server: ServerProcess) -> dict[str, list[str]]:
    """Runs the graph unharmed; returns where its worker can die, by the call."""
    with Fleet(server=server, namespace=f"sweep-{next(_numbers)}") as fleet:
        graph = whole()
        run = fleet.call(start(fleet.app, graph))
        victim = fleet.worker("victim", concurrency=4, env={CRASH_LOG: str(fleet.directory / "points")})
        assert fleet.call(differences(graph, run, 60), 90) == []
        victim.stop()
        found: defaultdict[str, list[str]] = defaultdict(list)
        for point in read_points(fleet.directory / "points"):
            found[point.split(":")[1]].append(point)
        print(
            f"\n{sum(map(len, found.values()))} boundaries: { {call: len(points) for call, points in found.items()} }"
        )
        return found


def kill_at(server: ServerProcess, point: str) -> tuple[bool, list[str]]:
    """Kills a worker at one point and lets another finish; tells whether it was reached, and what went wrong."""
    with Fleet(server=server, namespace=f"sweep-{next(_numbers)}", lease="1s") as fleet:
        graph = whole()
        run = fleet.call(start(fleet.app, graph))
        victim = fleet.worker("victim", concurrency=4, ready=False, env={CRASH_AT: point})
        key = fleet.keys.run(0, run.id)

        def over() -> bool:
            return not victim.alive or bool(fleet.server.client.execute_command("HGET", key, "status"))

        wait_for(f"the victim to die at {point} or to be done", over)
        fleet.worker("rescuer")
        wrong = fleet.call(differences(graph, run, 60), 90)
        died = not victim.alive
        return died, [f"{point}: {line}" for line in wrong]


def sweep(points: list[str], server: ServerProcess, at_once: int) -> Counter[str]:
    """Dies at each point; returns how many were reached, by the call."""
    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(lambda point: kill_at(server, point), points))
    wrong = [line for _, lines in found for line in lines]
    assert not wrong, "\n".join(wrong[:20])
    reached = Counter(point.split(":")[1] for point, (died, _) in zip(points, found, strict=True) if died)
    print(f"died at {sum(reached.values())} of {len(points)} boundaries: {dict(reached)}")
    return reached


def test_a_worker_may_die_at_some_boundaries_of_a_graph_run(server: ServerProcess) -> None:
    rng, found = random.Random(5), boundaries(server)
    # The first ones of a kind come in every run, however calls are grouped.
    points = [rng.choice(found[call][: len(found[call]) // 3]) for call in ("commit_nodes", "stage_items", "HMGET")]
    assert sweep(points, server, 3).total() >= 2


@pytest.mark.chaos
def test_a_worker_may_die_at_every_boundary_of_a_graph_run(server: ServerProcess) -> None:
    found = boundaries(server)
    assert found.keys() >= WORK - {"commit_steps", "HGETALL"}
    points = [point for call, all in found.items() for point in (all if call in WORK else all[: 2 * CONTACTS])]
    assert sweep(points, server, 4).total() > len(points) // 2
