"""`weft enqueue` and `weft runs`: a worker serves a project, and everything else is typed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_project import Project, until


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with a worker that serves it."""
    project = Project(tmp_path_factory.mktemp("shop"))
    project.start("worker", "-q", "high,default", "--grace", "0s")
    yield project
    project.close()


def test_enqueue_prints_the_id_and_nothing_else(project: Project) -> None:
    done = project.weft("enqueue", "add", "a=2", "b=3")
    (id,) = done.out.split()
    assert id.startswith("r0-") and done.err == ""

    watched = project.weft("runs", "watch", id)
    assert [row[2] for row in watched.rows[:-1]] == ["queued", "completed"] and watched.rows[-1] == ["5"]


def test_enqueue_as_json_tells_id_status_and_whether_it_was_there_before(project: Project) -> None:
    words = ("enqueue", "greet", "name=Ada", "--idempotency-key", "once", "--json")
    first, again = project.weft(*words).document, project.weft(*words).document
    assert set(first) == {"id", "run_id", "status", "deduplicated", "durability"}
    assert first["id"] == first["run_id"] == again["id"]
    assert (first["deduplicated"], again["deduplicated"]) == (False, True)
    assert "was used before" in project.weft("enqueue", "greet", "name=Eve", "--idempotency-key", "once", code=5).err


def test_watch_streams_events_and_ends_with_the_result(project: Project) -> None:
    lines = project.weft("enqueue", "add", "a=2", "b=3", "--watch", "--json").documents
    assert lines[0]["id"] == lines[-1]["id"]
    assert [(line["seq"], line["type"]) for line in lines[1:-1]] == [(1, "queued"), (2, "completed")]
    assert lines[-1] == {
        "id": lines[0]["id"],
        "run_id": lines[0]["id"],
        "status": "completed",
        "result": 5,
        "error": None,
    }


def test_watch_fails_with_the_run_and_shows_where_it_failed(project: Project) -> None:
    failed = project.weft("enqueue", "fail", "message=too bad", "--watch", code=1)
    assert "failed: ValueError: too bad" in failed.err and "tasks.py" in failed.err
    id = failed.rows[0][0]
    assert [row[2] for row in failed.rows[1:]] == ["queued", "failed"]

    end = project.weft("runs", "watch", id, "--json", code=1).documents[-1]
    assert (end["status"], end["error"]["type"], end["error"]["message"]) == (
        "failed",
        "ValueError",
        "ValueError: too bad",
    )
    shown = project.weft("runs", "show", id)
    assert ["status", "failed"] in shown.rows and ["error", "ValueError: too bad"] in shown.rows
    assert "raise ValueError(message)" in shown.out


def test_values_are_read_by_the_types_of_their_parameters(project: Project) -> None:
    words = ("items=[1, 2]", "when=2026-01-02T03:04:05", "flag=true", "text=12", 'other={"a": 1}')
    end = project.weft("enqueue", "echo", *words, "--watch", "--json").documents[-1]
    assert end["result"] == [[1, 2], "2026-01-02T03:04:05", True, "12", {"a": 1}]

    document = '{"items": [3], "when": "2026-01-02T03:04:05", "text": "from stdin"}'
    end = project.weft("enqueue", "echo", "--input", "-", "items=[4]", "--watch", "--json", input=document).documents[
        -1
    ]
    assert end["result"] == [[4], "2026-01-02T03:04:05", False, "from stdin", None]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("gret name=Ada", 3, "did you mean greet? Its tasks: add(a: int, b: int) -> int, "),
        ("add a=two b=3", 2, "a must be int; the task is add(a: int, b: int) -> int"),
        ("add a=1", 2, "missing a required argument: 'b'"),
        ("add a=1 b=2 --delay soon", 2, "'soon' is not a length of time"),
        ("add a=1 b=2 --tag team", 2, "'team' is not of the form name=value"),
        ("add a=1 b=2 --durability paper", 2, "durability must be one of redis, replicated, fsync, committed"),
    ],
)
def test_what_cannot_be_enqueued_is_explained(words: str, code: int, said: str, project: Project) -> None:
    refused = project.weft("enqueue", *words.split(), code=code)
    assert said in refused.err and refused.out == ""


@pytest.mark.parametrize("verb", ["enqueue", "run"])
def test_a_start_is_kept_as_safely_as_asked(verb: str, project: Project) -> None:
    id = project.weft(verb, "add", "a=2", "b=3", "--durability", "fsync").out.strip()
    shown = project.weft("runs", "show", id, "--json").document
    assert shown["durability"] == "fsync"


