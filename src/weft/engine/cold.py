"""The cold store of an engine: opened at first need, and only by whoever needs it. Producers and clients may never."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from weft.archive.address import Address
from weft.errors import WeftError
from weft.settings import read_setting
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.archive.database import Database
    from weft.archive.reader import Reader

log = get_logger("weft.recovery")

#: Seconds the database gets to answer; without an answer an empty store is begun, and rebuilt when the archiver sees it.
PATIENCE = 5.0


class Cold:
    """One database, and this namespace's part of it. SQL is imported when it is first read or written."""

    def __init__(self, address: Address, namespace: str) -> None:
        self.address, self._namespace = address, namespace
        #: One transaction at a time: the archivers of many partitions share one database.
        self.turn = asyncio.Lock()
        #: Whether it was looked at if this is the database that the namespace is archived to.
        self.checked = False
        self._database: Database | None = None
        self._reader: Reader | None = None

    @property
    def database(self) -> Database:
        if self._database is None:
            from weft.archive.database import Database

            self._database = Database(self.address)
        return self._database

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            from weft.archive.reader import Reader

            self._reader = Reader(self.database, self._namespace)
        return self._reader

    @property
    def exists(self) -> bool:
        """Whether there may be something to read: an SQLite file that was never made holds nothing."""
        return self.address.path is None or self.address.path.exists()

    async def partitions(self) -> set[int]:
        """Returns the partitions of this namespace that were archived; none when the database does not say."""
        if not self.exists:
            return set()
        try:
            async with asyncio.timeout(PATIENCE):
                await load_archive("recovery")
                from weft.archive.recovery import read_partitions

                return await read_partitions(self.database, self._namespace) if await self.reader.ready() else set()
        except (WeftError, TimeoutError) as error:
            log.warning("the database does not say whether this namespace was archived", error=str(error))
            return set()

    async def close(self) -> None:
        if self._database is not None:
            await self._database.close()


__all__ = ["Address", "Cold", "database_address"]


def database_address(given: str | None, data: Path | None = None) -> Address:
    """Returns where the cold store is: as given, else as set, else in the data directory. No I/O."""
    url = read_setting("WEFT_DATABASE_URL", given)
    return Address.parse(url) if url else Address.default(data or Path(read_setting("WEFT_DATA")))


async def load_archive(*modules: str) -> None:
    """Imports modules of the archive in a thread: the first time takes up to a second, and the loop must not wait for it."""
    await asyncio.to_thread(_import, modules)


def _import(modules: tuple[str, ...]) -> None:
    for module in modules:
        importlib.import_module(f"weft.archive.{module}")
