"""`weft dlq` and `weft runs reschedule`: a worker serves a project, and everything else is typed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest
from cli_project import TASKS, Project
from typer.testing import CliRunner

from weft.cli import output
from weft.cli.commands import cli

MORE = '''
from weft import Fatal, Snooze

@app.task(tags={"team": "ops"})
async def mend(path: str, n: int) -> str:
    """Fails until a file is there."""
    if not Path(path).exists():
        raise Fatal(f"no file for {n}") from FileNotFoundError(path)
    return f"mended {n}"
'''

UNKNOWN = "r0-0000000000000000000000"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with a worker that serves it."""
    project = Project(tmp_path_factory.mktemp("shop"), tasks=TASKS + MORE)
    project.start("worker", "--grace", "0s")
    yield project
    project.close()


@pytest.fixture(autouse=True)
def empty(project: Project) -> Iterator[None]:
    yield
    project.weft("dlq", "purge", "--all", "--yes")


def fail(project: Project, path: str, n: int = 1) -> str:
    """Makes a dead letter; returns its id."""
    done = project.weft("enqueue", "mend", f"path={path}", f"n={n}", "--watch", "--json", code=1)
    return done.documents[0]["id"]


def test_a_dead_letter_is_listed_shown_and_replayed(project: Project) -> None:
    id = fail(project, "one", 17)

    (row,) = project.weft("dlq", "ls").rows
    assert row[:3] == [id, "mend", "default"] and row[4:6] == ["1", "Fatal: no file for 17"] and row[7] == ""
    (listed,) = project.weft("dlq", "ls", "--json", "--task", "mend", "--error", "Fatal", "--tag", "team=ops").documents
    assert (listed["id"], listed["run_id"], listed["attempts"], listed["input"]) == (id, id, 1, None)
    assert project.weft("dlq", "ls", "--task", "add").out == ""

    shown = project.weft("dlq", "show", id, "--json").document
    assert shown["input"] == {"path": "one", "n": 17} and shown["worker"].startswith("s-")
    assert shown["error"]["causes"][0]["type"] == "FileNotFoundError"
    told = project.weft("dlq", "show", id).out
    assert "cause\tFileNotFoundError: one" in told and "Traceback" in told

    (project.root / "one").touch()
    new = project.weft("dlq", "replay", id, "--json").document
    assert new["replay_of"] == id and new["id"] == new["run_id"] != id
    assert project.weft("runs", "watch", new["id"]).rows[-1] == ['"mended 17"']
    assert project.weft("runs", "show", id, "--json").document["replayed_as"] == new["id"]
    assert f"replay of\t{id}" in project.weft("runs", "show", new["id"]).out
    assert new["id"] in project.weft("dlq", "replay", id, code=5).err
    assert project.weft("dlq", "replay", id, "--force").rows[0][1] == id


def test_many_are_replayed_after_a_preview_and_a_yes(project: Project) -> None:
    ids = [fail(project, "many", n) for n in range(3)]
    assert project.weft("dlq", "replay", "--task", "mend", "--dry-run").out == "3\n"
    assert project.weft("dlq", "replay", "--all", "--dry-run", "--json").document == {"matched": 3}
    refused = project.weft("dlq", "replay", "--task", "mend", code=2)
    assert "3 dead letters" in refused.err and "--yes" in refused.err
    assert "say which" in project.weft("dlq", "replay", code=2).err
    assert "say which" in project.weft("dlq", "replay", ids[0], "--task", "mend", code=2).err

    (project.root / "many").touch()
    done = project.weft("dlq", "replay", "--task", "mend", "--yes", "--json")
    assert {each["replay_of"] for each in done.documents} == set(ids)
    assert "3 of 3" in done.err and "3 replayed, 0 skipped" in done.err
    for each in done.documents:
        project.weft("runs", "watch", each["id"])
    assert project.weft("dlq", "replay", "--task", "mend", "--yes").out == ""
    assert {row[7] for row in project.weft("dlq", "ls").rows} == {"replayed"}


@pytest.mark.parametrize("words", [["replay", "--all"], ["purge", "--task", "mend"]])
def test_what_fails_while_the_question_is_read_is_left_alone(project: Project, words: list[str]) -> None:
    first = fail(project, "never", 1)
    ours, theirs = pty.openpty()
    asked = subprocess.Popen(
        [sys.executable, "-m", "weft", "dlq", *words],
        cwd=project.root,
        env=project.env,
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    assert asked.stderr is not None
    question = ""
    while "?" not in question:
        question += asked.stderr.read(1)
    assert f"{words[0]} 1 dead letters" in question

    later = fail(project, "never", 2)
    os.write(ours, b"y\n")
    asked.communicate(timeout=60)
    os.close(ours)
    assert asked.returncode == 0

    states = {row[0]: row[7] for row in project.weft("dlq", "ls").rows}
    assert states[later] == ""
    assert states.get(first, "gone") != ""


def test_progress_in_a_pipe_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from weft.cli import progress

    at = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: at[0])
    with progress.telling("looked at") as tell:
        for done in range(1, 1001):
            at[0] += 0.011
            tell(done * 100, 100_000)
    told = ["45500 of 100000 looked at", "91000 of 100000 looked at", "100000 of 100000 looked at"]
    assert capsys.readouterr().err.splitlines() == told

    with pytest.raises(KeyboardInterrupt), progress.telling("looked at") as tell:
        tell(100, 300)
        raise KeyboardInterrupt
    assert capsys.readouterr().err.splitlines() == ["stopped: 100 of 300 looked at"]


