"""`weft runs`: lists, shows, follows, signals, pauses, reschedules and cancels runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.enqueue import read_tag
from weft.cli.filters import read_past

if TYPE_CHECKING:
    from weft.core.model import Event, LogLine, RunInfo
    from weft.engine.engine import Engine
    from weft.sdk.app import Weft

group = typer.Typer(
    help="List, show, follow, pause, reschedule, cancel, retry and fork runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

#: Events of a graph run that `show` prints: a map has very many.
SHOWN_EVENTS = 50

RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id.")]
After = Annotated[int, typer.Option("--after", min=0, help="Only events after this number.")]


@group.command("ls")
def ls(
    status: Annotated[
        str | None, typer.Option(help="queued, running, waiting, paused, completed, failed, cancelled.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="task, graph or workflow.")] = None,
    name: Annotated[str | None, typer.Option(help="Runs of this task, graph or workflow.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="K=V", help="Runs with this tag.")] = None,
    owner: Annotated[str | None, typer.Option(help="Runs whose tag `owner` is this.")] = None,
    queue: Annotated[str | None, typer.Option(help="Runs of this queue.")] = None,
    parent: Annotated[str | None, typer.Option(metavar="ID", help="Runs that this run has started.")] = None,
    error: Annotated[str | None, typer.Option(help="Failed with this error: its class, or its code.")] = None,
    text: Annotated[str | None, typer.Option(help="With this text in input, result or error.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Asked for since then: 2h ago as 2h, or an ISO time.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Asked for before then, likewise.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many at most; 100 unless you say otherwise.")
    ] = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Go on behind this run: the last one listed.")] = None,
    count: Annotated[
        str | None, typer.Option(metavar="BY", help="Only count them, by status, kind, name or queue.")
    ] = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """List runs, newest first.

    In a pipe the columns are: id, name, kind, status, queue, attempt, created, took, tags. `completed?` and the like: part
    of the run could not be archived, and this is how it stood before. A graph run has neither queue
    nor attempt of its own: its steps do. With --count they are: value, n.
    """
    filters: dict[str, Any] = {
        "status": status,
        "kind": kind,
        "name": name,
        "tag": None if tag is None else read_tag(tag),
        "owner": owner,
        "queue": queue,
        "parent": parent,
        "error": error,
        "text": text,
        "since": None if since is None else read_past(since, "--since"),
        "until": None if until is None else read_past(until, "--until"),
    }
    if count is not None:
        if limit is not None or after is not None:
            raise typer.BadParameter("all runs are counted: it takes neither --limit nor --after", param_hint="--count")
        return _count(app, count, filters, json=json)

    async def find(app: Weft) -> list[RunInfo]:
        return await app.runs.list(**filters, limit=limit or 100, after=after)

    found = targets.with_app(targets.load_app_or_bare(app), find)
    if json:
        output.print_json_lines(_document(info) for info in found)
        return
    output.print_table(
        ["id", "name", "kind", "status", "queue", "attempt", "created", "took", "tags"],
        [(i.id, i.name, i.kind, _status(i), *_place(i), i.created_at, _took(i), i.tags) for i in found],
        empty="no such runs",
        spare=["attempt", "kind", "queue"],
    )


def _count(app: str | None, by: str, filters: dict[str, Any], *, json: bool) -> None:
    counts = targets.with_app(targets.load_app_or_bare(app), lambda app: app.runs.count(by=by, **filters))
    if json:
        output.print_json(counts)
    else:
        output.print_table([by, "n"], list(counts.items()), empty="no such runs")


@group.command("show")
def show(id: RunId, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Show one run: status, timings, input, result or error, history; of a graph run also its nodes."""

    async def read(app: Weft) -> dict[str, Any]:
        return await _detail(app, id)

    found = targets.with_app(targets.load_app_or_bare(app), read)
    if json:
        output.print_json(found)
    else:
        _print_detail(found)


