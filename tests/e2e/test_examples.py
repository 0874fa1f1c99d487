"""The examples run as their first lines say; the document pipeline also on several worker processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cli_project import PATIENCE, ROOT, Project

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A directory with the examples in it, as in a clone."""
    project = Project(tmp_path / "clone")
    shutil.copytree(ROOT / "examples", project.root / "examples", ignore=shutil.ignore_patterns("__pycache__", ".weft"))
    yield project
    project.close()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_in_one_process(name: str, project: Project) -> None:
    # Only one of them is about the archive, which the others need not wait for.
    archives = {"WEFT_ARCHIVE": "yes"} if name == "committed" else {}
    done = subprocess.run(
        [sys.executable, f"examples/{name}.py"],
        cwd=project.root,
        env=project.env | archives,
        text=True,
        capture_output=True,
        timeout=PATIENCE * 2,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "it shows what it did"


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_an_example_says_to_type_names_things_that_exist(name: str) -> None:
    doc = (ROOT / "examples" / f"{name}.py").read_text().split('"""')[1]
    for target in re.findall(r"examples\.(\w+):app", doc):
        assert target == name
    for file in re.findall(r"examples/(\w+\.\w+)", doc):
        assert (ROOT / "examples" / file).is_file()


def test_the_document_pipeline_runs_on_four_worker_processes_and_reports_every_page(project: Project) -> None:
    target = "examples.documents:app"
    worker = project.start("worker", target, "--processes", "4", "-c", "1", "--grace", "0s")
    worker.wait_for(r"ready\b", n=4)
    files = []
    for i in range(10):
        path = project.root / f"file-{i}.txt"
        path.write_text("\f".join(["Amount due: 3", "Dear Ada, thanks", "nothing much", *([" "] if i == 4 else [])]))
        files.append(str(path))

    lines = project.weft(
        "run",
        "documents",
        "--app",
        target,
        "--input",
        json.dumps({"files": files, "ms_per_page": 100}),
        "--watch",
        "--json",
    ).documents

    report = lines[-1]["result"]
    assert report["pages"] == 31
    assert report["kinds"] == {
        "invoice": [f"file-{i}.txt:1" for i in range(10)],
        "letter": [f"file-{i}.txt:2" for i in range(10)],
        "other": [f"file-{i}.txt:3" for i in range(10)],
    }
    assert report["failed"] == ["page 4 of file-4.txt is empty"]
    children = {child.pid for child in psutil.Process(worker.pid).children(recursive=True)}
    assert len(report["workers"]) == 4 and set(report["workers"]) <= children - {os.getpid()}

    # Every page was a step of its own, and is told in the run's history.
    id = lines[0]["id"]
    steps = {event["step"] for event in lines[1:-1]}
    assert {f"split#{i}" for i in range(10)} | {f"classify#{i}" for i in range(31)} <= steps
    shown = project.weft("runs", "show", id, "--app", target, "--json").document
    assert {node: about["status"] for node, about in shown["nodes"].items()} == dict.fromkeys(
        ["split", "pages", "classify", "by_kind", "report"], "completed"
    )
    assert (shown["nodes"]["classify"]["items"], shown["nodes"]["classify"]["failed"]) == (31, 1)
    assert len(project.weft("runs", "logs", id, "--app", target).rows) == 10


def test_the_timing_table_of_the_document_is_reproduced(tmp_path: Path) -> None:
    """Six pages, four workers: four begin together, two follow as soon as somebody is free. How fast is not judged here."""
    done = subprocess.run(
        [sys.executable, "scripts/document_timing.py", "--rounds", "1", "--json"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=PATIENCE * 3,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (pages,) = json.loads(done.stdout)
    assert [page["page"] for page in pages] == [1, 2, 3, 4, 5, 6]
    assert len({page["worker"] for page in pages}) == 4
    taken = sorted(page["taken_ms"] for page in pages)
    # A fifth page is taken when somebody is done with one of the first four: each worker has one slot.
    assert taken[4] >= taken[0] + 50 and taken[5] >= taken[1] + 50
    assert all(page["done_ms"] - page["taken_ms"] >= 50 for page in pages)
