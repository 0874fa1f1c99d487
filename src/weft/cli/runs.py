"""`weft runs`: lists, shows, follows, reschedules and cancels runs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.enqueue import read_moment, read_tag

if TYPE_CHECKING:
    from weft.core.model import Event, LogLine, RunInfo
    from weft.sdk.app import Weft

group = typer.Typer(help="List, show, follow, reschedule and cancel runs.", no_args_is_help=True, rich_markup_mode=None)

RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id.")]
After = Annotated[int, typer.Option("--after", min=0, help="Only events after this number.")]


@group.command("ls")
def ls(
    status: Annotated[str | None, typer.Option(help="queued, running, waiting, completed, failed, cancelled.")] = None,
    name: Annotated[str | None, typer.Option(help="Runs of this task.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="K=V", help="Runs with this tag.")] = None,
    queue: Annotated[str | None, typer.Option(help="Runs of this queue.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Go on behind this run: the last one listed.")] = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """List runs, newest first.

    In a pipe the columns are: id, name, status, queue, attempt, created, took, tags.
    """
    wanted = read_tag(tag) if tag else None

    async def find(app: Weft) -> list[RunInfo]:
        return await app.runs.list(status=status, name=name, tag=wanted, queue=queue, limit=limit, after=after)

    found = targets.with_app(targets.load_app_or_bare(app), find)
    if json:
        output.print_json_lines(_document(info) for info in found)
        return
    output.print_table(
        ["id", "name", "status", "queue", "attempt", "created", "took", "tags"],
        [(i.id, i.name, i.status, i.queue, i.attempt, i.created_at, _took(i), i.tags) for i in found],
        empty="no such runs",
    )


@group.command("show")
def show(id: RunId, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Show one run: status, timings, input, result or error, history."""

    async def read(app: Weft) -> dict[str, Any]:
        return await _detail(app, id)

    found = targets.with_app(targets.load_app_or_bare(app), read)
    if json:
        output.print_json(found)
    else:
        _print_detail(found)


