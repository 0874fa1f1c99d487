"""`weft status` as it is typed, on an embedded store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_project import Project

from weft.store.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    made = Project(tmp_path_factory.mktemp("status"))
    held = EmbeddedServer.attach(made.root / ".weft")
    yield made
    made.close()
    held.detach()


def test_the_life_of_a_task_elsewhere(project: Project) -> None:
    words = ("publish", "build/1", "running", "machine=b7", "tries=2", "--event-id", "e1", "--parent", "all")
    made = project.weft("status", *words, "--source", "ci", "--json").document
    assert (made["task_id"], made["status"], made["deduplicated"]) == ("build/1", "running", False)
    assert (made["meta"], made["parent_id"], made["source"]) == ({"machine": "b7", "tries": 2}, "all", "ci")
    again = project.weft("status", *words, "--source", "ci", "--json").document
    assert again == made | {"deduplicated": True}
    project.weft("status", "publish", "build/1", "done", "--meta", '{"ok": true}')

    shown = project.weft("status", "show", "build/1")
    assert ["status", "done"] in shown.rows and ["meta", '{"ok":true}'] in shown.rows
    listed = project.weft("status", "history", "build/1", "--json").documents
    assert [line["status"] for line in listed] == ["done", "running"]
    assert [row[1:3] for row in project.weft("status", "history", "build/1", "-n", "1").rows] == [["build/1", "done"]]
    older = project.weft("status", "history", "build/1", "--before", listed[0]["id"], "--json").documents
    assert older == listed[1:]
    assert [line["task_id"] for line in project.weft("status", "children", "all", "--json").documents] == ["build/1"]


def test_the_feed_ends_with_its_cursor(project: Project) -> None:
    *seen, end = project.weft("status", "feed", "--json").documents
    assert [line["status"] for line in seen] == ["running", "done"]
    assert project.weft("status", "feed", "--after", end["cursor"], "--json").documents == [end]
    said = project.weft("status", "feed", "-n", "1")
    assert len(said.rows) == 1 and said.err.startswith("go on with --after ")


def test_what_is_wrong_ends_with_a_line_and_a_code(project: Project) -> None:
    assert "nothing was published about task 'nobody'" in project.weft("status", "show", "nobody", code=3).err
    assert "nothing was published" in project.weft("status", "history", "nobody").err
    project.weft("status", "publish", "build/2", "running", "--event-id", "f1", "--parent", "all")
    conflict = project.weft("status", "publish", "build/2", "other", "--event-id", "f1", code=5)
    assert "another observation needs another event_id" in conflict.err
    assert "belongs to 'all'" in project.weft("status", "publish", "build/2", "x", "--parent", "no", code=5).err
    assert "is no place" in project.weft("status", "feed", "--after", "x", code=2).err
    assert "--input is not JSON" not in project.weft("status", "publish", "t", "s", "--meta", "{", code=2).err
    assert "meta" in project.weft("status", "publish", "t", "s", "--meta", "[1]", code=2).err
