"""`weft enqueue`: starts a run of a task."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets

if TYPE_CHECKING:
    from weft.sdk.app import Weft
    from weft.sdk.run import Run
    from weft.sdk.task import Task


def enqueue(
    name: Annotated[str, typer.Argument(help="The task's name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Its arguments, read by their types.")
    ] = None,
    input: Annotated[str | None, typer.Option("--input", help="Arguments as a JSON object; - reads stdin.")] = None,
    queue: Annotated[str | None, typer.Option(help="Queue to put it in.")] = None,
    priority: Annotated[int | None, typer.Option(min=1, max=10, help="1 to 10, higher first.")] = None,
    delay: Annotated[str | None, typer.Option(help="Start it that much later, such as 10s.")] = None,
    eta: Annotated[str | None, typer.Option(metavar="TIME", help="Start it then; ISO 8601 with a time zone.")] = None,
    deadline: Annotated[str | None, typer.Option(help="Fail the run when it takes longer than this.")] = None,
    timeout: Annotated[str | None, typer.Option(help="Time limit of one attempt.")] = None,
    retries: Annotated[int | None, typer.Option(min=0, help="Further attempts after a failure.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key gives the same run.")] = None,
    durability: Annotated[
        str | None,
        typer.Option(help="Where it is kept before its id is printed: redis, replicated, fsync or committed."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A tag; may be repeated.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Wait: print its events, then its result.")] = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Start a run of a task and print its id.

    A value is read by its parameter's type: a=2 is a number for `a: int` and a text for `a: str`; lists, dicts and
    models are JSON. With --watch the exit code is 1 when the run fails.
    """
    from weft.cli.arguments import read_arguments

    loaded, _ = targets.load_app(app)
    task = find_task(loaded, name)
    given: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        "delay": delay,
        "eta": None if eta is None else read_moment(eta, "--eta"),
        "deadline": deadline,
        "timeout": timeout,
        "retries": retries,
        "idempotency_key": idempotency_key,
        "durability": durability,
        "tags": dict(read_tag(text) for text in tag) if tag else None,
    }
    bound = task.options(**{option: value for option, value in given.items() if value is not None})

    document = sys.stdin.read() if input == "-" else input
    args, kwargs = read_arguments(task, arguments or [], document)

    async def start(app: Weft) -> int:
        run = await bound.enqueue(*args, **kwargs)
        if json:
            told = await accepted(run)
            output.print_json_lines([told]) if watch else output.print_json(told)
        else:
            print(run.id, flush=True)
            if run.deduplicated:
                output.say(became(task, idempotency_key))
        return await _watch(app, run.id, task, queue, json=json) if watch else output.OK

    raise typer.Exit(targets.with_app(loaded, start))


async def accepted(run: Run[Any]) -> dict[str, Any]:
    """Returns what is said of a run that was asked for, with the durability that was acknowledged."""
    info = await run.info()
    said = {"status": info.status, "deduplicated": run.deduplicated, "durability": info.durability}
    return {"id": run.id, "run_id": run.id, **said}


def became(task: Task[Any, Any] | None, key: str | None) -> str:
    """Says what a call became that counts as one with another."""
    from weft.sdk.once import POLICIES

    if key is not None:
        return "this idempotency key was used before: that run is meant"
    if task is not None and task.uniqueness is not None and task.uniqueness.policy == POLICIES["drop"]:
        return "a call like it was made before: this one was dropped"
    return "a call like it was made before: that run is meant"


async def _watch(app: Weft, id: str, task: Task[Any, Any], queue: str | None, *, json: bool) -> int:
    from weft.cli.follow import follow
    from weft.engine.serving import serves

    queue = queue or task.spec.queue
    if not await serves(app.engine(), task.name, queue):
        output.say(f"no live worker serves {task.name} in queue {queue!r}; it waits until one does (weft worker)")
    return await follow(app, id, json=json)


def find_task(app: Weft, name: str) -> Task[Any, Any]:
    """Returns a task by its name; raises NotFound with what is there."""
    import difflib

    from weft.errors import NotFound

    task = app.find_task(name)
    if task is None:
        if name in app.graphs or name in app.workflows:
            kind = "graph" if name in app.graphs else "workflow"
            raise NotFound(
                f"{name!r} is a {kind} of app {app.name!r}, and a task is needed; `weft run {name}` starts it"
            )
        close = difflib.get_close_matches(name, app.tasks, n=1)
        hint = f": did you mean {close[0]}?" if close else "."
        known = ", ".join(sorted({task.signature.text for task in app.tasks.values()})) or "none"
        raise NotFound(f"app {app.name!r} has no task {name!r}{hint} Its tasks: {known}")
    return task


def read_moment(text: str, option: str) -> datetime:
    """Reads a moment as it is typed, such as 2026-12-24T08:00:00+01:00."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text[:60]!r} is not a time, such as 2026-12-24T08:00:00+01:00", param_hint=option
        ) from None
    if moment.utcoffset() is None:
        raise typer.BadParameter(
            f"{text[:60]!r} has no time zone, so it could be any of many moments: write"
            f" {moment.isoformat(timespec='minutes')}Z for UTC, or an offset such as +01:00",
            param_hint=option,
        )
    return moment


def read_tag(text: str) -> tuple[str, str]:
    """Reads `k=v`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not of the form name=value", param_hint="--tag")
    return name, value
