"""`weft queues`, `weft workers`, `weft strike` and `weft unstrike`: how work flows, and what an operator may decide."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets

if TYPE_CHECKING:
    from weft.engine.queues import QueueInfo, WorkerInfo
    from weft.sdk.app import Weft

group = typer.Typer(help="List, pause, resume and limit queues.", no_args_is_help=True, rich_markup_mode=None)
workers = typer.Typer(help="List workers.", no_args_is_help=True, rich_markup_mode=None)

HEADERS = ["queue", "ready", "running", "held", "oldest", "per second", "workers", "slots", "paused", "limits"]
WORKER_HEADERS = ["id", "state", "app", "host", "pid", "running", "concurrency", "queues", "since"]

#: Columns that a narrow terminal does without.
SPARE = ["slots", "workers"]
WORKER_SPARE = ["concurrency", "host", "app"]

Name = Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="The queue; or --task.", show_default=False)]
TaskOption = Annotated[str | None, typer.Option("--task", metavar="NAME", help="A task instead of a queue.")]
Reason = Annotated[str, typer.Option(help="Why; shown to whoever asks why a run waits.")]


@group.command("ls")
def ls(
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Print Prometheus' text format.")] = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """List queues: steps that are ready, running and held, age of the oldest that is ready, steps done per second.

    In a pipe the columns are: queue, ready, running, held, oldest, per second, workers, slots, paused, limits.
    """
    loaded = targets.load_app_or_bare(app)
    if prometheus:
        print(targets.with_app(loaded, lambda app: app.queues.metrics()), end="")
        return
    found = targets.with_app(loaded, lambda app: app.queues.list())
    if json:
        output.print_json_lines(document(info) for info in found)
        return
    output.print_table(HEADERS, [row(info) for info in found], empty="no queue was ever used", spare=SPARE)


def document(info: QueueInfo) -> dict[str, Any]:
    import msgspec

    return {**msgspec.to_builtins(info), "depth": info.depth}


def row(info: QueueInfo) -> tuple[object, ...]:
    from weft.clock import format_duration

    oldest = format_duration(int(info.oldest_age * 1000)) if info.oldest_age else ""
    paused = "paused" if info.paused else ""
    return (
        info.name, info.ready, info.running, info.held, oldest, info.throughput, info.workers, info.slots, paused,
        info.limits,
    )  # fmt: skip


@group.command("pause")
def pause(
    queue: Name = None,
    task: TaskOption = None,
    reason: Reason = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Pause a queue or a task: nothing of it is started until it is resumed; what runs goes on."""
    _decide(app, json, queue, task, "paused", lambda a: a.controls.pause(queue=queue, task=task, reason=reason))


@group.command("resume")
def resume(
    queue: Name = None, task: TaskOption = None, app: targets.AppOption = None, json: output.Json = False
) -> None:
    """Let a paused queue or task go on."""
    _decide(app, json, queue, task, "resumed", lambda a: a.controls.resume(queue=queue, task=task))


