"""`weft run` and `weft runs` on graphs: a worker serves a project, and everything else is typed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cli_project import Project, until

TASKS = """
import asyncio
from pathlib import Path
from weft import Fatal, Weft, current

app = Weft("shop")
report = app.graph("report", input={"type": "object", "properties": {"city": {"type": "string"}}}, output="${publish}")

@report.node
async def fetch(input: dict) -> dict:
    current().log.info("fetching", city=input["city"])
    return {"city": input["city"], "pages": input.get("pages", [1, 2, 3])}

@report.node(after=fetch, map="fetch.pages", on_error="continue")
def classify(item: int) -> dict:
    if item == 13:
        raise Fatal("an unlucky page")
    return {"page": item, "kind": "even" if item % 2 == 0 else "odd"}

report.gather("group", after=classify, group_by="item.kind")
report.branch("route", [("size(group) > 5", "check")], default="publish", after="group")

@report.node(after="route")
async def check() -> None: ...

@report.node(after=["route", check])
def publish(fetch: dict, group: dict) -> str:
    return f"{fetch['city']}: {sorted(group)}"

held = app.graph("held")

@held.node(timeout="1m")
async def hold(name: str) -> str:
    Path(f"{name}.started").write_text("1")
    while not Path(f"{name}.go").exists():
        await asyncio.sleep(0.01)
    return name

@held.node(queue="nobody")
async def never() -> None: ...

broken = app.graph("broken")

@broken.node
async def one() -> int:
    raise Fatal("one is broken")

@app.task
async def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with graphs and a worker that serves it."""
    project = Project(tmp_path_factory.mktemp("shop"), tasks=TASKS)
    project.start("worker", "--grace", "0s")
    yield project
    project.close()


def test_a_graph_is_started_by_name_and_watched_to_its_result(project: Project) -> None:
    done = project.weft("run", "report", "city=1200", "--input", '{"pages": [1, 2, 13]}', "--watch")
    (id,), *events, (result,) = done.rows

    # A field that the schema calls a text is one, whatever it looks like.
    assert json.loads(result) == "1200: ['even', 'odd']"
    told = [(row[2], row[3].split(" ")[0]) for row in events]
    assert told[0][0] == "queued" and told[-1][0] == "completed"
    assert ("step_completed", "step=fetch") in told and ("step_failed", "step=classify#2") in told

    # What its steps logged is there, under their names; its nodes stand in the order of the graph.
    (line,) = project.weft("runs", "logs", id).rows
    assert line[1:] == ["info", "1", "fetching", "step=fetch city=1200"]
    shown = project.weft("runs", "show", id, "--json").document
    assert list(shown["nodes"]) == ["fetch", "classify", "group", "route", "check", "publish"]
    assert (shown["kind"], shown["nodes"]["check"]["status"]) == ("graph", "skipped")
    text = project.weft("runs", "show", id).out
    assert "classify\ttask\tcompleted\t1\t" in text and "2 of 3 items done, 1 failed" in text

    # Its steps are no runs: nothing lists them.
    assert [row[:4] for row in project.weft("runs", "ls", "--name", "report").rows] == [
        [id, "report", "graph", "completed"]
    ]
    assert "/" not in "".join(row[0] for row in project.weft("runs", "ls").rows)
    assert project.weft("dlq", "ls").out == ""


def test_as_json_a_run_is_its_events_and_its_end(project: Project) -> None:
    lines = project.weft("run", "report", "--input", "-", "--watch", "--json", input='{"city": "Paris"}').documents
    assert set(lines[0]) == {"id", "run_id", "status", "deduplicated", "durability"}
    events = lines[1:-1]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert {event["step"] for event in events} >= {"fetch", "classify#0", "publish"}
    assert (lines[-1]["status"], lines[-1]["result"]) == ("completed", "Paris: ['even', 'odd']")

    again = project.weft("runs", "events", lines[0]["id"], "--json").documents
    assert again == events


def test_a_run_that_fails_gives_exit_code_1_and_says_where(project: Project) -> None:
    failed = project.weft("run", "broken", "--watch", code=1)
    assert "failed: Fatal: one is broken" in failed.err
    explained = project.weft("runs", "explain", failed.rows[0][0]).out
    assert "(node one)" in explained


def test_tasks_are_started_too_and_unknown_names_are_not(project: Project) -> None:
    assert project.weft("run", "add", "a=2", "b=3", "--watch").rows[-1] == ["5"]
    unknown = project.weft("run", "reprot", code=3)
    assert "did you mean report?" in unknown.err and "broken, held, report" in unknown.err
    assert "input/city must be string" in project.weft("run", "report", "--input", '{"city": 3}', code=2).err
    assert "--input is not JSON" in project.weft("run", "report", "--input", "{", code=2).err
    assert "is not key=value" in project.weft("run", "report", "city", code=2).err
    assert "`weft run report` starts it" in project.weft("enqueue", "report", code=3).err


def test_an_open_run_is_explained_step_by_step_and_cancelled(project: Project) -> None:
    id = project.weft("run", "held", "name=a").out.strip()
    project.wait_for_file("a.started")

    told = project.weft("runs", "explain", id, "--json").document
    assert {step["step"]: step["reason"] for step in told["steps"]} == {"hold": "running", "never": "no_worker"}
    assert (told["step"], told["reason"], told["open_steps"]) == ("hold", "running", 2)
    rows = project.weft("runs", "explain", id).rows
    assert rows[0][0].startswith("hold: running on worker") and rows[0][0].endswith("1 other step is open")
    assert sorted(row[0] for row in rows[1:]) == ["hold", "never"]

    # Nobody is shown the queue where workers decide what follows, and nobody can pause it.
    names = [row[0] for row in project.weft("queues", "ls").rows]
    assert sorted(names) == ["default", "nobody"]
    assert "@routes" not in project.weft("queues", "ls", "--prometheus").out
    assert "@routes" not in project.weft("doctor", "--json").out
    assert "@routes" not in project.weft("workers", "ls", "--json").out
    assert "queue" in project.weft("queues", "pause", "@routes", code=2).err

    project.weft("runs", "cancel", id, "--reason", "enough")
    assert project.weft("runs", "show", id, "--json").document["nodes"]["hold"]["status"] == "cancelled"
    # The steps it had go with it.
    until(lambda: [row[1] for row in project.weft("queues", "ls").rows if row[0] == "nobody"] == ["0"])
    assert "all keys are as they should be" in project.weft("keys", "audit").err


def test_dev_lists_graphs_serves_the_queues_of_their_nodes_and_shows_a_command_for_them(tmp_path) -> None:
    graph_only = """
from weft import Weft

app = Weft("shop")
hello = app.graph("hello", version="1.2")

@hello.node(queue="gpu")
async def greet() -> str:
    return "Hello"
"""
    project = Project(tmp_path / "hello", tasks=graph_only)
    try:
        dev = project.start("dev")
        assert "hello 1.2  1 node\n" in dev.text and "queues default, gpu" in dev.text
        assert "run hello --watch" in dev.text
        assert project.weft("run", "hello", "--watch").rows[-1] == ['"Hello"']
    finally:
        project.close()


def test_on_a_terminal_the_nodes_are_drawn(project: Project) -> None:
    drawn = project.on_terminal("run", "report", "--input", '{"city": "Rome", "pages": [1, 2, 13]}', "--watch")
    assert "✔ fetch" in drawn.replace("\x1b[32m", "").replace("\x1b[0m", "")
    assert "6 of 6 nodes" in drawn and "1 failed" in drawn and "skipped" in drawn
    assert "Rome: ['even', 'odd']" in drawn.splitlines()[-1]
