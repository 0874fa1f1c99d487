"""`weft archiver`, `weft recover` and `weft migrate`: the cold store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.worker import LogLevel

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from weft.cli.serve import Heard
    from weft.engine.housekeeping.archiver import Archiver
    from weft.engine.housekeeping.recovery import Recovered
    from weft.engine.housekeeping.service import Service
    from weft.sdk.app import Weft


#: How much an archiver beside a worker gives way to it.
NICE = 1


def archiver(
    app: targets.AppOption = None,
    once: Annotated[bool, typer.Option("--once", help="Archive what there is now, then end.")] = False,
    retire: Annotated[
        bool, typer.Option("--retire", help="Give the archive up: forget which database this namespace belongs to.")
    ] = False,
    log_level: LogLevel = None,
    json: output.Json = False,
    lifeline: Annotated[int | None, typer.Option("--lifeline", hidden=True)] = None,
) -> None:
    """Archive the log into the database, without serving any queue.

    One of the workers does this too, in a process beside it, unless all were started with --no-archive; an archiver started
    alone stands in when there is none.

    A namespace belongs to one database. One that is gone for good, or that was the wrong one, is given up by --retire; the
    next archiver then begins a new one with what the log still has. Until then the log is trimmed by age (WEFT_RETENTION).
    """
    import asyncio

    from weft import telemetry
    from weft.cli.serve import Heard, loop_factory
    from weft.settings import SETTINGS, read_setting

    environ = {"WEFT_LOG_LEVEL": log_level or SETTINGS["WEFT_LOG_LEVEL"].default}
    telemetry.configure(read_setting("WEFT_LOG_LEVEL", environ=environ), aside=True)
    heard = Heard()
    if once or retire:  # whoever ends these by a signal is to see that they were not finished
        loaded = targets.load_app_or_bare(app)
    elif lifeline is None:
        with heard:
            loaded = targets.load_app_or_bare(app)
        if heard.asked:
            return
    else:  # beside a worker, which has said where everything is: nobody's code is needed
        from weft.sdk.app import Weft

        loaded = Weft("weft")
        be_frugal()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(
                _retire(loaded, json=json)
                if retire
                else _drain(loaded, json=json)
                if once
                else _serve(loaded, heard=heard, lifeline=lifeline, json=json and lifeline is None)
            )
    finally:
        loaded.release()


async def _retire(app: Weft, *, json: bool) -> None:
    from weft.engine.lag import retire

    try:
        n = await retire(app.engine())
    finally:
        await app.close()
    if n:
        output.say("the archive is given up; the next archiver begins anew with what the log still has")
    else:
        output.say("nothing was archived")
    if json:
        output.print_json({"retired": n})


def be_frugal() -> None:
    """Gives way to the worker beside it: on a busy machine steps come first; the log keeps what is archived later."""
    import contextlib
    import gc
    import os

    # What it remembers of open runs is long-lived and has no cycles.
    gc.set_threshold(50_000, 20, 50)
    with contextlib.suppress(OSError, AttributeError):  # Windows has no nice
        os.nice(NICE)


async def _drain(app: Weft, *, json: bool) -> None:
    cold = app.engine().cold
    try:
        archivers = await _make_archivers(app)
        for each in archivers:
            await each.drain()
        n = sum(each.archived for each in archivers)
        output.say(f"archived {n} events to {cold.address.shown}")
        if json:
            output.print_json({"database": cold.address.shown, "archived": n})
    finally:
        await app.close()


async def _serve(app: Weft, *, heard: Heard, lifeline: int | None, json: bool) -> None:
    from weft.cli.serve import unless
    from weft.engine.housekeeping.retention import make_sweeping

    engine, stop = app.engine(), _listen(heard, lifeline)
    try:
        archivers = await unless(stop, _make_archivers(app))
        if archivers is None:
            output.say("stopped before it was ready")
            return
        services = [*archivers, *make_sweeping(engine.ns, engine.cold, archivers[0].session)]
        await _run(services, engine.cold.address.shown, stop, json=json)
    finally:
        await app.close()


async def _make_archivers(app: Weft) -> Sequence[Archiver]:
    """Opens database and store, rebuilding what is lost, and returns what archives each partition."""
    from weft.engine.housekeeping.archiver import make_archivers
    from weft.engine.housekeeping.reopening import open_or_rebuild
    from weft.engine.lag import migrate_database
    from weft.ids import new_id
    from weft.settings import read_setting

    engine = app.engine()
    await migrate_database(engine.cold, apply=True)
    await open_or_rebuild(engine, archive=True, hot_ms=read_setting("WEFT_KEEP_HOT"))
    return make_archivers(engine.ns, engine.cold, new_id("a"), hot_ms=read_setting("WEFT_KEEP_HOT"))


def _listen(heard: Heard, lifeline: int | None) -> asyncio.Event:
    """Returns what is set when the archiver is to stop."""
    import asyncio

    from weft.cli.serve import stop_signals, watch_lifeline

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in stop_signals():
        # One beside a worker ends with it: a supervisor that signals both would only have it replaced while the worker drains.
        loop.add_signal_handler(number, stop.set if lifeline is None else lambda: None)
    if lifeline is not None:
        watch_lifeline(loop, lifeline, stop.set)
    if heard.asked:
        stop.set()
    return stop


async def _run(services: Sequence[Service], where: str, stop: asyncio.Event, *, json: bool) -> None:
    import asyncio
    import os

    from weft.telemetry import get_logger

    for each in services:
        each.start()
    get_logger("weft.archiver").info("ready", database=where)
    if json:
        output.print_json({"database": where, "pid": os.getpid()})
    await stop.wait()
    await asyncio.gather(*(each.stop() for each in services))


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


def recover(
    app: targets.AppOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    json: output.Json = False,
) -> None:
    """Rebuild what the store lost from the database.

    Archivers do it by themselves within seconds; this is for whoever wants to see what would be done, or has no archiver
    running. A partition that lost nothing is left alone. What has been archived does not run again; what was not is lost, or
    runs again. Rates and caches begin anew.
    """
    import asyncio

    loaded = targets.load_app_or_bare(app)
    try:
        found = asyncio.run(_recover(loaded, dry_run=dry_run))
    finally:
        loaded.release()
    rows = [each for each in found if each is not None]
    if json:
        for each in rows:
            output.print_json(each)
    else:
        for each in rows:
            output.print_fields(_fields(each, dry_run=dry_run))
    if len(rows) < len(found):
        output.say(f"{len(found) - len(rows)} partitions are being rebuilt by another process")


def _fields(found: Recovered, *, dry_run: bool) -> list[tuple[str, str]]:
    if not found.lost:
        state = "it lost nothing that is archived" if found.epoch else "it was never archived to this database"
        return [("partition", str(found.partition)), ("state", state)]
    counts = [
        ("runs that go on", found.runs),
        ("records of calls", found.records),
        ("dead letters", found.letters),
        ("settings and schedules", found.settings),
        ("runs of graphs", found.graphs),
        ("runs of graphs to be retried by hand", found.to_retry),
        ("runs of workflows", found.workflows),
        ("runs that only the database had", found.starts),
        ("votes that only the database had", found.votes),
        ("observations of work elsewhere", found.observed),
        ("runs with gaps, not rebuilt", found.gaps),
        *([("blocks to be indexed first, not counted above", found.behind)] if found.behind else []),
    ]
    return [
        ("partition", str(found.partition)),
        ("state", f"lost: {found.lost}" if dry_run else f"rebuilt at epoch {found.epoch} ({found.lost})"),
        *((name, str(n)) for name, n in counts),
    ]


async def _recover(app: Weft, *, dry_run: bool) -> list[Recovered | None]:
    from weft.engine.coldruns import archived_elsewhere
    from weft.engine.housekeeping.recovery import recover_all
    from weft.engine.housekeeping.reopening import expect_archive
    from weft.errors import ForeignArchive
    from weft.ids import new_id
    from weft.settings import read_setting

    engine = app.engine()
    expect_archive(engine)
    try:
        found = await recover_all(
            engine.ns, engine.cold, new_id("a"), hot_ms=read_setting("WEFT_KEEP_HOT"), dry_run=dry_run
        )
        for each in found:
            # Else it would say that nothing is lost, and that database cannot know.
            if each is not None and not each.lost and (other := await archived_elsewhere(engine, each.partition)):
                raise ForeignArchive(
                    f"partition {each.partition} is archived to {other}, not to {engine.cold.address.shown}:"
                    " set WEFT_DATABASE_URL to that database"
                )
        return found
    finally:
        await app.close()
