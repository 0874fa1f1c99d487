"""Graph runs that are paused, patched, cancelled and retried while workers are killed and the server restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import weft
from chaos import graph_tasks
from servers import ServerProcess
from weft import Conflict, RunCancelled, StepFailed
from weft.errors import Unavailable
from weft.ids import partition_of

#: Seconds that everything has to end in; far more than it needs.
PATIENCE = 90.0


class Crew:
    """Worker processes on one server, to be killed."""

    def __init__(self, url: str) -> None:
        path = [str(Path(weft.__file__).parents[1]), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("WEFT_", "PYTEST_"))}
        self._env = {**clean, "PYTHONPATH": os.pathsep.join(path), "WEFT_REDIS_URL": url, "WEFT_LEASE": "1s"}
        self.processes: list[subprocess.Popen[bytes]] = []

    def hire(self) -> None:
        words = ["worker", "chaos.graph_tasks:app", "-c", "10", "--grace", "0s"]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen([sys.executable, "-m", "weft", *words], env=self._env, stdout=quiet, stderr=quiet)
        self.processes.append(process)

    def kill(self, chance: random.Random) -> None:
        process = self.processes.pop(chance.randrange(len(self.processes)))
        process.kill()
        process.wait()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
async def crew(
    launch: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Crew, ServerProcess]]:
    server = launch()
    monkeypatch.setenv("WEFT_REDIS_URL", server.url)
    crew = Crew(server.url)
    for _ in range(2):
        crew.hire()
    yield crew, server
    crew.close()
    await graph_tasks.app.close()


async def insist(verb: Callable[[], Any]) -> Any:
    """Does something while the store may be away."""
    while True:
        try:
            return await verb()
        except Unavailable:
            await asyncio.sleep(0.05)


async def meddle(run: Any, chance: random.Random) -> None:
    for i in range(10):
        await asyncio.sleep(chance.random() / 3)
        node = {
            "type": "task",
            "call": "note",
            "with": {"text": f"n{i}"},
            "after": [chance.choice(["a", "m", "again"])],
        }
        verbs: list[Callable[[], Any]] = [
            run.pause,
            run.resume,
            run.resume,
            run.retry,
            lambda node=node, i=i: run.patch([{"op": "add", "path": f"/nodes/n{i}", "value": node}]),
            *([run.cancel] if chance.random() < 0.3 else []),
        ]
        with contextlib.suppress(Conflict, weft.InvalidArguments):
            await insist(chance.choice(verbs))
    await insist(run.resume)


async def settle(run: Any) -> None:
    """Waits for a run, and retries it until it completes."""
    while True:
        try:
            assert await insist(lambda: run.result(PATIENCE)) == 28
            return
        except (StepFailed, RunCancelled):
            with contextlib.suppress(Conflict):
                await insist(run.retry)


async def left(run: Any) -> list[str]:
    """Returns what is left of a run that must not be: open steps, timers, keys without an expiry."""
    ns, p = run._app.engine().ns, partition_of(run.id)
    found = [
        member.decode()
        for member in await ns.read("ZRANGE", ns.keys.timers(p), 0, -1, p=p)
        if run.id.encode() in member
    ]
    cursor = 0
    while True:
        cursor, keys = await ns.on_node(p, "SCAN", cursor, "MATCH", f"*{run.id}*", "COUNT", 1000)
        for key in keys:
            if await ns.read("PTTL", key, p=p) == -1:
                found.append(key.decode())
        if int(cursor) == 0:
            return found
        cursor = int(cursor)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2])
async def test_runs_that_are_changed_while_workers_die_complete_and_leave_nothing(
    crew: tuple[Crew, ServerProcess], eventually: Callable[..., Any], seed: int
) -> None:
    workers, server = crew
    chance = random.Random(seed)
    log = graph_tasks.app.engine().ns.keys.log(0)
    runs = [await graph_tasks.busy.start() for _ in range(10)]
    changes = asyncio.gather(*(meddle(run, random.Random(10 * seed + i)) for i, run in enumerate(runs)))

    with server.client() as client:
        for _ in range(4):
            seen = client.xlen(log)
            # Work is under way again, or there is nothing left to change.
            await eventually(lambda seen=seen: client.xlen(log) > seen + 40 or changes.done(), PATIENCE)
            workers.kill(chance)
            workers.hire()
    await changes
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(settle(run) for run in runs))

    for run in runs:
        history = await run.history()
        assert [event.seq for event in history] == list(range(1, len(history) + 1))

        async def nothing_left(run: Any = run) -> bool:
            return await left(run) == []

        await eventually(nothing_left, PATIENCE)


@pytest.mark.chaos
async def test_a_pause_stays_when_the_server_is_killed(
    crew: tuple[Crew, ServerProcess], eventually: Callable[..., Any]
) -> None:
    _, server = crew
    with server.client() as client:
        client.config_set("appendfsync", "always")  # what is answered is on disk
    run = await graph_tasks.busy.start()
    await run.pause("over night")

    server.kill()
    server.start()

    async def knows() -> bool:
        return str(await insist(run.status)) == "paused"

    await eventually(knows, PATIENCE)
    assert (await insist(run.explain)).reason == "run_paused"
    await insist(run.resume)
    assert await insist(lambda: run.result(PATIENCE)) == 28
