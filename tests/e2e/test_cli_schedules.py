"""`weft schedules` as it is typed, on an embedded store, with a real worker beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_project import TASKS, Project, archiving, until

CRON = """

@app.cron("0 4 * * *", tz="Europe/Berlin", overlap="queue")
async def nightly() -> str:
    return "done"
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    made = Project(tmp_path_factory.mktemp("schedules"), tasks=TASKS + CRON)
    made.start("worker", "--grace", "0s")
    yield made
    made.close()


def test_the_life_of_a_schedule(project: Project) -> None:
    words = ("create", "sums", "*/5 * * * *", "add", "a=2", "b=3", "--tz", "Asia/Tokyo", "--catch-up", "none")
    made = project.weft("schedules", *words, "--json").document
    assert (made["id"], made["status"], made["task"], made["input"]) == ("sums", "active", "add", {"a": 2, "b": 3})
    assert (made["tz"], made["overlap"], made["catch_up"], made["source"]) == ("Asia/Tokyo", "skip", "none", "runtime")
    assert project.weft("schedules", *words, "--json").document == made

    listed = project.weft("schedules", "ls", "--json").documents
    assert [(line["name"], line["source"], line["orphaned"]) for line in listed] == [
        ("nightly", "code", False),
        ("sums", "runtime", False),
    ]
    assert [row[:5] for row in project.weft("schedules", "ls").rows][1] == [
        "sums",
        "active",
        "*/5 * * * *",
        "Asia/Tokyo",
        "add",
    ]

    ticks = project.weft("schedules", "next", "sums", "-n", "3", "--json").documents
    assert len(ticks) == 3 and all(line["at"].endswith("+09:00") for line in ticks)
    assert all(
        line.endswith((":00+01:00", ":00+02:00"))
        for line in project.weft("schedules", "next", "nightly").out.split("\n")
        if line
    )

    started = project.weft("schedules", "trigger", "sums", "--json").document
    assert project.weft("runs", "watch", started["run_id"], "--json").documents[-1]["result"] == 5
    assert project.weft("schedules", "pause", "sums", "--json").document["status"] == "paused"
    assert ["status", "paused"] in project.weft("schedules", "show", "sums").rows
    assert project.weft("schedules", "resume", "sums", "--json").document["status"] == "active"

    filled = project.weft(
        "schedules", "backfill", "sums", "--start", "2026-01-01", "--end", "2026-01-01T00:10", "--json"
    )
    ids = [line["run_id"] for line in filled.documents]
    assert len(ids) == 2 and until(lambda: project.weft("runs", "show", ids[1], "--json").document["result"] == 5)
    tags = project.weft("runs", "show", ids[1], "--json").document["tags"]
    assert tags == {"schedule": "sums", "tick": "2025-12-31T15:05:00Z"}
    assert [(line["tick"], line["deduplicated"]) for line in filled.documents] == [
        ("2026-01-01T00:00:00+09:00", False),
        ("2026-01-01T00:05:00+09:00", False),
    ]
    longer = ("schedules", "backfill", "sums", "--start", "2026-01-01", "--end", "2026-01-01T00:15")
    again = project.weft(*longer)
    assert again.out.split() and not {*again.out.split()} & {*ids}, "only what it started is data"
    assert again.err.splitlines() == [
        f"2026-01-01 00:00:00+09:00 has a run already: {ids[0]}",
        f"2026-01-01 00:05:00+09:00 has a run already: {ids[1]}",
    ]
    told = project.weft(*longer, "--json").documents
    assert [(line["run_id"], line["deduplicated"]) for line in told] == [(id, True) for id in (*ids, again.out.strip())]

    assert project.weft("schedules", "delete", "sums").rows == [["sums", "deleted"]]
    assert project.weft("schedules", "show", "sums", code=3).out == ""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("create", "x", "61 * * * *", "add", "a=1", "b=2"), 2, "bad minute"),
        (("create", "x", "* * * * *", "add", "a=1", "b=2", "--tz", "Europe/Berln"), 2, "did you mean Europe/Berlin?"),
        (("create", "x", "* * * * *", "add", "a=1", "b=2", "--overlap", "no"), 2, "overlap must be one of"),
        (("create", "x", "* * * * *", "add", "a=1"), 2, "missing a required argument"),
        (("create", "x", "* * * * *", "ad"), 3, "did you mean add?"),
        (("create", "nightly", "* * * * *", "add", "a=1", "b=2"), 5, "with another definition"),
        (("pause", "nothing"), 3, "there is no schedule 'nothing'"),
        (("backfill", "nightly", "--start", "soon", "--end", "2026-01-01"), 2, "'soon' is no moment"),
        (("backfill", "nightly", "--start", "2026-01-01", "--end", "2999-01-01"), 2, "in the future"),
        (("delete", "a b"), 2, "is not a name"),
    ],
)
def test_what_cannot_be_done_is_explained(project: Project, words: tuple[str, ...], code: int, said: str) -> None:
    refused = project.weft("schedules", *words, code=code)
    assert said in refused.err and refused.out == ""
    assert [line["name"] for line in project.weft("schedules", "ls", "--json").documents] == ["nightly"]


def test_a_schedule_that_is_gone_from_code_is_shown(tmp_path: Path) -> None:
    project = Project(tmp_path, tasks=TASKS + CRON)
    try:
        project.start("worker", "--grace", "0s")
        (tmp_path / "tasks.py").write_text(TASKS)
        (row,) = project.weft("schedules", "ls").rows
        assert (row[0], row[-1]) == ("nightly", "gone from code")
    finally:
        project.close()


def test_the_archive_lists_deleted_schedules_too_without_the_store(tmp_path: Path) -> None:
    with archiving(tmp_path / "project") as project:
        for name in ("kept", "short"):
            project.weft("schedules", "create", name, "0 1 * * *", "add", "a=2", "b=3")
        assert project.weft("schedules", "pause", "kept", "--json").document["paused_by"].startswith("cli:")
        project.weft("schedules", "delete", "short")
        project.weft("archiver", "--once")

        nowhere = f"unix://{tmp_path}/nobody.sock"
        found = project.weft("schedules", "ls", "--archived", "--json", WEFT_REDIS_URL=nowhere).documents

        kept, short = found
        assert (kept["name"], kept["status"], kept["deleted_at"]) == ("kept", "paused", None) and kept["paused_by"]
        assert (short["name"], short["status"]) == ("short", "deleted") and short["deleted_by"] and short["deleted_at"]
        assert [line["name"] for line in project.weft("schedules", "ls", "--json").documents] == ["kept"]
