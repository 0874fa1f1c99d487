"""Opening a store that may be lost: whoever has the database asks it before an empty partition is begun as new.

A store that is empty when everything starts again, or whose rebuilding was cut short with everything else, is rebuilt here,
before any run is accepted and before there is a session or a lease.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from weft.clock import backoff
from weft.engine.cold import PATIENCE
from weft.engine.engine import Engine
from weft.engine.housekeeping.recovery import Rebuilder, recover_all
from weft.errors import PartitionLost, Unavailable, WeftError
from weft.telemetry import get_logger

log = get_logger("weft.recovery")

#: Tries between two lines that tell that it still waits.
SELDOM = 30


async def open_or_rebuild(engine: Engine, *, archive: bool, hot_ms: int) -> None:
    """Opens the namespace, however long that takes while a partition is lost. With `archive` it helps to rebuild it."""
    if archive:
        expect_archive(engine)
    for attempt in itertools.count():
        try:
            if engine.is_open:  # by whoever used the app before: it may have been lost since
                await engine.ns.open()
            await engine.open()
            if not archive or not (back := await _went_back(engine, hot_ms=hot_ms)):
                return
            why: WeftError = PartitionLost(back)
        except PartitionLost as lost:
            why = lost
        if archive:
            try:
                if await rebuild(engine, hot_ms=hot_ms):
                    continue
            except Unavailable as error:
                why = error
        if attempt % SELDOM == 0:
            log.warning("the store cannot be opened before it is rebuilt; waiting", error=why.message)
        await asyncio.sleep(min(1.0, backoff(attempt)))


async def open_again(engine: Engine, *, archive: bool, hot_ms: int) -> None:
    """Opens the namespace once, for a session that follows a lost one; with `archive` it rebuilds first what is lost.

    Raises PartitionLost while that is another process's turn.
    """
    try:
        await engine.ns.open()
    except PartitionLost:
        if not archive or not await rebuild(engine, hot_ms=hot_ms):
            raise
        await engine.ns.open()


async def rebuild(engine: Engine, *, hot_ms: int) -> bool:
    """Rebuilds what the store lost; False when it is another process's turn, or nothing is lost any more."""
    done = await recover_all(engine.ns, engine.cold, engine.id, hot_ms=hot_ms, dry_run=False)
    return any(each is not None and each.lost for each in done)


async def _went_back(engine: Engine, *, hot_ms: int) -> str:
    """Asks the database about a server that was restarted: without the end of its file it would have archived steps run again,
    and as if for the first time. Returns how it was lost; nothing when it was not, or nobody says."""
    ns = engine.ns
    if not ns.moved or not engine.cold.exists:
        return ""
    try:
        async with asyncio.timeout(PATIENCE):
            for p in range(ns.partitions):
                lost, _, _ = await Rebuilder(ns, p, engine.cold, engine.id, hot_ms=hot_ms).examine()
                if lost:
                    return f"the store lost partition {p}: {lost}"
    except (WeftError, TimeoutError) as error:
        log.warning("the database does not say whether the store is as it was; it is served as it is", error=str(error))
    return ""


async def until_open(opening: Callable[[], Awaitable[None]], stopped: Callable[[], bool]) -> None:
    """Tries to open something until that is done, or nobody wants it any more."""
    for attempt in itertools.count():
        if stopped():
            return
        try:
            return await opening()
        except WeftError as error:
            if attempt % SELDOM == 0:
                log.warning("a new session cannot be opened; trying on", error=error.message)
            await asyncio.sleep(0.5)


def expect_archive(engine: Engine) -> None:
    """Has the database asked about a store that knows of no archive, too: it may have been begun anew."""
    engine.ns.ask_unmarked = not engine.ns.partitions