def test_groups_notes_pages_and_purge(project: Project) -> None:
    ids = [fail(project, "no", n) for n in range(3)]
    other = project.weft("enqueue", "fail", "message=oops", "--watch", "--json", code=1).documents[0]["id"]

    first, second = project.weft("dlq", "groups", "--json").documents
    assert (first["count"], first["task"], second["count"], second["id"]) == (3, "mend", 1, other)
    assert [row[1] for row in project.weft("dlq", "groups").rows] == ["3", "1"]
    found = project.weft("dlq", "ls", "--fingerprint", first["fingerprint"], "--json").documents
    assert {each["id"] for each in found} == set(ids)

    page = project.weft("dlq", "ls", "--limit", "3")
    cursor = page.err.split()[-1]
    rest = project.weft("dlq", "ls", "--cursor", cursor).rows
    assert [row[0] for row in page.rows + rest] == [other, *reversed(ids)]
    assert project.weft("dlq", "ls", "--since", "1h").rows and not project.weft("dlq", "ls", "--until", "1h").rows
    assert project.weft("dlq", "ls", "--since", "2020-01-01T00:00:00+00:00").rows
    assert "write 2020-01-01T00:00Z for UTC" in project.weft("dlq", "ls", "--since", "2020-01-01", code=2).err
    said = project.weft("dlq", "ls", "--since", "tomorrow", code=2)
    assert "--since: 'tomorrow' is neither how long ago" in said.err and "T09:00" in said.err

    marked = project.weft("dlq", "investigate", other, "somebody said oops", "--json").document
    assert marked["investigated"]["note"] == "somebody said oops" and marked["investigated"]["by"].startswith("cli:")
    assert [row[0] for row in project.weft("dlq", "ls", "--investigated").rows] == [other]
    assert len(project.weft("dlq", "ls", "--uninvestigated").rows) == 3
    project.weft("dlq", "investigate", other, code=2)
    assert project.weft("dlq", "investigate", other, "--clear").rows == [[other, "open"]]

    assert project.weft("dlq", "purge", ids[0]).out == "1\n"
    project.weft("dlq", "purge", ids[0], code=3)
    project.weft("dlq", "show", ids[0], code=3)
    assert project.weft("dlq", "purge", "--task", "mend", "--dry-run").out == "2\n"
    project.weft("dlq", "purge", "--task", "mend", code=2)
    assert project.weft("dlq", "purge", "--task", "mend", "--yes", "--json").document == {"purged": 2}
    assert [row[0] for row in project.weft("dlq", "ls").rows] == [other]


@pytest.mark.parametrize(
    "words",
    [
        ["dlq", "ls", "--since", "a-b"],
        ["dlq", "ls", "--tag", "x"],
        ["dlq", "ls", "--limit", "0"],
        ["dlq", "replay"],
        ["dlq", "purge", "--yes"],
        ["dlq", "replay", UNKNOWN, "--task", "mend"],
        ["dlq", "purge", "--task", "mend", "--all"],
        ["dlq", "investigate", UNKNOWN],
        ["dlq", "investigate", UNKNOWN, "note", "--clear"],
        ["runs", "reschedule", UNKNOWN, "--eta", "soon"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_read_is_refused_before_the_store_is_touched(words: list[str]) -> None:
    refused = CliRunner().invoke(cli, words)
    assert refused.exit_code == output.USAGE
    assert "all=True" not in refused.output  # in the words of the command line


def test_what_is_no_dead_letter_is_refused(project: Project) -> None:
    done = project.weft("enqueue", "add", "a=1", "b=2", "--watch", "--json").documents[0]["id"]
    project.weft("dlq", "show", done, code=3)
    project.weft("dlq", "replay", done, code=5)
    project.weft("dlq", "replay", UNKNOWN, code=3)
    project.weft("dlq", "show", "nonsense", code=3)


def test_a_delay_is_changed_from_the_command_line(project: Project) -> None:
    id = project.weft("enqueue", "add", "a=1", "b=2", "--delay", "1h").out.strip()
    moved = project.weft("runs", "reschedule", id, "--delay", "5m", "--json").document
    assert moved["id"] == id and moved["due_at"] == project.weft("runs", "show", id, "--json").document["due_at"]
    project.weft("runs", "reschedule", id, "--eta", "2030-01-01T00:00:00+01:00")
    project.weft("runs", "reschedule", id, code=2)
    project.weft("runs", "reschedule", id, "--delay", "0")
    assert project.weft("runs", "watch", id).rows[-1] == ["3"]
    assert "has ended" in project.weft("runs", "reschedule", id, "--delay", "0", code=5).err
    project.weft("runs", "reschedule", UNKNOWN, "--delay", "0", code=3)

    later = project.weft("enqueue", "add", "a=1", "b=2", "--eta", "2027-01-01T00:00:00Z", "--json").document["id"]
    assert project.weft("runs", "show", later, "--json").document["due_at"].startswith("2027-01-01T00:00:00")
    project.weft("runs", "cancel", later)
