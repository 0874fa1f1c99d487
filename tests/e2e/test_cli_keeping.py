"""`weft retention`, `weft runs export|import` and the filters of `weft runs ls`, as processes."""

from __future__ import annotations

import json
import time

import pytest
from cli_project import Project

APP = """
from weft import Weft
app = Weft("shop")

@app.task(keep_result="1s")
async def pay(order: str, password: str) -> str:
    return f"paid {order}"
"""


@pytest.fixture
def weft(tmp_path, server, namespace):
    """Runs a command in a project of its own; returns what it gave."""
    project = Project(
        tmp_path,
        tasks=APP,
        WEFT_REDIS_URL=server.url,
        WEFT_NAMESPACE=namespace,
        WEFT_DATABASE_URL=f"sqlite:///{tmp_path / 'archive.sqlite'}",
    )
    yield project.weft
    project.close()


def test_runs_are_found_exported_imported_and_let_go(weft, tmp_path, raw, namespace):
    run = weft("enqueue", "pay", "order=o-1", "password=hunter2").out.split()[0]
    weft("runs", "cancel", run, "--reason", "not today")
    weft("archiver", "--once")
    listed = weft("runs", "ls", "--kind", "task", "--text", "not today", "--since", "1h", "--json").out
    assert [json.loads(line)["id"] for line in listed.splitlines()] == [run]
    assert weft("runs", "ls", "--error", "Nothing", "--json").out == ""
    assert json.loads(weft("runs", "ls", "--count", "status", "--json").out) == {"cancelled": 1}
    weft("runs", "ls", "--kind", "agents", code=2)
    assert "--limit" in weft("runs", "ls", "--count", "status", "--limit", "3", code=2).err
    assert "name=value" in weft("runs", "ls", "--tag", "", code=2).err

    weft("runs", "export", run, "-o", "run.json")
    assert "hunter2" not in (tmp_path / "run.json").read_text()
    weft("runs", "import", "run.json", code=5)
    other = {"WEFT_DATABASE_URL": f"sqlite:///{tmp_path / 'other.sqlite'}", "WEFT_NAMESPACE": f"{namespace}y"}
    assert weft("runs", "import", "run.json", **other).out.strip() == run
    assert json.loads(weft("runs", "show", run, "--json", **other).out)["status"] == "cancelled"
    third = {"WEFT_DATABASE_URL": f"sqlite:///{tmp_path / 'third.sqlite'}", "WEFT_NAMESPACE": f"{namespace}y"}
    piped = weft("runs", "export", run).out
    assert weft("runs", "import", "-", input=piped, **third).out.strip() == run
    assert "No such file" in weft("runs", "export", run, "-o", "nowhere/run.json", code=2).err
    (tmp_path / "bad.json").write_text("{}")
    weft("runs", "import", "bad.json", code=2)
    for key in raw.scan_iter(f"{namespace}y:*"):
        raw.delete(key)

    shown = weft("retention", "--json", WEFT_KEEP_COLD="status=failed 90d; 1ms").out.splitlines()
    assert [(rule["rule"], rule["n"]) for rule in map(json.loads, shown)] == [("status=failed 90d", 0), ("1ms", 1)]
    weft("retention", code=2, WEFT_KEEP_COLD="soon")
    for key in raw.scan_iter(f"{namespace}:*{run}*"):
        raw.delete(key)
    due = ("retention", "apply", "--policy", "1ms", "--json")
    time.sleep(2)  # its result is kept for a second, by a clock of whole seconds
    assert json.loads(weft(*due, "--dry-run").out)["runs"] == 1
    assert json.loads(weft(*due).out)["by_kind"] == {"task": 1}
    weft("runs", "show", run, code=3)
