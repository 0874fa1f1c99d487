"""The schema of a database: which one it has, and bringing it up to the one this process knows.

Alembic is imported only when there is something to apply: a process that finds the schema it knows pays one SELECT, and a
database without any gets the tables as they are declared, which is what all migrations together make.
"""

from __future__ import annotations

import asyncio
import importlib
import uuid
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect

from weft.archive.database import Database
from weft.archive.tables import VERSION_TABLE, facts, metadata
from weft.errors import ArchiveUnavailable, SchemaRefused

#: The schema this process knows: the newest migration.
HEAD = "0008"
#: All schemas this process knows, the oldest first.
KNOWN = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008")
#: Number of the lock that PostgreSQL keeps while somebody migrates: `weft` in ASCII.
LOCK = 0x77656674
#: Encodings of PostgreSQL in which every text can be stored.
ENCODINGS = ("UTF8", "SQL_ASCII")


class Schema(NamedTuple):
    """Which schema a database has, and which one this process wants. Empty: none yet."""

    current: str
    head: str = HEAD

    @property
    def is_current(self) -> bool:
        return self.current == self.head


async def read_schema(database: Database) -> Schema:
    """Reads which schema a database has. An SQLite file that is not there is not made."""
    if database.address.path is not None and not database.address.path.exists():
        return Schema("")
    async with database.reading() as connection:
        return Schema(await connection.run_sync(_version))


async def check_room(database: Database) -> None:
    """Refuses a database of PostgreSQL in which no tables could be made that take any text. One that has them is not asked."""
    found = await read_schema(database)
    if found.current or database.is_sqlite:
        return
    async with database.reading() as connection:
        query = "SELECT current_setting('server_encoding'), current_schema(), current_user"
        encoding, schema, role = await connection.run_sync(lambda sync: tuple(sync.exec_driver_sql(query).one()))
        why = ""
        if encoding not in ENCODINGS:
            why = f"has the encoding {encoding}, in which not every text can be stored: make one with ENCODING 'UTF8'"
        elif schema is None:
            why = "has no schema to make tables in: create the one that search_path names"
        elif not (await connection.exec_driver_sql("SELECT has_schema_privilege(current_schema(), 'CREATE')")).scalar():
            why = (
                f"has no tables of Weft, and {role} may not make them: GRANT CREATE ON SCHEMA {schema} TO {role}, or run"
                " `weft migrate` as somebody who may"
            )
    if why:
        raise ArchiveUnavailable(f"the cold store {database.address.shown} {why}")


async def migrate(database: Database) -> tuple[Schema, Schema]:
    """Brings a database up to the newest schema; returns what it had and what it has. Raises SchemaRefused for a newer one."""
    found = check(database, await read_schema(database))
    if found.is_current:
        return found, found
    await check_room(database)
    if found.current:
        await asyncio.to_thread(importlib.import_module, "alembic.command")
    async with database.writing() as connection:
        # SQLite's transaction is the lock itself: it began immediately.
        if not database.is_sqlite:
            await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        # Somebody else may have been quicker.
        found = check(database, Schema(await connection.run_sync(_version)))
        if not found.is_current:
            await connection.run_sync(upgrade if found.current else _make)
    return found, Schema(HEAD)


def check(database: Database, found: Schema) -> Schema:
    """Refuses a schema of a newer Weft: writing into it would be guessing."""
    if found.current and found.current not in KNOWN:
        raise SchemaRefused(
            f"the cold store {database.address.shown} has schema {found.current}, this Weft knows up to {HEAD}: upgrade"
            " this process, or give it another database",
            schema=found.current,
        )
    return found


def _version(connection: Connection) -> str:
    if not inspect(connection).has_table(VERSION_TABLE):
        return ""
    row = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").first()
    return str(row[0]) if row else ""


def _make(connection: Connection) -> None:
    metadata.create_all(connection)
    connection.execute(insert(facts).values(name="database", value=uuid.uuid4().hex))
    version = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True))
    version.create(connection)
    connection.execute(insert(version).values(version_num=HEAD))


def upgrade(connection: Connection) -> None:
    """Applies the migrations that a database lacks."""
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    command.upgrade(config, "head")


__all__ = ["HEAD", "KNOWN", "Schema", "check", "check_room", "migrate", "read_schema", "upgrade"]
