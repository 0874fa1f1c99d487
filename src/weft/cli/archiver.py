"""`weft archiver` and `weft migrate`: the cold store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.worker import LogLevel

if TYPE_CHECKING:
    from weft.engine.housekeeping.archiver import Archiver
    from weft.sdk.app import Weft


def archiver(
    app: targets.AppOption = None,
    once: Annotated[bool, typer.Option("--once", help="Archive what there is now, then end.")] = False,
    retire: Annotated[
        bool, typer.Option("--retire", help="Give the archive up: forget which database this namespace belongs to.")
    ] = False,
    log_level: LogLevel = None,
) -> None:
    """Archive the log into the database, without serving any queue.

    Every worker does this too, one at a time, unless it was started with --no-archive; a process of its own takes the load
    off them.

    A namespace belongs to one database. One that is gone for good, or that was the wrong one, is given up by --retire; the
    next archiver then begins a new one with what the log still has. Until then the log is trimmed by age (WEFT_RETENTION).
    """
    import asyncio

    from weft import telemetry
    from weft.cli.serve import loop_factory
    from weft.settings import SETTINGS, read_setting

    environ = {"WEFT_LOG_LEVEL": log_level or SETTINGS["WEFT_LOG_LEVEL"].default}
    telemetry.configure(read_setting("WEFT_LOG_LEVEL", environ=environ))
    loaded = targets.load_app_or_bare(app)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_retire(loaded) if retire else _serve(loaded, once=once))
    finally:
        loaded.release()


async def _retire(app: Weft) -> None:
    from weft.engine.lag import retire

    try:
        n = await retire(app.engine())
    finally:
        await app.close()
    if n:
        output.say("the archive is given up; the next archiver begins anew with what the log still has")
    else:
        output.say("nothing was archived")


async def _serve(app: Weft, *, once: bool) -> None:
    from weft.engine.housekeeping.archiver import make_archivers
    from weft.engine.lag import migrate_database
    from weft.ids import new_id
    from weft.settings import read_setting

    engine = app.engine()
    try:
        await engine.open()
        await migrate_database(engine.cold, apply=True)
        archivers = make_archivers(engine.ns, engine.cold, new_id("a"), hot_ms=read_setting("WEFT_KEEP_HOT"))
        if once:
            for each in archivers:
                await each.drain()
            output.say(f"archived {sum(each.archived for each in archivers)} events to {engine.cold.address.shown}")
        else:
            await _run(archivers, engine.cold.address.shown)
    finally:
        await app.close()


async def _run(archivers: list[Archiver], where: str) -> None:
    import asyncio

    from weft.cli.serve import stop_signals
    from weft.telemetry import get_logger

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stop.set)
    for each in archivers:
        each.start()
    get_logger("weft.archiver").info("ready", database=where)
    await stop.wait()
    await asyncio.gather(*(each.stop() for each in archivers))


def migrate(
    app: targets.AppOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be applied.")] = False,
    json: output.Json = False,
) -> None:
    """Bring the database up to the schema this version knows.

    Archivers do it by themselves when they start; this is for whoever wants to choose the moment. A schema of a newer version
    is refused.
    """
    import asyncio

    loaded = targets.load_app_or_bare(app)

    async def apply() -> tuple[str, str, str, str]:
        from weft.engine.cold import Cold
        from weft.engine.lag import migrate_database

        cold = Cold(loaded.database(), "")
        try:
            return cold.address.shown, *await migrate_database(cold, apply=not dry_run)
        finally:
            await cold.close()

    url, before, head, after = asyncio.run(apply())
    if json:
        output.print_json({"database": url, "before": before, "head": head, "schema": after})
    else:
        output.print_fields(
            [("database", url), ("before", before or "none"), ("newest", head), ("now", after or "none")]
        )
