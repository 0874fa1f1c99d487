"""A deploy that changes a workflow, from the command line: checked before, parked, settled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_project import Project, until

OLD = """
from weft import Context, Weft

app = Weft("shop"); print("imported")  # among the data it would be an error


async def charge() -> str:
    return "paid"


async def check() -> str:
    return "checked"


@app.workflow
async def order(ctx: Context) -> list[str]:
    paid = await ctx.step(charge)
    print("replayed"); await ctx.receive("go")
    return [paid]
"""
NEW = OLD.replace(
    "    paid = await ctx.step(charge)\n",
    "    checked = await ctx.step(check)\n    paid = await ctx.step(charge)\n",
).replace("[paid]", "[checked, paid]")


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("shop"), tasks=OLD)
    yield project
    project.close()


def test_a_deploy_is_checked_and_a_parked_run_is_settled(project: Project):
    worker = project.start("worker", "--grace", "0s")
    run, other = (project.weft("run", "order").out.strip() for _ in range(2))
    until(lambda: len(project.weft("runs", "ls", "--status", "waiting").rows) == 2)

    (project.root / "tasks.py").write_text(NEW)
    refused = project.weft("workflows", "check", "--name", "ordr", code=3)
    assert "has no workflow 'ordr'" in refused.err
    checked = project.weft("workflows", "check", "--last", "500", "--json", code=1)
    assert [(one["id"], one["verdict"]) for one in checked.documents] == [(other, "needs pin"), (run, "needs pin")]
    assert "- step charge, completed" in checked.documents[0]["text"]
    assert "0 compatible, 2 needs pin, 0 breaks" in checked.err
    assert "imported" in checked.err and "imported" not in checked.out
    project.weft("runs", "resolve", other, "pin")

    worker.end()
    project.start("worker", "--grace", "0s")
    for one in (run, other):
        project.weft("runs", "signal", one, "go")
    until(lambda: "+ step check (tasks.py:17)" in project.weft("runs", "show", run).out)
    assert "no live worker of queue default has version" in project.weft("runs", "show", other).out

    forked = project.weft("runs", "resolve", run, "fork").out.strip()
    assert project.weft("runs", "resolve", run, "accept", "--json").document["id"] == run
    for one in (run, forked):
        assert '["checked","paid"]' in project.weft("runs", "watch", one).out
    project.weft("runs", "resolve", run, "accept", code=5)


def test_a_run_is_pinned_where_it_is_started(project: Project):
    pinned = project.weft("run", "order", "--version", "pin").out.strip()
    named = project.weft("run", "order", "--version", "2026-11").out.strip()
    assert project.weft("runs", "show", pinned, "--json").document["version"]
    assert project.weft("runs", "show", named, "--json").document["version"] == "2026-11"
