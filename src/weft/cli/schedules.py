"""`weft schedules`: lists, creates, pauses, resumes, triggers, deletes and backfills schedules."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets

if TYPE_CHECKING:
    from datetime import datetime

    from weft.core.schedule import ScheduleInfo
    from weft.sdk.app import Weft
    from weft.sdk.run import Run

group = typer.Typer(help="List, create, pause and trigger schedules.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="The schedule's name.")]


@group.command("ls")
def ls(
    archived: Annotated[
        bool, typer.Option("--archived", help="As the archive has them, a few seconds ago; deleted ones too.")
    ] = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """List all schedules, by name.

    In a pipe the columns are: name, status, expression, timezone, task, next tick, last tick, last run, source.
    """

    async def read(app: Weft) -> Sequence[ScheduleInfo]:
        return await (app.schedules.archived() if archived else app.schedules.list())

    found = targets.with_app(targets.load_app_or_bare(app), read, opens=not archived)
    if json:
        output.print_json_lines(_document(info) for info in found)
        return
    output.print_table(
        ["name", "status", "expr", "tz", "task", "next", "last", "run", "source"],
        [
            (i.name, i.status, i.expr, i.tz, i.task, _clock(i.next_at), _clock(i.last_at), i.last_run, _source(i))
            for i in found
        ],
        empty="no schedules",
        spare=["source", "last", "tz"],
    )


@group.command("show")
def show(name: Name, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Show one schedule."""
    _act(app, json, lambda app: app.schedules.get(name))


@group.command("create")
def create(
    name: Annotated[str, typer.Argument(help="The new schedule's name.")],
    expr: Annotated[str, typer.Argument(help="When: `minute hour day-of-month month day-of-week`, quoted.")],
    task: Annotated[str, typer.Argument(help="The task it starts.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Its arguments, read by their types.")
    ] = None,
    input: Annotated[str | None, typer.Option("--input", help="Arguments as a JSON object; - reads stdin.")] = None,
    tz: Annotated[str, typer.Option(help="Timezone, such as Europe/Berlin.")] = "UTC",
    overlap: Annotated[str, typer.Option(help="allow, skip, queue or cancel_previous.")] = "skip",
    catch_up: Annotated[str, typer.Option(help="none, latest or all.")] = "latest",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Create a schedule of a task. Exit code 5 when the name is taken by another definition."""
    from weft.cli.arguments import read_arguments
    from weft.cli.enqueue import find_task

    loaded, _ = targets.load_app(app)
    found = find_task(loaded, task)
    args, kwargs = read_arguments(found, arguments or [], sys.stdin.read() if input == "-" else input)

    async def make(app: Weft) -> ScheduleInfo:
        return await app.schedules.create(name, expr, found, args, kwargs, tz=tz, overlap=overlap, catch_up=catch_up)

    _print(targets.with_app(loaded, make), json=json)


@group.command("pause")
def pause(name: Name, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Stop a schedule from ticking until it is resumed."""
    _act(app, json, lambda app: app.schedules.pause(name))


@group.command("resume")
def resume(name: Name, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Let a paused schedule tick again, from now on."""
    _act(app, json, lambda app: app.schedules.resume(name))


@group.command("trigger")
def trigger(name: Name, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Start a run of a schedule now and print its id. Exit code 5 when its overlap policy forbids it."""

    async def start(app: Weft) -> dict[str, Any]:
        run = await app.schedules.trigger(name)
        return {"id": run.id, "run_id": run.id, "schedule": name, "status": await run.status()}

    started = targets.with_app(targets.load_app_or_bare(app), start)
    if json:
        output.print_json(started)
    else:
        print(started["id"])


@group.command("delete")
def delete(name: Name, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Delete a schedule. One that code declares comes back with the next worker: pause it instead."""
    targets.with_app(targets.load_app_or_bare(app), lambda app: app.schedules.delete(name))
    if json:
        output.print_json({"name": name, "deleted": True})
    else:
        print(f"{name}\tdeleted")


@group.command("next")
def next_(
    name: Name,
    n: Annotated[int, typer.Option("-n", min=1, max=10_000, help="How many.")] = 5,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Print the next times a schedule ticks, by its own clock."""
    found = targets.with_app(targets.load_app_or_bare(app), lambda app: app.schedules.next(name, n))
    if json:
        output.print_json_lines({"name": name, "at": moment} for moment in found)
        return
    for moment in found:
        print(_clock(moment))


@group.command("backfill")
def backfill(
    name: Name,
    start: Annotated[str, typer.Option(help="From this moment, such as 2026-03-27 or 2026-03-27T12:00+01:00.")],
    end: Annotated[str, typer.Option(help="Up to, not with, this moment.")],
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Start the runs of all ticks of a past period, and print their ids.

    Moments without an offset are by the schedule's own clock. A tick whose run is still kept is not started again: it is named
    on stderr, and with --json its line says `"deduplicated": true`.
    """

    async def fill(app: Weft) -> list[dict[str, Any]]:
        info = await app.schedules.get(name)
        moments = (_moment(start, "--start", info.tz), _moment(end, "--end", info.tz))
        return [_filled(run, info) for run in await app.schedules.backfill(name, *moments)]

    found = targets.with_app(targets.load_app_or_bare(app), fill)
    if json:
        output.print_json_lines(found)
        return
    for one in found:
        if one["deduplicated"]:
            output.say(f"{_clock(one['tick'])} has a run already: {one['id']}")
        else:
            print(one["id"], flush=True)
    if not found:
        output.say("the schedule has no tick in that time")


def _filled(run: Run[Any], info: ScheduleInfo) -> dict[str, Any]:
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from weft.ids import tick_ms_of

    tick = datetime.fromtimestamp(tick_ms_of(run.id) / 1000, ZoneInfo(info.tz))
    return {"id": run.id, "run_id": run.id, "schedule": info.name, "tick": tick, "deduplicated": run.deduplicated}


def _act(given: str | None, json: bool, verb: Callable[[Weft], Awaitable[ScheduleInfo]]) -> None:
    _print(targets.with_app(targets.load_app_or_bare(given), verb), json=json)


def _print(info: ScheduleInfo, *, json: bool) -> None:
    if json:
        output.print_json(_document(info))
        return
    document = _document(info) | {"input": output.to_json(info.input) if info.input else None}
    output.print_fields(
        (field, _clock(value) if field.endswith("_at") else value or None)
        for field, value in document.items()
        if field != "id"
    )


def _document(info: ScheduleInfo) -> dict[str, Any]:
    return {"id": info.name, **{name: getattr(info, name) for name in info.__struct_fields__}}


def _source(info: ScheduleInfo) -> str:
    return "gone from code" if info.orphaned else info.source


def _clock(moment: datetime | None) -> str:
    """Returns a moment by the schedule's own clock, with its offset: what the expression talks about."""
    return moment.isoformat(sep=" ", timespec="seconds") if moment else ""


def _moment(text: str, option: str, tz: str) -> datetime:
    from datetime import datetime
    from zoneinfo import ZoneInfo

    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no moment, such as 2026-03-27T12:00", param_hint=option) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(tz))
