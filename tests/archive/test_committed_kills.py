"""Producers killed between the two writes of a committed start: what was acknowledged runs, what was not is absent or whole."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft import Weft
from weft.engine.housekeeping import reconciler
from weft.testing.crash import CRASH_AT

pytestmark = pytest.mark.leaves("history", "open runs")

#: Asks for a task, a workflow and a graph, and says what it was told. Dies where the environment says.
PRODUCER = """
import asyncio, os, sys
from weft.archive.starts import Starts
from weft.store import connection
from weft.testing.crash import install_from_environ
sys.path.insert(0, os.path.dirname(os.environ["TEST_FILE"]))
from test_committed_kills import declare
from weft import Weft

write = Starts.write
async def told(self, *args):
    connection.boundary("before", "write")
    found = await write(self, *args)
    connection.boundary("after", "write")
    return found
Starts.write = told

async def main():
    app = Weft("kills")
    task, flow, graph = declare(app, os.devnull)
    async with app:
        install_from_environ()
        options = {"durability": "committed"}
        for name, start in (
            ("task", lambda: task.options(idempotency_key="task", **options).enqueue(1)),
            ("flow", lambda: flow.options(idempotency_key="flow", **options).start(2)),
            ("graph", lambda: graph.options(idempotency_key="graph", **options).start({"n": 3})),
        ):
            os.write(1, f"{name} {(await start()).id}\\n".encode())

asyncio.run(main())
"""

TASK = [f"{when}:{call}:1" for call in ("write", "start_runs") for when in ("before", "after")]
ALL = [
    f"{when}:{call}" for call in ("write:2", "start_runs:2", "write:3", "start_graph:1") for when in ("before", "after")
]


def declare(app: Weft, notes: str):
    def note(word: str) -> None:
        with open(notes, "a") as file:
            file.write(word + "\n")

    @app.task
    async def work(n: int) -> int:
        note(f"task-{n}")
        return n

    @app.workflow
    async def flow(ctx, n: int) -> int:
        note(f"flow-{n}")
        return n

    graph = app.graph("g")

    @graph.node
    async def first(n: int) -> int:
        note(f"graph-{n}")
        return n

    return work, flow, graph


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("point", ["after:write:1", "after:start_runs:1"])
async def test_a_producer_killed_between_the_writes_loses_nothing_and_doubles_nothing(app, kill, point):
    await kill(point)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("database_url", "point"),
    [
        *(("sqlite", point) for point in (*TASK, *ALL)),
        ("postgres", "after:write:1"),
        ("postgres", "after:start_graph:1"),
    ],
    indirect=["database_url"],
)
async def test_a_producer_killed_at_any_boundary_of_any_kind_of_start(app, kill, point):
    await kill(point)


@pytest.fixture
def kill(app, archive, archivers, start_worker, server, database_url, tmp_path, monkeypatch):
    notes = tmp_path / "effects"
    declare(app, str(notes))

    async def run(point: str) -> None:
        await archive()
        told = await produce({CRASH_AT: point}, -9)

        monkeypatch.setattr(reconciler, "GRACE", -1.0)
        for each in await archivers():
            await each.drain()
            await each._reconciler.look(each._checkpoint)
        found = {run.id: run for run in await app.runs.list()}
        assert set(told.values()) <= found.keys(), "what was acknowledged is there"
        # Killed after the row was written: it stands, though nobody was told.
        number = ["task", "flow", "graph"].index(killed_in(point)) + 1
        assert len(found) == number - (point == f"before:write:{number}")

        again = await produce({}, 0)
        assert {name: again[name] for name in told} == told
        assert set(again.values()) >= found.keys() and len(again) == 3, "the same key gives the same run"
        await start_worker()
        for id in again.values():
            await (await app.runs.get(id)).result(30)
        await archive()
        assert sorted(notes.read_text().split()) == ["flow-2", "graph-3", "task-1"], "each ran once"

    async def produce(environ, code):
        env = {
            **os.environ,
            "WEFT_REDIS_URL": server.url,
            "WEFT_NAMESPACE": app.engine().ns.keys.namespace,
            "WEFT_DATABASE_URL": database_url,
            "TEST_FILE": str(Path(__file__)),
            **environ,
        }
        done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", PRODUCER], env=env, capture_output=True)
        assert done.returncode == code, done.stderr.decode()
        return dict(line.split() for line in done.stdout.decode().splitlines())

    return run


def killed_in(point: str) -> str:
    _, call, number = point.split(":")
    if call == "start_graph":
        return "graph"
    return ["task", "flow", "graph"][int(number) - 1]
