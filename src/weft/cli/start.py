"""`weft run`: starts a graph, a workflow or a task by its name, and shows how it goes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.enqueue import accepted, became, find_task, read_tag
from weft.errors import InvalidOption

if TYPE_CHECKING:
    from weft.sdk.app import Weft
    from weft.sdk.run import Run


def run(
    name: Annotated[str, typer.Argument(help="The graph's, workflow's or task's name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Fields of its input, or arguments.")
    ] = None,
    input: Annotated[str | None, typer.Option("--input", help="Its input as JSON; - reads stdin.")] = None,
    deadline: Annotated[str | None, typer.Option(help="Fail the run when it takes longer than this.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key gives the same run.")] = None,
    durability: Annotated[
        str | None,
        typer.Option(help="Where it is kept before its id is printed: redis, replicated, fsync or committed."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A tag; may be repeated.")] = None,
    version: Annotated[
        str | None,
        typer.Option(
            help="Of a graph: the version to start, by a tag, a version or a digest. Of a workflow: the version that the run"
            " keeps to, or pin for the one at hand."
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Wait: show how it goes, then its result.")] = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Start a graph, a workflow or a task by its name and print the run's id.

    A value is JSON, or a text where it is none: n=2 is a number, city=Paris a text. With --watch a terminal shows the
    nodes as they go, a pipe one line per event; the exit code is 1 when the run fails.
    """
    loaded, _ = targets.load_app(app)
    given: dict[str, Any] = {
        "deadline": deadline,
        "idempotency_key": idempotency_key,
        "durability": durability,
        "tags": dict(read_tag(text) for text in tag) if tag else None,
    }
    options = {option: value for option, value in given.items() if value is not None}
    document = sys.stdin.read() if input == "-" else input

    async def start(app: Weft) -> int:
        started = await _start(app, name, arguments or [], document, options, version)
        if json:
            told = await accepted(started)
            output.print_json_lines([told]) if watch else output.print_json(told)
        else:
            print(started.id, flush=True)
            if started.deduplicated:
                output.say(became(app.find_task(name), idempotency_key))
        return await _watch(app, started, json=json) if watch else output.OK

    raise typer.Exit(targets.with_app(loaded, start))


async def _start(
    app: Weft, name: str, words: list[str], document: str | None, options: dict[str, Any], version: str | None
) -> Run[Any]:
    from weft.cli.arguments import read_arguments, read_input

    if version is not None and name in app.workflows and name not in app.graphs:
        options, version = {**options, "version": version}, None
    if version is not None:
        if name in app.tasks:
            raise InvalidOption(f"--version is for graphs and workflows, and {name} is a task", option="version")
        found = await app.definitions.get(name, version)
        schema = (found.document or {}).get("input")
        return await app.definitions.start(name, found.digest, read_input(schema, words, document), **options)
    graph = app.graphs.get(name)
    if graph is not None:
        return await graph.options(**options).start(read_input(graph.spec.input, words, document))
    workflow = app.workflows.get(name)
    if workflow is not None:
        args, kwargs = read_arguments(workflow, words, document)
        return await workflow.options(**options).start(*args, **kwargs)
    if name not in app.tasks:
        raise _unknown(app, name)
    task = find_task(app, name)
    args, kwargs = read_arguments(task, words, document)
    return await task.options(**options).enqueue(*args, **kwargs)


def _unknown(app: Weft, name: str) -> Exception:
    from weft.core.graph.problems import similar
    from weft.errors import NotFound

    known = {"graphs": sorted(app.graphs), "tasks": sorted({task.name for task in app.tasks.values()})}
    if app.workflows:
        known["workflows"] = sorted(app.workflows)
    told = "; ".join(f"its {what}: {', '.join(names) or 'none'}" for what, names in known.items())
    return NotFound(
        f"app {app.name!r} has no graph or task {name!r}{similar(name, [*app.graphs, *app.tasks, *app.workflows])}; {told}"
    )


async def _watch(app: Weft, started: Run[Any], *, json: bool) -> int:
    from weft.cli.follow import follow

    found = await started.explain()
    if found.reason == "no_worker" and not (found.step and sys.stdout.isatty() and not json):
        output.say(f"{found.text}; it waits until one does (weft worker)")
    return await follow(app, started.id, json=json)
