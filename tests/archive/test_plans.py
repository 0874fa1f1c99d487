"""Every indexed filter follows a tree in the order of its page: nothing is read whole, and nothing is sorted."""

from __future__ import annotations

import pytest
import test_million as million
from sqlalchemy.dialects import postgresql, sqlite

from weft.archive.database import Database
from weft.archive.schema import migrate
from weft.archive.wanted import Wanted, page_queries

N = 20_000
#: Filters put together: one of them is followed, the others are looked at.
TOGETHER = {
    "name and status": {"name": "n1", "status": "completed"},
    "name and rare status": {"name": "n1", "status": "cancelled"},
    "name and kind": {"name": "n1", "kind": "task"},
    "name and since": {"name": "n1", "since": f"{N // 2:022d}"},
    "status and until": {"status": "failed", "before": f"{N // 2:022d}"},
    "tag and status": {"tags": (("team", "a"),), "status": "failed"},
    "two tags": {"tags": (("team", "a"), ("team", "rare"))},
    "error and name": {"error": "KeyError", "name": "n1"},
    "parent and kind": {"parent": "p1", "kind": "workflow"},
    "tag and until": {"tags": (("team", "a"),), "before": f"{N // 2:022d}"},
}


@pytest.fixture
async def filled(database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr(million, "N", N)
    await migrate(database)
    await million.fill(database)
    return database


async def test_every_filter_follows_an_index(filled: Database) -> None:
    dialect = sqlite.dialect() if filled.is_sqlite else postgresql.dialect()
    wrong = {}
    for name, filters in (million.FILTERS | TOGETHER).items():
        for query in page_queries("w", Wanted(**filters), 100, sqlite=filled.is_sqlite):
            spelled = str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
            async with filled.reading() as connection:
                how = "EXPLAIN QUERY PLAN" if filled.is_sqlite else "EXPLAIN"
                rows = (await connection.exec_driver_sql(f"{how} {spelled.replace('%%', '%')}")).all()
            plan = "\n".join(str(row[-1]) for row in rows)
            if _is_slow(plan):
                wrong[name] = f"{spelled}\n{plan}"
    assert not wrong, "\n\n".join(f"{name}:\n{text}" for name, text in wrong.items())


def _is_slow(plan: str) -> bool:
    """Tells whether a plan reads a table whole or sorts what it found."""
    sqlite = ("SCAN weft_", "TEMP B-TREE")
    return any(word in plan for word in (*sqlite, "Seq Scan", "Sort", "Hash Join", "Merge Join"))
