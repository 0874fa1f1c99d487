"""Workers and servers that die around approvals: nothing that was asked or decided is lost, and nothing is decided twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.approval_app import app as sweep_app
from servers import ServerProcess
from weft import Weft
from weft.sdk.run import Run
from weft.testing.sweep import CrashEverywhere

#: The calls in which a waiting step moves.
CALLS = ("claim_steps", "park_step", "expire_wait", "change_approval", "commit_nodes")


def check_silent(run: Run[Any]) -> None:
    assert run.sync.result(timeout=60) == ["approved", None, "done"]
    events = run.sync.history()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    types = Counter(event.type for event in events)
    assert types["approval_decided"] == 1
    # Nobody is reminded of what the timeout has decided meanwhile.
    assert types["approval_reminded"] <= 1 and types["approval_escalated"] <= 1
    assert types["step_waiting"] == 2 and types["step_completed"] == 2


def sweep(server: ServerProcess, directory: Path, each: int, calls: tuple[str, ...] = CALLS) -> list[str]:
    crash = CrashEverywhere("chaos.approval_app:app", redis_url=server.url, directory=directory)

    def start() -> Run[Any]:
        return sweep_app.portal.call(sweep_app.graphs["silent"].start({}))

    return crash(start, check_silent, calls=calls, each=each, duplicates=each > 1)


def test_a_worker_that_dies_around_a_wait_loses_and_doubles_nothing(
    launch: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    calls = ("park_step", "change_approval")
    died = sweep(launch(), tmp_path, each=1, calls=calls)
    assert {point.split(":")[1] for point in died} == set(calls)


@pytest.mark.chaos
def test_a_worker_that_dies_at_any_boundary_around_waits_loses_and_doubles_nothing(
    launch: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    died = sweep(launch(), tmp_path, each=5)
    assert len(died) >= 20 and {point.split(":")[1] for point in died} == set(CALLS)


async def test_approvals_survive_the_death_of_workers_and_server(launch: Callable[..., ServerProcess]) -> None:
    server = launch()
    client = Weft("client", redis_url=server.url, namespace="n")
    graph = client.graph("asked", output="${review.by}")
    graph.approval("review", approvers=["anna"])
    async with client:
        async with client.worker():
            runs = [await graph.start({}) for _ in range(20)]
            async with asyncio.timeout(40):
                while len(asked := await client.approvals.list()) < 20:
                    await asyncio.sleep(0.01)
        # The decision is on disk before the answer, where the server can tell; then the plug is pulled.
        done = [await client.approvals.approve(a.id, by="anna", digest=a.digest) for a in asked[:3]]
        server.kill()
        server.start()
        if all(one.durability == "fsync" for one in done):
            assert {one.status for one in [await client.approvals.get(a.id) for a in asked[:3]]} == {"approved"}
        left = await client.approvals.list()
        assert {one.id for one in left} >= {one.id for one in asked[3:]}
        for one in left:
            await client.approvals.approve(one.id, by="anna", digest=one.digest)
        async with client.worker():
            assert [await run.result(timeout=40) for run in runs] == ["anna"] * 20
