"""`weft runs pause|resume|cancel` and `weft graph patch` on a graph run, from outside; also while a worker is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import redis
from cli_project import ROOT, Project, until

from weft.store.embedded import EmbeddedServer
from weft.store.keys import Keyspace

GRAPHS = """
import asyncio
from pathlib import Path
from weft import Weft

app = Weft("shop")
line = app.graph("line", output="${second}")

@line.node(timeout="1m")
async def first() -> int:
    Path("began").write_text("x")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return 1

@line.node(after=first)
async def second(first: int) -> int:
    return first + 1

@app.task
async def note(text: str) -> str:
    Path(f"noted.{text}").write_text(text)
    return text
"""


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    project = Project(tmp_path_factory.mktemp("changes"), tasks=GRAPHS, PYTHONPATH=path, WEFT_LEASE="1s")
    held = EmbeddedServer.attach(project.root / ".weft")
    yield project
    project.close()
    held.detach()


def start(project: Project) -> str:
    """Starts a run of the graph, as a program of the user's would."""
    code = "from tasks import line; print(line.sync.start().id)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project.root, env=project.env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_an_operator_pauses_patches_and_resumes(project: Project) -> None:
    project.start("worker", "--grace", "0s")
    run = start(project)
    project.wait_for_file("began")
    assert project.weft("runs", "pause", run, "--reason", "wait").rows == [[run, "paused"]]
    assert "is paused since" in project.weft("runs", "explain", run).out
    value = {"type": "task", "call": "note", "after": ["first"], "with": {"text": "hi"}}
    (project.root / "patch.json").write_text(json.dumps([{"op": "add", "path": "/nodes/extra", "value": value}]))

    dry = project.weft("graph", "patch", run, "patch.json", "--dry-run", "--json").document
    assert (dry["revision"], dry["added"], dry["dry_run"]) == (1, ["extra"], True)
    told = project.weft("graph", "patch", run, "patch.json", "--author", "ann", "--reason", "more", "--json").document
    assert (told["revision"], told["added"]) == (2, ["extra"])
    late = project.weft("graph", "patch", run, "patch.json", "--revision", "1", code=5)
    assert "is at revision 2 by now" in late.err
    assert project.weft("graph", "patch", run, "--undo", "--dry-run", "--json").document["removed"] == ["extra"]
    for bad in ([], ["patch.json", "--undo"], ["nothing.json"]):
        project.weft("graph", "patch", run, *bad, code=2)

    (project.root / "go").write_text("x")
    assert project.weft("runs", "resume", run, "--json").document["status"] in ("running", "completed")
    project.weft("runs", "watch", run)
    assert (project.root / "noted.hi").exists()
    (patched,) = [e for e in project.weft("runs", "events", run, "--json").documents if e["type"] == "patched"]
    assert (patched["data"]["author"], patched["data"]["reason"]) == ("ann", "more")
    assert "had already completed" in project.weft("runs", "pause", run, code=5).err
    project.weft("runs", "pause", "r0-01J00000000000000000000000", code=3)


def test_what_a_killed_worker_held_is_put_away_when_its_run_was_cancelled(project: Project) -> None:
    worker = project.start("worker", "--grace", "0s")
    run = start(project)
    project.wait_for_file("began")
    worker.signal(signal.SIGKILL)
    worker.wait()

    project.weft("runs", "cancel", run)

    project.start("worker", "--grace", "0s")
    until(lambda: "timers" not in left_open(project))
    assert left_open(project) == []
    assert project.weft("runs", "ls", "--json").document["status"] == "cancelled"

    counted = project.weft("runs", "change", "retry", "--name", "line", "--json")
    assert counted.document == {"matched": 1, "done": [], "refused": {}, "runs": [run]} and "say --yes" in counted.err
    project.weft("runs", "change", "retry", code=2)
    (project.root / "go").write_text("x")
    assert project.weft("runs", "retry", run, "--from", "first").out.split() == ["first", "second"]
    project.weft("runs", "watch", run, "--after", "3")
    fork = project.weft("runs", "fork", run, "--from", "second", "--json").document
    assert fork["replay_of"] == run
    project.weft("runs", "watch", fork["id"])
    assert "fork it" in project.weft("runs", "retry", run, code=5).err
    project.weft("runs", "fork", run, "--from", "nobody", code=3)
    project.weft("runs", "fork", run, "--from", "second", "--input", "{", code=2)
    piped = project.weft("runs", "fork", run, "--from", "second", "--input", "-", input='{"piped": 1}').out.strip()
    assert project.weft("runs", "show", piped, "--json").document["input"] == {"piped": 1}
    project.weft("runs", "watch", piped)


def left_open(project: Project) -> list[str]:
    """Returns the families of keys in which something of a run is left that must not be."""
    keys, left = Keyspace("weft"), []
    with redis.Redis(unix_socket_path=str(project.root / ".weft" / "valkey.sock")) as client:
        if client.zcard(keys.timers(0)):
            left.append("timers")
        for key in client.scan_iter(keys.pattern()):
            parsed = keys.parse(key.decode())
            assert parsed is not None, key
            name = parsed[1].name
            stays = name in ("run", "ledger", "context", "arrivals") and client.pttl(key) == -1
            if stays or (name == "wf.tasks" and client.xlen(key)):
                left.append(name)
    return left