@group.command("watch")
def watch(id: RunId, after: After = 0, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Print a run's events as they happen, then its result.

    The exit code is 1 when it failed or was cancelled.
    """
    from weft.cli.follow import follow

    loaded = targets.load_app_or_bare(app)
    raise typer.Exit(targets.with_app(loaded, lambda app: follow(app, id, after=after, json=json)))


@group.command("events")
def events(id: RunId, after: After = 0, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Print the events of a run so far."""
    from weft.cli.follow import print_event

    async def read(app: Weft) -> list[Event]:
        return await app.runs.get(id).history()

    for event in targets.with_app(targets.load_app_or_bare(app), read):
        if event.seq > after:
            print_event(event, json=json)


@group.command("explain")
def explain(id: RunId, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Say why a run does not go on: the one constraint that binds it."""
    found = targets.with_app(targets.load_app_or_bare(app), lambda app: app.runs.get(id).explain())
    if json:
        import msgspec

        output.print_json({"id": id, **msgspec.to_builtins(found)})
    else:
        print(found.text)


@group.command("logs")
def logs(id: RunId, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Print what a run's steps logged: the last 100 lines, 16 KB at most.

    In a pipe the columns are: time, level, attempt, message, fields.
    """

    async def read(app: Weft) -> list[LogLine]:
        return await app.runs.get(id).logs()

    lines = targets.with_app(targets.load_app_or_bare(app), read)
    if json:
        output.print_json_lines(lines)
        return
    if lines and lines[0].dropped:
        output.say(f"{lines[0].dropped} older lines are no longer kept")
    for line in lines:
        fields = " ".join(f"{name}={value}" for name, value in line.fields.items())
        at = line.at.isoformat(timespec="milliseconds")
        print("\t".join([at, line.level, str(line.attempt), " ".join(line.message.split()), fields]).rstrip())


@group.command("cancel")
def cancel(
    id: RunId,
    reason: Annotated[str, typer.Option(help="Why; kept with the run.")] = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Cancel a run; a running step is stopped. Exit code 5 when it had already ended otherwise."""
    import getpass

    from weft.engine import runs as verbs

    async def end(app: Weft) -> tuple[bool, str]:
        ended = await verbs.cancel(app.engine(), id, reason=reason, by=f"cli:{getpass.getuser()}")
        return ended, await app.runs.get(id).status()

    cancelled, status = targets.with_app(targets.load_app_or_bare(app), end)
    if json:
        output.print_json({"id": id, "run_id": id, "status": status, "cancelled": cancelled})
    elif cancelled:
        print(f"{id}\t{status}")
    if not cancelled:
        output.say(f"weft: run {id} had already {status}")
        raise typer.Exit(output.CONFLICT)


@group.command("reschedule")
def reschedule(
    id: RunId,
    delay: Annotated[str | None, typer.Option(help="Go on that much later from now, such as 5m; 0: now.")] = None,
    eta: Annotated[str | None, typer.Option(metavar="TIME", help="Go on then; ISO 8601 with a time zone.")] = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Change when a run that waits for its delay, snooze or back-off goes on. Exit code 5 when it waits for none."""
    moment = read_moment(eta, "--eta") if eta else None

    async def move(app: Weft) -> datetime:
        return await app.runs.get(id).reschedule(delay=delay, eta=moment)

    due = targets.with_app(targets.load_app_or_bare(app), move)
    if json:
        output.print_json({"id": id, "run_id": id, "due_at": due})
    else:
        output.print_table(["id", "due"], [(id, due)])


async def _detail(app: Weft, id: str) -> dict[str, Any]:
    """Reads everything that is kept of a run; what is no longer kept is None, with the reason under `notes`."""
    from weft.codec import decode_plain
    from weft.engine import runs as verbs
    from weft.errors import HistoryExpired, ResultExpired

    engine, run = app.engine(), app.runs.get(id)
    row = await verbs.find(engine, id)
    detail = {**_document(await run.info()), "input": None, "result": None, "history": None, "notes": []}
    try:
        data = await verbs.input_of(engine, row)
        detail["input"] = decode_plain(data) if data else {}
    except ResultExpired as error:
        detail["notes"].append(error.message)
    try:
        if "result" in row.fields:
            detail["result"] = decode_plain(await verbs.result_bytes(engine, id, row.fields["result"]))
    except ResultExpired as error:
        detail["notes"].append(error.message)
    try:
        detail["history"] = await run.history()
    except HistoryExpired as error:
        detail["notes"].append(error.message)
    return detail


def _document(info: RunInfo) -> dict[str, Any]:
    import msgspec

    fields = {name: getattr(info, name) for name in info.__struct_fields__}
    took = _seconds(info)
    return {"id": info.id, "run_id": info.id, **fields, "took": took, "error": msgspec.to_builtins(info.error)}


def _print_detail(run: dict[str, Any]) -> None:
    from weft.cli.follow import print_event

    error = run["error"] or {}
    is_over = run["finished_at"] is not None
    output.print_fields(
        [
            ("id", run["id"]),
            ("name", run["name"]),
            ("status", str(run["status"])),
            ("queue", f"{run['queue']} (priority {run['priority']})"),
            ("attempt", run["attempt"]),
            ("delivery", run["delivery"]),
            ("crashes", run["crashes"] or None),
            ("created", run["created_at"]),
            ("started", run["started_at"]),
            ("due", run["due_at"]),
            ("deadline", run["deadline_at"]),
            ("finished", run["finished_at"]),
            ("took", f"{run['took']:.3f} s" if run["took"] is not None else None),
            ("progress", f"{run['progress']:.0%} {run['message']}".strip() if run["progress"] is not None else None),
            ("worker", run["worker"]),
            ("tags", run["tags"]),
            ("key", run["idempotency_key"]),
            ("durability", run["durability"]),
            ("replay of", run["replay_of"]),
            ("replayed as", run["replayed_as"]),
            ("input", output.to_json(run["input"]) if run["input"] is not None else None),
            ("result", output.to_json(run["result"]) if str(run["status"]) == "completed" else None),
            ("error" if is_over else "last error", f"{error['type']}: {error['message']}" if error else None),
        ]
    )
    if error.get("traceback"):
        print(f"\n{error['traceback'].rstrip()}")
    if run["history"]:
        print()
    for event in run["history"] or ():
        print_event(event, json=False)
    for note in run["notes"]:
        output.say(f"note: {note}")


def _seconds(info: RunInfo) -> float | None:
    """Returns how long the newest attempt took, or the whole run when it never began."""
    if info.finished_at is None:
        return None
    return round((info.finished_at - (info.started_at or info.created_at)).total_seconds(), 3)


def _took(info: RunInfo) -> str:
    from weft.clock import format_duration

    seconds = _seconds(info)
    return "" if seconds is None else format_duration(max(0, round(seconds * 1000)))
