"""`weft queues`, `workers`, `strike`, `top` and `runs explain`, from outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_project import Project

from weft.store.embedded import EmbeddedServer


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("queues"))
    held = EmbeddedServer.attach(project.root / ".weft")
    yield project
    project.close()
    held.detach()


def test_an_operator_pauses_looks_why_and_resumes(project: Project) -> None:
    worker = project.start("worker", "--grace", "0s")
    assert project.weft("queues", "pause", "default", "--reason", "flood").rows == [["queue default", "paused"]]
    run = project.weft("enqueue", "add", "a=1", "b=2", "--json").document["id"]
    why = project.weft("runs", "explain", run, "--json").document
    assert (why["reason"], why["status"]) == ("queue_paused", "queued")
    assert project.weft("runs", "explain", run).out.strip() == why["text"]
    (queue,) = [q for q in project.weft("queues", "ls", "--json").documents if q["name"] == "default"]
    assert (queue["ready"], queue["held"], queue["depth"], queue["paused"], queue["workers"]) == (0, 1, 1, True, 1)
    assert queue["oldest_age"] == 0 < queue["oldest_held_age"], "no worker could take it"
    assert project.weft("queues", "ls").rows[0][:5] == ["default", "0", "0", "1", ""]
    (session,) = project.weft("workers", "ls", "--json").documents
    assert session["alive"] and session["pid"] == worker.process.pid
    assert 'weft_queue_depth{queue="default"} 1' in project.weft("queues", "ls", "--prometheus").out.splitlines()
    (look,) = project.weft("top", "--once", "--json").documents
    assert look["queues"][0]["name"] == "default" and len(look["workers"]) == 1
    assert look["failed"] == 0
    seen = project.weft("top", "--once")
    assert seen.out.splitlines()[0].startswith("default\t0\t0\t1\t\t") and "0 dead letters   1 workers" in seen.err
    on_screen = project.on_terminal("top", "--once")
    for header in ("ready", "oldest", "per second", "limits", "state", "concurrency"):
        assert header in " ".join(on_screen.split())
    project.weft("queues", "resume", "default")
    assert "nothing changed" in project.weft("queues", "resume", "default").err
    project.weft("runs", "watch", run)


def test_an_operator_strikes_and_limits(project: Project) -> None:
    project.start("worker", "--grace", "0s")
    strike = project.weft("strike", "add", "a=1", "--json").document["id"]
    run = project.weft("enqueue", "add", "a=1", "b=2", "--json").document["id"]
    project.weft("enqueue", "add", "a=2", "b=2", "--watch")
    assert project.weft("runs", "explain", run).out.startswith("task add with a=1 is struck since")
    (told,) = project.weft("queues", "controls", "--json").documents
    assert (told["kind"], told["what"], told["id"], told["where"]) == ("strike", "task add", strike, {"a": "1"})
    columns = project.weft("queues", "controls").out.rstrip("\n").split("\t")
    assert (columns[:3], columns[-1]) == (["strike", "task add", "a=1"], strike)
    project.weft("unstrike", strike)
    assert project.weft("unstrike", strike, code=3).err.startswith("weft: there is no strike")
    project.weft("runs", "watch", run)
    project.weft("queues", "limit", "default", "--concurrency", "3", "--rate", "100/m")
    (queue,) = [q for q in project.weft("queues", "ls", "--json").documents if q["name"] == "default"]
    assert queue["limits"] == {"concurrency": 3, "rate": "100/m"}
    lines = [line.split("\t")[:3] for line in project.weft("queues", "controls").out.splitlines()]
    assert sorted(lines) == [["limit", "queue default", "concurrency 3"], ["limit", "queue default", "rate 100/m"]]
    project.weft("queues", "limit", "default", "--clear")
    for bad in (["--concurrency", "0"], ["--rate", "fast"], []):
        project.weft("queues", "limit", "default", *bad, code=2)
    assert "a task by --task" in project.weft("queues", "pause", code=2).err
    assert "no queue defualt is in use" in project.weft("queues", "pause", "defualt").err
    project.weft("queues", "resume", "defualt")
    assert project.weft("queues", "pause", "default").err == ""
    project.weft("queues", "resume", "default")
