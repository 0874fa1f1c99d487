"""`weft approvals` and `weft runs signal` as they are typed, on an embedded store, with a real worker beside them."""

from __future__ import annotations

import getpass
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cli_project import TASKS, Project, until

from weft.testing.crash import CRASH_AT

GRAPHS = """

report = app.graph("report", output="${review}")
report.approval(
    "review", title="Publish ${input.name}?", show="${input}", approvers=["anna", "ops"], on_reject="continue",
    form={"type": "object", "properties": {"amount": {"type": "integer"}}},
)

order = app.graph("order", output="${paid}")
order.wait("paid", signal="paid", timeout="1h")
"""

#: What a user's own script would do; the command line takes part in nothing of it.
START = "import sys, json, tasks; print(getattr(tasks, sys.argv[1]).sync.start(json.loads(sys.argv[2])).id)"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    made = Project(tmp_path_factory.mktemp("approvals"), tasks=TASKS + GRAPHS)
    made.start("worker", "--grace", "0s")
    yield made
    made.close()


def start(project: Project, graph: str, input: str = "{}") -> str:
    command = [sys.executable, "-c", START, graph, input]
    return subprocess.check_output(command, cwd=project.root, env=project.env, text=True, timeout=60).strip()


def asked(project: Project, run: str) -> dict[str, Any]:
    listed = until(lambda: project.weft("approvals", "ls", "--run", run, "--json").documents)
    assert len(listed) == 1
    found: dict[str, Any] = listed[0]
    return found


def result(project: Project, run: str) -> Any:
    return project.weft("runs", "watch", run, "--json").documents[-1]["result"]


def test_the_life_of_an_approval(project: Project) -> None:
    me = f"cli:{getpass.getuser()}"
    run = start(project, "report", '{"name": "Q3"}')
    one = asked(project, run)
    assert (one["id"], one["run_id"], one["status"]) == (f"{run}/review", run, "pending")
    assert (one["title"], one["show"], one["approvers"]) == ("Publish Q3?", {"name": "Q3"}, ["anna", "ops"])
    assert one["id"] in [row[0] for row in project.weft("approvals", "ls", "--approver", "anna").rows]
    assert project.weft("approvals", "ls", "--approver", "zoe", "--json").documents == []
    assert ["status", "pending"] in project.weft("approvals", "show", one["id"]).rows
    assert "waits for an approval" in project.weft("runs", "show", run).out

    refused = project.weft("approvals", "approve", one["id"], "--as", "zoe", code=2)
    assert "zoe may not decide" in refused.err
    assert "something else" in project.weft("approvals", "approve", one["id"], "--digest", "0", code=5).err
    assert "is not JSON" in project.weft("approvals", "approve", one["id"], "--form", "{", code=2).err

    done = project.weft("approvals", "approve", one["id"], "-m", "ok", "--form", '{"amount": 3}', "--json")
    assert "approve: Publish Q3?" in done.err
    assert (done.document["status"], done.document["decision"]["by"]) == ("approved", me)
    assert done.document["votes"][0]["via"] == me and done.document["durability"] in ("fsync", "redis")
    assert result(project, run)["form"] == {"amount": 3}
    late = project.weft("approvals", "reject", one["id"], "--as", "anna", code=5)
    assert f"is approved by {me}" in late.err
    assert "no approval" in project.weft("approvals", "show", f"{run}/nope", code=3).err


def test_a_person_delegates_to_another_who_rejects(project: Project) -> None:
    run = start(project, "report", '{"name": "Q4"}')
    one = asked(project, run)
    after = project.weft("approvals", "delegate", one["id"], "ben", "--as", "anna", "--json").document
    assert after["approvers"] == ["ops", "ben"]
    done = project.weft("approvals", "reject", one["id"], "--as", "carl", "--role", "ops", "--digest", one["digest"])
    assert ["by", "carl"] in done.rows and ["status", "rejected"] in done.rows
    assert result(project, run)["decision"] == "rejected"


def test_a_page_says_where_the_next_one_begins(project: Project) -> None:
    asked_for = [asked(project, start(project, "report", '{"name": "Q6"}'))["id"] for _ in range(2)]
    page = project.weft("approvals", "ls", "--limit", "1", "--json")
    assert [one["id"] for one in page.documents] == asked_for[:1]
    cursor = page.err.split()[-1]
    project.weft("approvals", "reject", asked_for[0])
    rest = project.weft("approvals", "ls", "--cursor", cursor)
    assert [row[0] for row in rest.rows] == asked_for[1:] and "--cursor" not in rest.err
    assert "is not a cursor" in project.weft("approvals", "ls", "--cursor", "1", code=2).err
    project.weft("approvals", "reject", asked_for[1])


def test_a_decision_holds_whose_command_was_killed_before_it_was_told(project: Project) -> None:
    run = start(project, "report", '{"name": "Q5"}')
    one = asked(project, run)
    code = (
        "from weft.testing.crash import install_from_environ; install_from_environ(); import sys;"
        "sys.argv = ['weft', 'approvals', 'approve', sys.argv[1]]; from weft.cli import main; main()"
    )
    env = {**project.env, CRASH_AT: "after:change_approval:1"}
    killed = subprocess.run(
        [sys.executable, "-c", code, one["id"]], cwd=project.root, env=env, timeout=60, check=False, capture_output=True
    )
    assert killed.returncode == -9
    assert result(project, run)["decision"] == "approved"
    assert project.weft("approvals", "approve", one["id"], code=5).err.count("is approved by")


def test_signals_are_given_or_kept(project: Project) -> None:
    run = start(project, "order")
    until(lambda: "step_waiting" in project.weft("runs", "events", run).out)
    sent = project.weft("runs", "signal", run, "paid", "-", "--json", input='{"amount": 7}').document
    assert sent == {"id": run, "run_id": run, "name": "paid", "status": "given"}
    assert result(project, run) == {"amount": 7}
    assert "has ended" in project.weft("runs", "signal", run, "paid", code=5).err
    assert "waits for no signal" in project.weft("runs", "signal", run, "payed", code=2).err
    assert "is not JSON" in project.weft("runs", "signal", run, "paid", "{", code=2).err
