"""`weft status`: publishes and shows the status of work that runs elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets

if TYPE_CHECKING:
    from weft.core.status import Observation

group = typer.Typer(
    help="Publish and show the status of work that runs elsewhere.", no_args_is_help=True, rich_markup_mode=None
)

Task = Annotated[str, typer.Argument(metavar="TASK", help="The task's id, as its own system has it.")]
Limit = Annotated[int, typer.Option("-n", "--limit", min=1, max=1000, help="How many at most.")]


@group.command("publish")
def publish(
    task: Task,
    status: Annotated[str, typer.Argument(help="How it stands, in a word of your own.")],
    words: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="What else is known of it.")] = None,
    meta: Annotated[str | None, typer.Option(help="The same as a JSON object.")] = None,
    event_id: Annotated[str | None, typer.Option(help="Makes the same event count once.")] = None,
    parent: Annotated[str | None, typer.Option(help="The task it belongs to.")] = None,
    source: Annotated[str, typer.Option(help="Who says so.")] = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Publish how a task stands. Exit code 5 when its event id or its parent contradicts what is known."""
    said = _read_meta(words or [], meta)
    seen = targets.with_app(
        targets.load_app_or_bare(app),
        lambda app: app.status.publish(task, status, said, event_id, parent_id=parent, source=source),
    )
    _print(seen, json=json)


@group.command("show")
def show(task: Task, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Show how a task stands."""
    _print(targets.with_app(targets.load_app_or_bare(app), lambda app: app.status.latest(task)), json=json)


@group.command("history")
def history(
    task: Task,
    limit: Limit = 20,
    before: Annotated[str | None, typer.Option(help="Only what is older than the observation of this id.")] = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """List what was observed of a task, the newest first.

    In a pipe the columns are: time, task, status, source, parent, event id, meta as JSON.
    """
    found = targets.with_app(
        targets.load_app_or_bare(app), lambda app: app.status.history(task, limit=limit, before=before)
    )
    _print_all(found, json=json, empty=f"nothing was published about {task!r}")


@group.command("children")
def children(task: Task, limit: Limit = 100, app: targets.AppOption = None, json: output.Json = False) -> None:
    """List how the children of a task stand. Columns as in `weft status history`."""
    found = targets.with_app(targets.load_app_or_bare(app), lambda app: app.status.children(task, limit=limit))
    _print_all(found, json=json, empty=f"{task!r} has no children")


@group.command("feed")
def feed(
    after: Annotated[str | None, typer.Option(help="The cursor that an earlier call ended with; $ for now.")] = None,
    limit: Limit = 100,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """List what was observed of all tasks, the oldest first; the cursor to go on from is said at the end.

    With --json the last line is {"cursor": …}. Columns as in `weft status history`.
    """
    page = targets.with_app(targets.load_app_or_bare(app), lambda app: app.status.feed(after=after, limit=limit))
    _print_all(page.observations, json=json, empty="")
    if json:
        output.print_json({"cursor": page.cursor})
    else:
        output.say(f"go on with --after {page.cursor}")


def _read_meta(words: list[str], document: str | None) -> Any:
    from weft.cli.arguments import read_input
    from weft.errors import InvalidArguments

    try:
        return read_input(None, words, document)
    except InvalidArguments as error:
        raise InvalidArguments(error.message.replace("--input", "--meta")) from error


def _print(seen: Observation, *, json: bool) -> None:
    document = _document(seen)
    if json:
        output.print_json(document)
        return
    output.print_fields(
        (name, output.to_json(value) if name == "meta" and value else value)
        for name, value in document.items()
        if name != "deduplicated" or value
    )


def _print_all(found: list[Observation], *, json: bool, empty: str) -> None:
    if json:
        output.print_json_lines(_document(seen) for seen in found)
        return
    output.print_table(
        ["at", "task", "status", "source", "parent", "event", "meta"],
        [
            (s.at, s.task_id, s.status, s.source, s.parent_id, s.event_id, output.to_json(s.meta) if s.meta else "")
            for s in found
        ],
        empty=empty,
    )


def _document(seen: Observation) -> dict[str, Any]:
    return {name: getattr(seen, name) for name in seen.__struct_fields__}
