"""The schema: made once, by whoever comes first, and refused when it is from the future."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import inspect

from weft import Weft
from weft.archive.address import Address
from weft.archive.database import Database
from weft.archive.migrations.versions import (
    v0001_first,
    v0002_statuses,
    v0003_indexed,
    v0004_starts,
    v0005_rows,
    v0006_labels,
    v0007_ballots,
    v0008_schedules,
)
from weft.archive.schema import HEAD, KNOWN, migrate, read_schema, upgrade
from weft.archive.tables import metadata
from weft.errors import ArchiveUnavailable, SchemaRefused, SettingsError


@pytest.mark.parametrize("way", ["at once", "by migrations"])
async def test_a_database_gets_the_tables_that_are_declared(app, database, rows, way):
    if way == "at once":
        assert (await migrate(database))[0].current == ""
    else:
        async with database.writing() as connection:
            await connection.run_sync(upgrade)
        assert (await migrate(database))[0].current == HEAD

    assert [row.name for row in await rows("facts")] == ["database"]
    async with database.reading() as connection:
        dialect = connection.dialect
        found = await connection.run_sync(
            lambda sync: {
                name: (
                    {one["name"]: (str(one["type"]), one["nullable"]) for one in inspect(sync).get_columns(name)},
                    set(inspect(sync).get_pk_constraint(name)["constrained_columns"]),
                    {index["name"] for index in inspect(sync).get_indexes(name)},
                )
                for name in metadata.tables
            }
        )
    for name, table in metadata.tables.items():
        columns, keys, indexes = found[name]
        assert columns == {column.name: (column.type.compile(dialect), False) for column in table.columns}
        assert keys == {column.name for column in table.primary_key}
        assert indexes == {index.name for index in table.indexes}
    made = (v0001_first, v0002_statuses, v0003_indexed, v0004_starts, v0005_rows, v0006_labels, v0007_ballots)
    made += (v0008_schedules,)
    assert tuple(each.revision for each in made) == KNOWN
    assert KNOWN[-1] == HEAD


async def test_many_that_come_at_once_make_it_once(app, database_url, rows):
    databases = [Database(Address.parse(database_url)) for _ in range(4)]
    try:
        done = await asyncio.gather(*(migrate(each) for each in databases))
    finally:
        for each in databases:
            await each.close()

    assert sorted(before.current for before, _ in done) == ["", HEAD, HEAD, HEAD]
    assert {after.current for _, after in done} == {HEAD}
    assert len(await rows("facts")) == 1


async def test_a_schema_of_a_newer_version_is_refused(app, database, archive):
    await migrate(database)
    async with database.writing() as connection:
        await connection.exec_driver_sql("UPDATE weft_version SET version_num = '9999'")

    with pytest.raises(SchemaRefused, match=r"9999.*upgrade this process"):
        await migrate(database)
    with pytest.raises(SchemaRefused):
        await archive()
    await app.open()
    with pytest.raises(SchemaRefused):
        await app.runs.list()


async def test_reading_makes_no_database(app, database_url, tmp_path):
    await app.open()
    assert await app.runs.list() == []
    assert not (tmp_path / "archive.sqlite").exists()
    database = Database(Address.parse(database_url))
    assert (await read_schema(database)).current == ""
    await database.close()


@pytest.mark.parametrize(
    "url", ["mysql://x/y", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:file", "postgresql://", "", 7]
)
def test_a_url_that_cannot_be_used_is_refused_before_anything_is_opened(url, monkeypatch):
    monkeypatch.delenv("WEFT_DATABASE_URL")
    if url == "":
        assert Weft("shop", database_url=url).database().path.name == "archive.sqlite"
        return
    with pytest.raises(SettingsError, match="database_url"):
        Weft("shop", database_url=url)


def test_a_password_is_not_shown():
    address = Address.parse("postgresql://me:sec@ret@host/db?sslpassword=other")
    assert address.shown == "postgresql://me:***@host/db?sslpassword=***"


async def test_a_database_that_is_not_there_is_unavailable(monkeypatch):
    database = Database(Address.parse("postgresql://nobody@127.0.0.1:1/none"))
    pytest.importorskip("asyncpg")
    with pytest.raises(ArchiveUnavailable, match="does not serve"):
        await read_schema(database)
    await database.close()
