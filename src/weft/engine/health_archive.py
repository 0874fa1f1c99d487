"""What `weft doctor` says of the archive: whether it can be reached, how far behind it is, what it could not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.engine.engine import Engine
from weft.engine.lag import count_outside, count_starts, read_database, read_lag, read_room, why_unusable
from weft.errors import WeftError

if TYPE_CHECKING:
    from weft.engine.health import Health

#: Seconds an event may wait to be archived before somebody should look: a leader that dies is replaced within 3 s.
LAG_SECONDS = 10.0


async def examine_database(engine: Engine, health: Health) -> None:
    """Looks at the archive, if there is one: how far behind it is, and whether this process would find it."""
    load, lag, room = health.database, await read_lag(engine), await read_room(engine)
    if room.refused:
        health.judge(
            "problem", "starts", f"new runs are refused: {room.refused[0]}", "let the archive catch up, or make room"
        )
    load.url = engine.cold.address.shown
    if not lag.databases:
        if why := await why_unusable(engine):
            load.status = "unavailable"
            fix = "bring it up, or correct WEFT_DATABASE_URL; until then nothing is archived"
            return health.judge("problem", "archive", f"{load.url}: {why}", fix)
        live = any(session.alive for session in health.sessions)
        fix = "workers archive unless told not to (--no-archive, WEFT_ARCHIVE=no)" if live else "start a worker"
        health.judge("ok", "archive", "nothing is archived: the log is kept for WEFT_RETENTION only", fix)
        return
    load.lag_entries, load.lag_seconds, load.index_seconds = lag.entries, lag.seconds, lag.index_seconds
    try:
        theirs, load.schema, load.gaps = await read_database(engine)
    except WeftError as error:
        load.status = "unavailable"
        fix = "bring it up, or correct WEFT_DATABASE_URL; nothing is lost meanwhile, the log waits"
        health.judge("problem", "archive", f"{load.url}: {error.message}", fix)
        return
    load.status = "behind" if lag.seconds > LAG_SECONDS else "ok"
    if theirs not in lag.databases:
        fix = "name the same database in WEFT_DATABASE_URL; `weft archiver --retire` gives up the other one"
        health.judge("problem", "archive", f"the log is archived to {lag.name}, not to {load.url}", fix)
    elif load.status == "behind":
        fix = "see the worker's log for errors of its archiver, or start a worker or `weft archiver`"
        message = f"{lag.entries} log entries are not archived, the oldest for {lag.seconds:.0f} s"
        health.judge("warning", "archive", message, fix)
    else:
        health.judge("ok", "archive", f"{load.url}, {lag.entries} log entries behind")
    await _judge_starts(engine, health)
    if theirs in lag.databases:
        load.outside = await count_outside(engine, lag)
    if load.outside:
        message = f"{load.outside} runs under way began before this archive, or have gaps in it: a loss of the store loses them"
        health.judge("warning", "archive", message, "nothing to do but let them end; new runs are archived as a whole")
    if load.gaps:
        fix = "the table weft_gaps has the bytes and the reason"
        health.judge("problem", "archive", f"{load.gaps} pieces of runs could not be archived as they were", fix)


async def _judge_starts(engine: Engine, health: Health) -> None:
    """Tells of runs that stand in the database, and that nobody has started for long."""
    n = health.database.starts = await count_starts(engine)
    if n:
        fix = "see the log of whoever archives: it starts them within half a minute"
        health.judge("warning", "starts", f"{n} runs were committed to the database and are not started", fix)
