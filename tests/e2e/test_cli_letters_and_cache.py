"""What is typed about graph runs: dead letters of steps, and outputs that are kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_project import TASKS, Project

from weft.cli import output

MORE = """
book = app.graph("book")


@book.node(cache={"ttl": "1h", "key": "${input.n}"})
async def page(n: int) -> str:
    return f"page {n}"


@book.node(after=page, on_error="dead_letter")
async def bind(page: str) -> None:
    raise ValueError(f"no glue for {page}")


@app.task
async def bound(n: int) -> str:
    return (await book.start({"n": n})).id
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("press"), tasks=TASKS + MORE)
    project.start("worker", "--grace", "0s")
    yield project
    project.close()


def bind(project: Project, n: int) -> str:
    """Runs the graph, waits for it, and returns its run."""
    run: str = project.weft("enqueue", "bound", f"n={n}", "--watch", "--json").documents[-1]["result"]
    project.weft("runs", "watch", run)
    return run


def test_a_step_that_failed_is_listed_shown_and_replayed(project: Project) -> None:
    run = bind(project, 7)

    (letter,) = [one for one in project.weft("dlq", "ls", "--json").documents if one["run_id"] == run]

    assert (letter["id"], letter["step"], letter["task"]) == (f"{run}/bind", "bind", "book.bind")
    shown = project.weft("dlq", "show", letter["id"], "--json").documents[0]
    assert shown["input"] == {"page": "page 7"} and shown["error"]["message"] == "no glue for page 7"
    assert run in project.weft("dlq", "show", letter["id"]).out
    (again,) = project.weft("dlq", "replay", letter["id"], "--json").documents
    assert again["replay_of"] == letter["id"]
    project.weft("dlq", "show", f"{run}/nothing", code=output.NOT_FOUND)


def test_outputs_that_are_kept_are_listed_and_forgotten(project: Project) -> None:
    run = bind(project, 1)
    bind(project, 2)

    found = project.weft("cache", "ls", "--graph", "book", "--json").documents

    keys = {one["key"]: one for one in found}
    assert keys["1"]["run_id"] == run and keys["1"]["node"] == "page"
    assert project.weft("cache", "invalidate", "--graph", "book", "--key", "1").out.strip() == "1"
    assert (
        project.weft("cache", "invalidate", "--graph", "book", "--node", "page", "--json").documents[0]["forgotten"]
        >= 1
    )
    assert project.weft("cache", "ls", "--json").documents == []


@pytest.mark.parametrize("options", [[], ["--all", "--graph", "book"]])
def test_what_to_forget_must_be_said(project: Project, options: list[str]) -> None:
    project.weft("cache", "invalidate", *options, code=output.USAGE)


def test_a_node_goes_with_its_graph(project: Project) -> None:
    assert "name the graph too" in project.weft("cache", "ls", "--node", "page", code=output.USAGE).err
