"""`weft graph` about versions, and `weft audit`, as they are typed, on an embedded store without a worker."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from cli_project import Project

from weft.store.embedded import EmbeddedServer

APP = """
from weft import Weft

app = Weft("shop")
report = app.graph("report", version="1.0")
report.transform("total", "${input.a + 1}")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    made = Project(tmp_path_factory.mktemp("versions"))
    (made.root / "shop.py").write_text(APP)
    held = EmbeddedServer.attach(made.root / ".weft")
    yield made
    made.close()
    held.detach()


def test_versions_are_published_tagged_and_compared(project: Project) -> None:
    app = ("--app", "shop:app")
    project.weft("graph", "publish", "report", *app)
    text = APP + 'report.transform("twice", "${total * 2}", after="total")\n'
    (project.root / "shop.py").write_text(text.replace('"1.0"', '"1.1"'))
    project.weft("graph", "publish", "report", *app)
    assert (
        project.weft("graph", "tag", "report", "prod", "1.0", "--expected", "", "--json").document["version"] == "1.0"
    )
    assert "it was moved" in project.weft("graph", "tag", "report", "prod", "1.1", "--expected", "", code=5).err
    listed = project.weft("graph", "versions", "report", "--json").documents
    assert [(one["version"], one["tags"]) for one in listed] == [("1.1", []), ("1.0", ["prod"])]
    assert project.weft("graph", "diff", "report", "prod", "1.1", "--json").document["added"] == ["twice"]


def test_the_audit_is_listed_and_checked(project: Project) -> None:
    project.weft("queues", "pause", "mail", "--reason", "down")
    project.weft("archiver", "--once")
    *entries, end = project.weft("audit", "ls", "--json").documents
    assert entries[0]["action"] == "control.pause" and entries[0]["reason"] == "down" and end == {"cursor": ""}
    checked = project.weft("audit", "verify", "--json").document
    assert checked["ok"] and len(checked["anchors"]) == 2
    with sqlite3.connect(project.root / ".weft" / "archive.sqlite") as database:
        database.execute("UPDATE weft_audit SET actor = 'somebody else' WHERE chain = 0")
    database.close()
    assert "was changed" in project.weft("audit", "verify", code=1).err
