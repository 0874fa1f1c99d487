"""Workflows from the command line: started, shown, signalled, cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest
from cli_project import Project, until

TASKS = """
from weft import Context, Weft

app = Weft("shop")


async def charge(order: str, n: int) -> str:
    return f"paid {n} {order}"


@app.workflow
async def order(ctx: Context, id: str, n: int = 1) -> list[str]:
    ctx.set_state(phase="charging")
    paid = await ctx.step(charge, id, n)
    to = await ctx.receive("address", type=str)
    return [paid, to]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with a workflow and a worker that serves it."""
    project = Project(tmp_path_factory.mktemp("shop"), tasks=TASKS)
    project.start("worker", "--grace", "0s")
    yield project
    project.close()


def waiting(project: Project, *words: str) -> str:
    run = project.weft("run", "order", *words).out.strip()
    until(lambda: project.weft("runs", "show", run, "--json").document["status"] == "waiting")
    return run


def test_a_workflow_is_started_shown_and_signalled(project: Project):
    run = waiting(project, "id=o-1", "n=2")

    shown = project.weft("runs", "show", run, "--json").document
    assert (shown["kind"], shown["state"]) == ("workflow", {"phase": "charging"})
    assert "signal:address at tasks.py:15" in shown["awaits"]
    assert "tasks.py:15" in project.weft("runs", "show", run).out
    assert "its code waits for" in project.weft("runs", "explain", run).out

    project.weft("runs", "signal", run, "address", '"Rome"')
    assert project.weft("runs", "watch", run).code == 0
    shown = project.weft("runs", "show", run, "--json").document
    assert shown["result"] == ["paid 2 o-1", "Rome"]
    lived = datetime.fromisoformat(shown["finished_at"]) - datetime.fromisoformat(shown["created_at"])
    assert shown["took"] == pytest.approx(lived.total_seconds(), abs=0.002)


def test_a_workflow_is_cancelled(project: Project):
    run = waiting(project, "id=o-2")
    project.weft("runs", "cancel", run)
    assert project.weft("runs", "watch", run, code=1).code == 1
    assert project.weft("runs", "show", run, "--json").document["status"] == "cancelled"


def test_a_cancelled_workflow_is_tried_again(project: Project):
    run = waiting(project, "id=o-3")
    assert "has not ended" in project.weft("runs", "retry", run, code=5).err
    project.weft("runs", "cancel", run)
    project.weft("runs", "watch", run, code=1)

    again = project.weft("runs", "retry", run, "--reason", "too early", "--json").document
    assert again["replay_of"] == run and project.weft("runs", "retry", run).out.strip() == again["id"]
    project.weft("runs", "signal", again["id"], "address", '"Rome"')
    project.weft("runs", "watch", again["id"])
    assert project.weft("runs", "show", again["id"], "--json").document["result"][1] == "Rome"
    assert "has completed" in project.weft("runs", "retry", again["id"], code=5).err


def test_unknown_names_and_arguments_are_refused(project: Project):
    assert "did you mean" in project.weft("run", "ordr", code=3).err
    assert "order(" in project.weft("run", "order", "n=x", "id=a", code=2).err
