"""`weft graph`: all problems of files, and drawings; without a store, and without an app where none is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_project import Project

APP = """
from weft import Weft
app = Weft("shop")

@app.task
def save(report: dict, deep: bool = False) -> str: ...

steps = app.graph("steps")

@steps.node
def fetch(url: str) -> dict: ...

@steps.node(after=fetch)
def store(fetch: dict) -> str: ...
"""

GOOD = """\
name: report
input: {type: object, required: [url]}
nodes:
  fetch: {type: http, url: "${input.url}"}
  save:  {type: task, call: save, after: [fetch], with: {report: "${fetch.body}"}}
"""

BAD = """\
name: report
nodes:
  fetch: {type: http, url: "${input.url}", retires: 3}
  save:  {type: task, call: save, after: [fech], when: "fetch.status =="}
---
name: other
nodes:
  wait: {type: wait}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path, tasks=APP)
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(BAD)
    return made


def test_a_valid_file_is_told_on_stderr_and_opens_no_store(project: Project) -> None:
    done = project.weft("graph", "validate", "good.yaml")

    assert (done.out, done.err) == ("", "good.yaml: report: ok, 2 nodes\n")
    assert not (project.root / ".weft").exists()


def test_a_file_that_cannot_be_read_hides_no_problem_of_the_others(project: Project) -> None:
    done = project.weft("graph", "validate", "nowhere.yaml", "bad.yaml", "good.yaml", code=3)

    assert len(done.out.splitlines()) == 4
    assert "good.yaml: report: ok" in done.err and "'nowhere.yaml' cannot be read" in done.err


def test_all_problems_of_all_files_are_printed_with_their_places(project: Project) -> None:
    done = project.weft("graph", "validate", "good.yaml", "bad.yaml", code=1)

    lines = done.out.splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "bad.yaml:3:44",
        "bad.yaml:4:43",
        "bad.yaml:4:72",
        "bad.yaml:8:3",
    ]
    assert "did you mean retries? [unknown_field]" in lines[0]
    assert "did you mean fetch? [unknown_node]" in lines[1]
    assert lines[-1].endswith("wait wait needs either signal or duration [bad_wait]")
    assert done.err.splitlines()[-1] == f"{len(lines)} problems"


def test_problems_as_json_lines(project: Project) -> None:
    done = project.weft("graph", "validate", "bad.yaml", "--json", code=1)

    first = done.documents[0]
    assert first == {
        "file": "bad.yaml",
        "graph": "report",
        "code": "unknown_field",
        "message": "http nodes have no field 'retires': did you mean retries?",
        "node": "fetch",
        "path": "/nodes/fetch/retires",
        "line": 3,
        "column": 44,
    }
    assert {document["graph"] for document in done.documents} == {"report", "other"}
    assert project.weft("graph", "validate", "good.yaml", "--json").out == ""


def test_arguments_are_checked_against_the_tasks_of_the_app(project: Project) -> None:
    (project.root / "good.yaml").write_text(GOOD.replace("report:", "rapport:"))

    done = project.weft("graph", "validate", "good.yaml", code=1)

    assert "did you mean report? [unknown_argument]" in done.out
    assert "nothing provides parameter report of save(" in done.out


def test_a_task_that_the_app_does_not_have_is_a_problem_with_its_place(project: Project) -> None:
    (project.root / "good.yaml").write_text(GOOD.replace("call: save", "call: sav"))

    done = project.weft("graph", "validate", "good.yaml", code=1)

    line = next(i for i, line in enumerate(GOOD.splitlines(), 1) if "call: save" in line)
    column = GOOD.splitlines()[line - 1].index("call: save") + len("call: ") + 1
    assert done.out == f"good.yaml:{line}:{column}: app 'shop' has no task 'sav': did you mean save? [unknown_task]\n"


def test_an_app_that_cannot_be_loaded_matters_only_when_it_is_asked_for(project: Project) -> None:
    (project.root / "tasks.py").write_text("1 / 0")

    assert "arguments are not checked" in project.weft("graph", "validate", "good.yaml").err
    assert "ZeroDivisionError" in project.weft("graph", "validate", "good.yaml", "--app", "tasks:app", code=1).err


def test_it_says_when_it_has_stopped_at_so_many_problems(project: Project) -> None:
    nodes = "".join(f"  n{i}: {{type: task, call: save, retires: 3}}\n" for i in range(150))
    (project.root / "many.yaml").write_text(f"name: many\nnodes:\n{nodes}")

    done = project.weft("graph", "validate", "many.yaml", code=1)

    assert len(done.out.splitlines()) == 100
    assert done.err == "many.yaml: these are the first 100 of a graph; there may be more\n100 problems\n"


def test_a_file_that_is_not_there_is_not_found(project: Project) -> None:
    assert "No such file" in project.weft("graph", "validate", "none.yaml", code=3).err
    assert "No such file" in project.weft("graph", "show", "none.yaml", code=3).err


def test_graphs_are_drawn_from_files_and_from_the_app(project: Project) -> None:
    assert project.weft("graph", "show", "good.yaml").out.splitlines() == [
        "report  2 nodes",
        "",
        "fetch  http  GET ${input.url}",
        "save   task  save",
    ]
    assert project.weft("graph", "show", "steps").out.splitlines()[2:] == [
        "fetch  task  steps.fetch",
        "store  task  steps.store",
    ]
    assert project.weft("graph", "show", "steps", "--mermaid").out.splitlines() == [
        "flowchart TD",
        '  n0["<b>fetch</b> task<br/>steps.fetch"]',
        '  n1["<b>store</b> task<br/>steps.store"]',
        "  n0 --> n1",
    ]
    assert project.weft("graph", "show", "steps", "--json").document["nodes"]["store"]["after"] == ["fetch"]


def test_a_graph_that_is_not_there_or_not_valid_is_told(project: Project) -> None:
    assert "did you mean steps?" in project.weft("graph", "show", "step", code=3).err
    assert "bad.yaml has" in project.weft("graph", "show", "bad.yaml", code=2).err
