"""A database: connections, transactions, and what its errors mean. Drivers are imported here and nowhere else, at first use."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import URL, event
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from weft.archive.address import Address
from weft.errors import ArchiveUnavailable, PoisonRow, SettingsError

#: Milliseconds an SQLite database may be held by another process before a statement gives up.
BUSY_MS = 5_000
#: Seconds a connection to PostgreSQL may take to come about, and a statement to be answered.
CONNECT_SECONDS, STATEMENT_SECONDS = 5.0, 30.0


class Database:
    """One database. Opens nothing until it is first used."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._engines: dict[bool, AsyncEngine] = {}
        #: Which file an SQLite database is, by device and number, from its first connection on.
        self._file: tuple[int, int] | None = None
        #: How often it was replaced by another file: what was known of the one before is not to be trusted.
        self.replaced = 0

    @property
    def is_sqlite(self) -> bool:
        return self.address.path is not None

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """Gives a connection on which every statement stands for itself."""
        with translated(self.address):
            await self._check_file()
            async with self._engine(reads=True).connect() as connection:
                self._note_file()
                yield connection

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """Gives a connection whose statements all see the database as it was at the first of them."""
        async with self.reading() as connection:
            mode = "" if self.is_sqlite else " ISOLATION LEVEL REPEATABLE READ READ ONLY"
            await connection.exec_driver_sql(f"BEGIN{mode}")
            try:
                yield connection
            finally:
                await connection.exec_driver_sql("COMMIT")

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """Gives a connection within a transaction, which is committed when the block ends well."""
        with translated(self.address):
            await self._check_file()
            async with self._engine(reads=False).begin() as connection:
                self._note_file()
                yield connection
            # What was committed to a file that is gone is gone too: nobody may believe that it is kept.
            await self._check_file()

    async def close(self) -> None:
        for engine in self._engines.values():
            await engine.dispose()
        self._engines.clear()

    def _note_file(self) -> None:
        if self.address.path is not None and self._file is None:
            about = self.address.path.stat()
            self._file = about.st_dev, about.st_ino

    async def _check_file(self) -> None:
        """Refuses an SQLite file that was deleted, moved or replaced: open connections would go on writing to the old one."""
        if self.address.path is None or self._file is None:
            return
        try:
            about = self.address.path.stat()
        except FileNotFoundError:
            await self.close()
            raise FileNotFoundError(
                "its file is gone. Put it back; or, if it is gone for good, give it up by `weft archiver --retire` and"
                " start the workers again"
            ) from None
        if (about.st_dev, about.st_ino) != self._file:
            await self.close()
            self._file = None
            self.replaced += 1
            raise OSError("its file was replaced by another one, which is looked at now")

    def _engine(self, *, reads: bool) -> AsyncEngine:
        engine = self._engines.get(reads)
        if engine is None:
            engine = self._engines[reads] = self._make(reads)
        return engine

    def _make(self, reads: bool) -> AsyncEngine:
        options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if reads else {}
        if self.address.path is not None:
            self.address.path.parent.mkdir(parents=True, exist_ok=True)
            # Not as a text, in which a question mark of the path would begin options.
            engine = create_async_engine(URL.create("sqlite+aiosqlite", database=str(self.address.path)), **options)
            event.listen(engine.sync_engine, "connect", _prepare_sqlite if reads else _prepare_sqlite_writer)
            if not reads:
                event.listen(engine.sync_engine, "begin", _begin_immediate)
            return engine
        try:
            return create_async_engine(
                # The driver reads the URL itself: SQLAlchemy takes none of what libpq knows, such as `sslmode`.
                URL.create("postgresql+asyncpg"),
                pool_size=2,
                pool_pre_ping=True,
                connect_args={"timeout": CONNECT_SECONDS, "command_timeout": STATEMENT_SECONDS}
                | self.address.driver_options,
                **options,
            )
        except ImportError as error:
            raise SettingsError(
                "PostgreSQL needs a driver that is not installed: pip install 'weft[postgres]'",
                setting="WEFT_DATABASE_URL",
            ) from error


def _prepare_sqlite(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    # What is archived is trimmed from the log: a commit must be on disk, or a power cut would lose both.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _prepare_sqlite_writer(connection: Any, record: Any) -> None:
    _prepare_sqlite(connection, record)
    # Else the driver begins transactions by itself, and late: two writers would meet in the middle of theirs.
    connection.isolation_level = None


def _begin_immediate(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """Turns what a driver raises into ours: a row that cannot be stored, or a database that does not serve."""
    try:
        yield
    except (SQLAlchemyError, OSError, TimeoutError, sqlite3.Error) as error:
        if is_poison(error):
            raise PoisonRow(f"a row cannot be stored: {_root(error)}") from error
        raise ArchiveUnavailable(f"the cold store {address.shown} does not serve: {_root(error)}") from error


def is_poison(error: BaseException) -> bool:
    """Tells whether an error is about the values of a statement, not about the database."""
    if isinstance(error, DataError | IntegrityError | UnicodeError | OverflowError):
        return True
    # asyncpg: classes 22 (data), 23 (integrity) and 54 (limits, such as the size of a row in an index) of SQLSTATE.
    state = getattr(getattr(error, "orig", None), "sqlstate", None) or ""
    return isinstance(error, DBAPIError) and state[:2] in ("22", "23", "54")


def _root(error: BaseException) -> str:
    orig = getattr(error, "orig", None) or error
    return f"{type(orig).__name__}: {orig}".splitlines()[0]