def test_options_reach_the_run_and_it_is_shown_with_them(project: Project) -> None:
    options = "--queue high --priority 9 --delay 1h --deadline 2h --timeout 5s --retries 2 --tag team=a --tag n=1"
    id = project.weft("enqueue", "greet", "name=Ada", *options.split()).out.strip()
    shown = project.weft("runs", "show", id, "--json").document
    assert (shown["queue"], shown["priority"], shown["status"]) == ("high", 9, "queued")
    assert shown["tags"] == {"team": "a", "n": "1"} and shown["input"] == {"name": "Ada"}
    assert shown["due_at"] and shown["deadline_at"] and shown["result"] is None
    assert [event["type"] for event in shown["history"]] == ["queued"]

    assert [run["id"] for run in project.weft("runs", "ls", "--tag", "team=a", "--json").documents] == [id]
    assert project.weft("runs", "cancel", id, "--reason", "enough").rows == [[id, "cancelled"]]
    assert project.weft("runs", "cancel", id, "--json").document["cancelled"] is True
    events = project.weft("runs", "events", id, "--after", "1", "--json").documents
    assert [(event["seq"], event["type"], event["data"]["error"]["message"]) for event in events] == [
        (2, "cancelled", "enough")
    ]
    assert events[0]["data"]["by"].startswith("cli:")


def test_a_running_step_is_cancelled(project: Project) -> None:
    id = project.weft("enqueue", "hold", "name=stuck").out.strip()
    project.wait_for_file("stuck.started.*")
    assert project.weft("runs", "ls", "--status", "running", "--json").documents[0]["id"] == id
    project.weft("runs", "cancel", id)
    assert "cancelled" in project.weft("runs", "watch", id, code=1).err


def test_lists_are_filtered_and_plain_in_a_pipe(project: Project) -> None:
    ids = [project.weft("enqueue", "urgent", "--watch").rows[0][0] for _ in range(2)]
    rows = project.weft("runs", "ls", "--name", "urgent", "--queue", "high").rows
    assert [row[0] for row in rows] == ids[::-1] and {tuple(row[1:6]) for row in rows} == {
        ("urgent", "task", "completed", "high", "1")
    }
    assert len(project.weft("runs", "ls", "--limit", "1").rows) == 1
    nothing = project.weft("runs", "ls", "--name", "nobody")
    assert (nothing.out, nothing.err) == ("", "no such runs\n")


def test_a_terminal_gets_tables(project: Project) -> None:
    id = project.weft("enqueue", "add", "a=1", "b=1", "--tag", "odd=[bold]", "--watch").rows[0][0]
    listed = project.on_terminal("runs", "ls", "--limit", "3")
    assert "id" in listed.splitlines()[0] and id in listed and "odd=[bold]" in listed and "\x1b[32mcompleted" in listed
    shown = project.on_terminal("runs", "show", id)
    assert "\x1b[1mstatus" in shown and "odd=[bold]" in shown
    assert project.on_terminal("runs", "show", id, "--json").startswith('{\r\n  "id": ')


def test_runs_that_are_not_there_and_runs_that_are_over(project: Project) -> None:
    id = project.weft("enqueue", "add", "a=1", "b=1", "--watch").rows[0][0]
    done = project.weft("runs", "cancel", id, code=5)
    assert f"run {id} had already completed" in done.err
    for words in (("watch", "nonsense"), ("cancel", "r9-00000000000000000000A0")):
        assert "there is no run" in project.weft("runs", *words, code=3).err
    assert "there is no status 'odd'" in project.weft("runs", "ls", "--status", "odd", code=2).err


def test_whoever_waits_for_nobody_is_told_so(tmp_path: Path) -> None:
    project = Project(tmp_path)
    try:
        waiting = project.start("enqueue", "add", "a=2", "b=3", "--watch", ready="no live worker serves add")
        (run,) = project.weft("runs", "ls", "--json").documents
        assert run["status"] == "queued"
        project.start("worker", "--grace", "0s")
        assert waiting.wait() == 0
        assert until(lambda: project.weft("runs", "show", run["id"], "--json").document["result"] == 5)
    finally:
        project.close()


def test_logs_of_a_run_are_printed_as_columns_or_json(project: Project) -> None:
    id = project.weft("enqueue", "talk", "words=two words").out.strip()
    project.weft("runs", "watch", id)

    (row,) = project.weft("runs", "logs", id).rows
    (document,) = project.weft("runs", "logs", id, "--json").documents

    assert row[1:] == ["info", "1", "two words", "n=1"]
    assert (document["level"], document["message"], document["fields"]) == ("info", "two words", {"n": 1})
    assert (document["attempt"], document["dropped"]) == (1, 0)
    project.weft("runs", "logs", "r0-0000000000000000000000", code=3)
