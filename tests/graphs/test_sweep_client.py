"""The crash-point sweep from the other side: a client dies at every boundary, and another one asks for the same again."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chaos.checker import Limits
from chaos.fleet import Fleet, Member
from chaos.server import ServerProcess
from graphs.attending import site
from graphs.every import declare_every
from graphs.test_sweep_graph import Case, compare
from weft.testing.crash import CRASH_AT, CRASH_LOG, read_points

#: Calls by which a client changes something; it dies at the first few of all the others.
WORK = {"start_graph", "signal_run", "change_approval", "SET"}
CONTACTS = 3


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


class ClientCase(Case):
    """A worker that lives, and clients that may not."""

    def begin(self) -> None:
        self.fleet.worker("worker")

    def client(self, name: str, **env: str) -> int:
        fleet = self.fleet
        member = Member(fleet, name, "graphs.client", [fleet.server.url, fleet.namespace, self.url], env)
        fleet.members.append(member)
        return member.await_end(90)

    def outcome(self) -> list[str]:
        runs = self.fleet.call(self.fleet.app.runs.list(name="every"))
        if len(runs) != 1:
            return [f"one key gave {len(runs)} runs"]
        run = declare_every(self.fleet.app).run(runs[0].id)
        return [*self.fleet.call(compare(run), 30), *self.promises(Limits(crashes=0))]


def boundaries(server: ServerProcess, url: str) -> list[str]:
    """Lets a client live; returns where it can die: every boundary of work, the first of the others."""
    with ClientCase(server, url) as case:
        log = case.fleet.directory / "points"
        assert case.client("client", **{CRASH_LOG: str(log)}) == 0
        assert case.outcome() == []
        found: defaultdict[str, list[str]] = defaultdict(list)
        for point in read_points(log):
            found[point.rpartition(":")[0]].append(point)
    print(f"\n{ {kind: len(points) for kind, points in found.items()} }")
    return [
        point
        for kind, points in found.items()
        for point in (points if kind.partition(":")[2] in WORK else points[:CONTACTS])
    ]


def kill_at(server: ServerProcess, url: str, point: str) -> tuple[bool, list[str]]:
    with ClientCase(server, url) as case:
        died = case.client("victim", **{CRASH_AT: point}) == -9
        code = case.client("again")
        wrong = [f"the second client ended with {code}"] if code else []
        return died, [f"{point}: {line}" for line in [*wrong, *case.outcome()]]


def sweep(points: list[str], server: ServerProcess, url: str, at_once: int) -> int:
    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(lambda point: kill_at(server, url, point), points))
    wrong = [line for _, lines in found for line in lines]
    assert not wrong, f"{len(wrong)} broken promises:\n" + "\n".join(wrong[:30])
    died = sum(died for died, _ in found)
    print(f"died at {died} of {len(points)} boundaries")
    return died


def test_a_client_may_die_at_some_boundaries_of_a_graph_run(server: ServerProcess, url: str) -> None:
    points = [point for point in boundaries(server, url) if point.split(":")[1] in WORK]
    assert sweep(random.Random(6).sample(points, 1), server, url, 1) == 1


@pytest.mark.chaos
def test_a_client_may_die_at_every_boundary_of_a_graph_run(server: ServerProcess, url: str) -> None:
    points = boundaries(server, url)
    assert sweep(points, server, url, 4) > len(points) // 2