@group.command("limit")
def limit(
    queue: Name = None,
    task: TaskOption = None,
    concurrency: Annotated[int | None, typer.Option(help="Steps that may run at once.")] = None,
    per_key: Annotated[
        int | None, typer.Option(help="Steps of one concurrency key that may run at once (a task's).")
    ] = None,
    rate: Annotated[str | None, typer.Option(help='Steps per time, such as "100/m".')] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Lift what was set; the definition's limits hold again.")
    ] = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Limit a queue or a task while it runs; overrules the definition, takes effect at once."""
    if clear:
        if (concurrency, per_key, rate) != (None, None, None):
            raise typer.BadParameter(
                "--clear lifts all limits: it goes with none of --concurrency, --per-key and --rate"
            )
        _decide(app, json, queue, task, "unlimited", lambda a: a.controls.unlimit(queue=queue, task=task))
        return

    async def set_limits(loaded: Weft) -> bool:
        return await loaded.controls.limit(queue=queue, task=task, concurrency=concurrency, per_key=per_key, rate=rate)

    _decide(app, json, queue, task, "limited", set_limits)


def _decide(app: str | None, json: bool, queue: str | None, task: str | None, word: str, decide: Any) -> None:
    if (queue is None) == (task is None):
        raise typer.BadParameter("name one thing: a queue, or a task by --task")

    async def act(loaded: Weft) -> tuple[bool, bool]:
        changed = await decide(loaded)
        if queue is None or any(each.spec.queue == queue for each in loaded.tasks.values()):
            return changed, True
        return changed, any(each.name == queue for each in await loaded.queues.list(sample=0))

    changed, known = targets.with_app(targets.load_app_or_bare(app), act)
    what = f"task {task}" if task else f"queue {queue}"
    if json:
        output.print_json({"queue": queue, "task": task, "state": word, "changed": changed})
    else:
        print(f"{what}\t{word}")
    if not changed:
        output.say(f"weft: {what} was already so: nothing changed")
    elif not known:
        # Allowed, for it holds for what will come; but whoever stops a queue in a hurry should see that it is another one.
        output.say(f"weft: no queue {queue} is in use: nothing was ever put in it, and no worker serves it")


@group.command("controls")
def controls(app: targets.AppOption = None, json: output.Json = False) -> None:
    """List everything operators have set: pauses, limits, strikes.

    In a pipe the columns are: kind, what, value, since, by, reason, id. The id of a strike is what `weft unstrike` takes.
    """
    found = targets.with_app(targets.load_app_or_bare(app), lambda app: app.controls.list())
    if json:
        output.print_json_lines(found)
        return
    headers = ["kind", "what", "value", "since", "by", "reason", "id"]
    output.print_table(headers, [_control_row(each) for each in found], empty="nothing is set")


def _control_row(entry: dict[str, Any]) -> tuple[object, ...]:
    value = f"{entry['limit']} {entry['value']}" if entry["kind"] == "limit" else ""
    if entry["kind"] == "strike":
        value = entry["where"] or "every call"
    since = datetime.fromtimestamp(entry["at_ms"] / 1000, UTC) if entry.get("at_ms") else ""
    return (
        entry["kind"],
        entry["what"],
        value,
        since,
        entry.get("by", ""),
        entry.get("reason", ""),
        entry.get("id", ""),
    )


@workers.command("ls")
def ls_workers(app: targets.AppOption = None, json: output.Json = False) -> None:
    """List worker sessions, the oldest first.

    In a pipe the columns are: id, state, app, host, pid, running, concurrency, queues, since.
    """
    found = targets.with_app(targets.load_app_or_bare(app), lambda app: app.workers.list())
    if json:
        import msgspec

        output.print_json_lines(msgspec.to_builtins(worker) for worker in found)
        return
    output.print_table(
        WORKER_HEADERS, [worker_row(worker) for worker in found], empty="no worker is up", spare=WORKER_SPARE
    )


def worker_row(worker: WorkerInfo) -> tuple[object, ...]:
    state = "alive" if worker.alive else "silent"
    queues = ",".join(worker.queues)
    return (
        worker.id, state, worker.app, worker.host, worker.pid, worker.running, worker.concurrency, queues,
        worker.started_at,
    )  # fmt: skip


def strike(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task.")],
    where: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Only calls with these arguments.")
    ] = None,
    reason: Reason = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Keep a task, or its calls with certain argument values, from being started. Prints the strike's id.

    `weft queues controls` lists strikes, `weft unstrike ID` lifts one.
    """
    values: dict[str, Any] = {}
    for pair in where or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{pair!r} is not of the form KEY=VALUE")
        values[key] = value
    loaded = targets.load_app_or_bare(app)
    id = targets.with_app(loaded, lambda app: app.controls.strike(task, values, reason=reason))
    if json:
        output.print_json({"id": id, "task": task, "where": values})
    else:
        print(id)


def unstrike(
    id: Annotated[str, typer.Argument(metavar="ID", help="The strike's id.")],
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Lift a strike; what it held goes on."""
    targets.with_app(targets.load_app_or_bare(app), lambda app: app.controls.unstrike(id))
    if json:
        output.print_json({"id": id, "state": "lifted"})
    else:
        print(f"{id}\tlifted")