@group.command("watch")
def watch(id: RunId, after: After = 0, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Print a run's events as they happen, then its result; on a terminal a graph run is shown by its nodes.

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
    """Say why a run does not go on: the one constraint that binds it; of a graph run also for every open step.

    In a pipe the first line is for the run, then come the steps: step, reason, text.
    """
    found = targets.with_app(targets.load_app_or_bare(app), lambda app: app.runs.get(id).explain())
    if json:
        import msgspec

        output.print_json({"id": id, **msgspec.to_builtins(found)})
    else:
        output.show(found.text)
        rows = [(step.step, step.reason, step.text) for step in found.steps]
        output.print_table(["step", "reason", ""], rows)
        if len(found.steps) < found.open_steps:
            output.say(f"{found.open_steps - len(found.steps)} more steps are open")


@group.command("logs")
def logs(id: RunId, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Print what a run's steps logged: the last 100 lines, 16 KB at most.

    In a pipe the columns are: time, level, attempt, message, fields; of a graph run the first field is the step.
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
        fields = " ".join(
            [*([f"step={line.step}"] if line.step else []), *(f"{k}={v}" for k, v in line.fields.items())]
        )
        at = line.at.isoformat(timespec="milliseconds")
        output.show("\t".join([at, line.level, str(line.attempt), " ".join(line.message.split()), fields]).rstrip())


@group.command("signal")
def signal(
    id: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal's name.")],
    value: Annotated[str, typer.Argument(metavar="JSON", help="Its value; - reads stdin.")] = "null",
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="A repeated call with the same one answers the same.")
    ] = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Give a run of a graph or workflow a signal. Exit code 5 when the run has ended."""
    from weft.cli.approvals import read_json
    from weft.codec import decode_plain
    from weft.sdk.graphrun import GraphRun

    sent = read_json(value, "JSON")

    async def send(app: Weft) -> bool:
        return await GraphRun(app, id, decode_plain).signal(name, sent, request_id=request_id)

    given = targets.with_app(targets.load_app_or_bare(app), send)
    if json:
        output.print_json({"id": id, "run_id": id, "name": name, "status": "given" if given else "kept"})
    else:
        print(f"{id}\t{'given' if given else 'kept'}")


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


@group.command("pause")
def pause(
    id: RunId,
    reason: Annotated[str, typer.Option(help="Why; kept with the run.")] = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Pause a graph run: running steps finish, nothing else begins. Exit code 5 when it had ended."""
    from weft.engine import pauses

    _steer(id, app, json, lambda engine, by: pauses.pause(engine, id, reason=reason, by=by))


@group.command("resume")
def resume(id: RunId, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Let a paused graph run go on. Exit code 5 when it had ended."""
    from weft.engine import pauses

    _steer(id, app, json, lambda engine, by: pauses.resume(engine, id, by=by))


@group.command("retry")
def retry(
    id: RunId,
    from_step: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="STEP", help="Also this step, and all behind it.", envvar="WEFT_RUNS_RETRY_FROM"
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; kept with the run.")] = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Try a failed or cancelled run of a graph or workflow again: what failed runs anew, finished results are kept.

    A graph run goes on itself; in a pipe the lines are the nodes that run anew. Of a workflow run a new one goes on, with the
    app's code; its id is printed. Exit code 5 when it is open or has completed.
    """
    import getpass

    async def reopen(app: Weft) -> tuple[str, list[str]]:
        from weft.sdk.retrying import retry_any

        with targets.aside():
            return await retry_any(app, id, from_step, reason=reason, by=f"cli:{getpass.getuser()}")

    goes_on, again = targets.with_app(targets.load_app_or_bare(app), reopen)
    if json:
        more = {"again": again} if goes_on == id else {"replay_of": id}
        output.print_json({"id": goes_on, "run_id": goes_on, **more})
    else:
        print("\n".join(again) if goes_on == id else goes_on)


@group.command("fork")
def fork(
    id: RunId,
    from_step: Annotated[
        str, typer.Option("--from", metavar="STEP", help="The step it begins with.", envvar="WEFT_RUNS_FORK_FROM")
    ],
    input: Annotated[
        str | None, typer.Option(metavar="JSON", help="Another input, - reads stdin; the same as before by default.")
    ] = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Start a new run of a graph that shares what another finished before a step. Prints its id."""
    import getpass

    from weft.cli.approvals import read_json
    from weft.engine import retries

    value = None if input is None else read_json(input, "--input")

    async def begin(app: Weft) -> str:
        by = f"cli:{getpass.getuser()}"
        started = await retries.fork(
            app.engine(), id, from_step=from_step, input=value, new_input=input is not None, by=by
        )
        return started.id

    new = targets.with_app(targets.load_app_or_bare(app), begin)
    if json:
        output.print_json({"id": new, "run_id": new, "replay_of": id})
    else:
        print(new)


def _steer(id: str, app: str | None, json: bool, verb: Callable[[Engine, str], Awaitable[bool]]) -> None:
    """Does something to a run that only an open one lets be done to it."""
    import getpass

    async def steer(app: Weft) -> tuple[bool, str]:
        done = await verb(app.engine(), f"cli:{getpass.getuser()}")
        return done, await app.runs.get(id).status()

    done, status = targets.with_app(targets.load_app_or_bare(app), steer)
    if json:
        output.print_json({"id": id, "run_id": id, "status": status})
    elif done:
        print(f"{id}\t{status}")
    if not done:
        output.say(f"weft: run {id} had already {status}")
        raise typer.Exit(output.CONFLICT)


async def _detail(app: Weft, id: str) -> dict[str, Any]:
    """Reads everything that is kept of a run; what is no longer kept is None, with the reason under `notes`."""
    from weft.codec import decode_plain
    from weft.engine import graphview
    from weft.engine import runs as verbs
    from weft.errors import HistoryExpired, ResultExpired

    engine, run = app.engine(), app.runs.get(id)
    row = await verbs.find(engine, id)
    detail = {**_document(await run.info()), "input": None, "result": None, "history": None, "notes": []}
    detail["awaits"] = row.text("awaits") if row.open and not row.token else ""
    # Of one that is pinned it matters whether anybody has its version.
    pinned = row.open and row.spec.version
    detail["explained"] = (await run.explain()).text if pinned else ""
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
    if row.spec.definition:
        detail |= await graphview.graph_of(engine, id)
    return detail


def _document(info: RunInfo) -> dict[str, Any]:
    import msgspec

    fields = {name: getattr(info, name) for name in info.__struct_fields__}
    took = _seconds(info)
    return {"id": info.id, "run_id": info.id, **fields, "took": took, "error": msgspec.to_builtins(info.error)}


def _print_detail(run: dict[str, Any]) -> None:
    from weft.cli.follow import print_event

    error = run["error"] or {}
    is_over, is_graph = run["finished_at"] is not None, run["kind"] == "graph"
    output.print_fields(
        [
            ("id", run["id"]),
            ("name", run["name"]),
            ("kind", run["kind"] if run["kind"] != "task" else None),
            ("status", str(run["status"])),
            ("revision", run["revision"] if is_graph else None),
            ("queue", f"{run['queue']} (priority {run['priority']})" if not is_graph else None),
            ("attempt", run["attempt"] if not is_graph else None),
            ("delivery", run["delivery"] if not is_graph else None),
            ("crashes", run["crashes"] or None),
            ("created", run["created_at"]),
            ("started", run["started_at"]),
            ("due", run["due_at"]),
            ("deadline", run["deadline_at"]),
            ("finished", run["finished_at"]),
            ("took", f"{run['took']:.3f} s" if run["took"] is not None else None),
            ("progress", f"{run['progress']:.0%} {run['message']}".strip() if run["progress"] is not None else None),
            ("awaits", run["awaits"] or None),
            ("version", run["version"] or None),
            ("explained", run["explained"] if run["explained"] and not run["awaits"] else None),
            ("state", output.to_json(run["state"]) if run["state"] else None),
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
        output.show(f"\n{error['traceback'].rstrip()}")
    if is_graph:
        print()
        headers = ["node", "type", "status", "attempt", "took", "about"]
        output.print_table(headers, [_node_row(id, node) for id, node in run["nodes"].items()])
    if run["history"]:
        print()
    events = run["history"] or []
    if is_graph and len(events) > SHOWN_EVENTS:
        output.say(f"{len(events) - SHOWN_EVENTS} older events are left out: weft runs events {run['id']}")
        events = events[-SHOWN_EVENTS:]
    for event in events:
        print_event(event, json=False)
    for note in run["notes"]:
        output.say(f"note: {note}")


def _node_row(id: str, node: dict[str, Any]) -> tuple[object, ...]:
    from weft.cli.tree import about_node, took_ms
    from weft.clock import format_duration

    ms = took_ms(node)
    return (
        id, node["type"], node["status"], node.get("attempt", ""), format_duration(ms) if ms else "", about_node(node),
    )  # fmt: skip


def _status(info: RunInfo) -> str:
    return f"{info.status}?" if info.gap else str(info.status)


def _place(info: RunInfo) -> tuple[object, object]:
    return ("", "") if info.kind == "graph" else (info.queue, info.attempt)


def _seconds(info: RunInfo) -> float | None:
    """Returns how long the newest attempt took, or the whole run: of a workflow, or of one that never began."""
    # A workflow is begun anew whenever it goes on.
    began = info.created_at if info.kind == "workflow" else info.started_at or info.created_at
    return None if info.finished_at is None else round((info.finished_at - began).total_seconds(), 3)


def _took(info: RunInfo) -> str:
    from weft.clock import format_duration

    seconds = _seconds(info)
    return "" if seconds is None else format_duration(max(0, round(seconds * 1000)))
