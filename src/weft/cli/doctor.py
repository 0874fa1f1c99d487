"""`weft doctor`: how the store and the work on it are, and what to do about what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from weft.cli import output
from weft.cli import target as targets

if TYPE_CHECKING:
    from weft.engine.health import Health
    from weft.sdk.app import Weft


def doctor(app: targets.AppOption = None, json: output.Json = False) -> None:
    """Examine the store and the work on it.

    Every finding comes with its remedy. Exit code 1 when there is a problem, 4 when the store cannot be reached.
    """
    import asyncio
    import os

    from weft import telemetry
    from weft.settings import unknown, unreadable

    telemetry.configure("error")
    loaded, trouble = _load(app)
    health = asyncio.run(_examine(loaded))
    for each in unreadable(os.environ):
        _judge(health, "settings", each, "correct it; what reads it refuses to begin")
    from weft.cli.commands import variables

    for each in unknown(os.environ, variables):
        health.judge("warning", "settings", each, "correct its name, or unset it: nothing reads it")
    if trouble:
        _judge(health, "app", trouble, "correct it; the store of the settings was examined instead")
    if json:
        output.print_json({**_document(health), "ok": health.sound})
    else:
        _print(health)
    if not health.reachable:
        raise typer.Exit(output.UNAVAILABLE)
    if not health.sound:
        raise typer.Exit(output.FAILED)


def _judge(health: Health, about: str, message: str, fix: str) -> None:
    """Tells a problem, unless it was found before on another way."""
    if all(message != finding.message for finding in health.findings):
        health.judge("problem", about, message, fix)


def _load(target: str | None) -> tuple[Weft | None, str]:
    """Returns the app, or none and what was wrong: the doctor comes also where the app cannot be imported."""
    from weft.errors import NotBuilt, WeftError

    try:
        return targets.load_app_or_bare(target), ""
    except NotBuilt:
        raise
    except WeftError as error:
        return None, error.message


async def _examine(app: Weft | None) -> Health:
    from weft.engine import health
    from weft.errors import WeftError
    from weft.sdk.app import Weft
    from weft.settings import read_setting

    try:
        app = app or Weft("weft")
        engine = app.engine()
    except WeftError as error:  # a setting cannot be used, or the embedded server does not come up
        return health.unreachable(error, read_setting("WEFT_NAMESPACE"))
    try:
        return await health.examine(engine, directory=str(app.embedded.directory) if app.embedded else None)
    finally:
        await app.close()
        app.release()


def _document(health: Health) -> dict[str, object]:
    return {name: getattr(health, name) for name in health.__struct_fields__}


def _print(health: Health) -> None:
    store, space = health.store, health.namespace
    size = f"{(store.used_memory or 0) / 1e6:.1f} MB"
    limit = f" of {store.maxmemory / 1e6:.1f} MB" if store.maxmemory else ", no limit"
    output.print_fields(
        [
            ("store", f"{store.url} ({store.kind})"),
            ("directory", store.directory),
            ("server", f"{(store.flavour or '').capitalize()} {store.version}" if store.version else None),
            ("durability", store.durability),
            ("memory", f"{size}{limit}, {store.maxmemory_policy}" if store.maxmemory_policy else None),
            ("clients", store.clients),
            ("round trip", f"{store.latency_ms} ms" if store.latency_ms is not None else None),
            ("namespace", space.name),
            ("partitions", space.partitions or None),
            ("epochs", " ".join(map(str, sorted(set(space.epochs))))),
            *(_found(health) if health.examined else ()),
            ("versions", health.versions),
        ]
    )
    _print_lists(health)


def _found(health: Health) -> list[tuple[str, object]]:
    """Returns what stands in the store; of one that cannot be read nothing is known, not even that it is empty."""
    return [
        ("timers", f"{health.timers.set} set, {health.timers.due} due, {health.timers.late_ms} ms late"),
        ("schedules", f"{health.schedules.set} set, {len(health.schedules.overdue)} overdue"),
        ("dead letters", health.dead_letters),
        ("log", f"{health.log.entries} entries"),
        ("database", f"{health.database.url or 'none'} ({health.database.status})"),
        ("archive lag", f"{health.database.lag_entries} entries, {health.database.lag_seconds:g} s"),
        ("archive index", f"{health.database.index_seconds:g} s behind"),
    ]


def _print_lists(health: Health) -> None:
    if health.queues:
        print()
        rows = [(q.queue, q.priority, q.waiting, q.in_flight) for q in health.queues]
        output.print_table(["queue", "priority", "waiting", "in flight"], rows)
    if health.sessions:
        print()
        sessions = [
            (s.id, "alive" if s.alive else "dead", f"{s.host}:{s.pid}", s.app, ",".join(s.queues), s.concurrency)
            for s in health.sessions
        ]
        output.print_table(
            ["session", "state", "where", "app", "queues", "concurrency"], sessions, spare=["concurrency"]
        )
    print()
    output.print_table(["", "about", "finding", "fix"], [(f.level, f.about, f.message, f.fix) for f in health.findings])
