"""`weft graph`: checks graph files, draws graphs (no store is opened for that), and patches the definition of one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets

if TYPE_CHECKING:
    from weft.core.graph.compile import Plan
    from weft.core.graph.model import GraphSpec
    from weft.sdk.app import Weft

group = typer.Typer(help="Check, draw and patch graphs.", no_args_is_help=True, rich_markup_mode=None)


@group.command("validate")
def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="YAML files with graphs.")],
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Print all problems of graph files, each with its line and column; exit code 1 when there are some.

    Where an app is named, its tasks and graphs must be there, and arguments are checked against their signatures. In a pipe,
    lines are `FILE:LINE:COLUMN: message [code]`.
    """
    import msgspec

    from weft.core.graph.problems import MAX_PROBLEMS
    from weft.errors import NotFound
    from weft.sdk.files import check_file
    from weft.sdk.fitting import check_fit

    loaded = _app_if_any(app)
    unread: list[NotFound] = []
    specs: dict[str, GraphSpec] = {}
    for file in list(files):
        try:
            # Graphs of these files may run each other, whether the app has loaded them or not.
            specs |= {one.spec.name: one.spec for one in check_file(file) if one.spec}
        except NotFound as error:
            files.remove(file)
            unread.append(error)
    fit = check_fit(loaded, specs)
    n_problems = 0
    for file in files:
        for checked in check_file(file, loaded.find_shape if loaded else None, fit):
            name = checked.spec.name if checked.spec else ""
            stopped = len(checked.problems) >= MAX_PROBLEMS
            for problem in checked.problems:
                n_problems += 1
                if json:
                    output.print_json_lines([{"file": file, "graph": name, **msgspec.structs.asdict(problem)}])
                else:
                    print(f"{file}:{problem.line or 1}:{problem.column or 1}: {problem.message} [{problem.code}]")
            if stopped:
                output.say(f"{file}: these are the first {MAX_PROBLEMS} of a graph; there may be more")
            if checked.spec and not checked.problems:
                output.say(f"{file}: {name}: ok, {len(checked.spec.nodes)} nodes")
                _note_unbuilt(checked.spec)
    if n_problems:
        output.say(f"{n_problems} {'problem' if n_problems == 1 else 'problems'}")
    if unread:
        raise NotFound("; ".join(error.message for error in unread))
    if n_problems:
        raise typer.Exit(output.FAILED)


@group.command("show")
def show(
    what: Annotated[str, typer.Argument(metavar="FILE|NAME", help="A file with graphs, or a graph of the app.")],
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Draw graphs: as text, as a Mermaid flowchart, or as their JSON definition."""
    from weft.core.graph.drawing import draw
    from weft.core.graph.mermaid import to_mermaid
    from weft.core.graph.model import to_document

    plans = _plans(what, app)
    for i, plan in enumerate(plans):
        if json:
            output.print_json(to_document(plan.spec))
            continue
        if i:
            print()
        print(to_mermaid(plan).rstrip() if mermaid else draw(plan))


@group.command("patch")
def patch(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="RFC 6902 operations as a JSON list; - reads them from stdin.")
    ] = None,
    author: Annotated[str, typer.Option(help="Who wants it; default: cli:<os user>.")] = "",
    reason: Annotated[str, typer.Option(help="Why; kept with the run.")] = "",
    revision: Annotated[int | None, typer.Option(metavar="N", help="Only if the run is at this revision.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what it would change.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Go back to the definition before the last patch.")] = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Change the definition of one run while it goes on. Exit code 5 for what has begun, or when another patch came first.

    In a pipe the lines are: revision, added, removed, changed, rerouted, reached.
    """
    import getpass

    from weft.codec import decode_plain
    from weft.sdk.graphrun import GraphRun

    if undo == (file is not None) or (undo and revision is not None):
        raise typer.BadParameter("name a FILE with operations, or --undo alone")
    operations = None if file is None else _operations(file)
    who = author or f"cli:{getpass.getuser()}"

    async def change(app: Weft) -> dict[str, Any]:
        found = GraphRun(app, run, decode_plain)
        if operations is None:
            return await found.undo_patch(author=who, reason=reason, dry_run=dry_run)
        return await found.patch(operations, author=who, reason=reason, dry_run=dry_run, revision=revision)

    told = targets.with_app(targets.load_app_or_bare(app), change)
    if json:
        output.print_json({"id": run, "run_id": run, "dry_run": dry_run, **told})
        return
    names = ("added", "removed", "changed", "rerouted", "reached")
    output.print_fields([("revision", told["revision"]), *((name, ", ".join(told[name]) or None) for name in names)])
    if dry_run:
        output.say("nothing was changed")


def _operations(file: str) -> Any:
    import sys

    import msgspec

    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return msgspec.json.decode(data)
    except (OSError, msgspec.DecodeError) as error:
        raise typer.BadParameter(f"{file}: {error}") from None


def _plans(what: str, given: str | None) -> list[Plan]:
    from weft.core.graph.compile import compile
    from weft.core.graph.problems import similar
    from weft.core.graph.validate import invalid
    from weft.errors import NotFound
    from weft.sdk.files import check_file

    if Path(what).suffix in (".yaml", ".yml", ".json") or Path(what).is_file():
        checked = check_file(what)
        problems = [problem for one in checked for problem in one.problems]
        if problems:
            raise invalid("", problems, file=what)
        return [compile(one.valid()) for one in checked]
    loaded, place = targets.load_app(given)
    if what not in loaded.graphs:
        hint = similar(what, loaded.graphs) or (
            f"; it has {', '.join(loaded.graphs)}" if loaded.graphs else "; it has none"
        )
        raise NotFound(f"there is no file and no graph {what!r} in {place.target}{hint}")
    return [loaded.graphs[what].plan]


def _app_if_any(given: str | None) -> Weft | None:
    """Returns the app whose signatures count, if one is named. Only one that is asked for has to be there."""
    place = targets.find_target(given)
    if place is None:
        return None
    try:
        return targets.load(place)
    except Exception as error:
        if given:
            raise
        output.say(f"weft: {place.target} ({place.source}) cannot be loaded, so arguments are not checked: {error}")
        return None


def _note_unbuilt(spec: GraphSpec) -> None:
    """Says what a definition may hold although no run of it can be started yet."""
    for id, node in spec.nodes.items():
        if node.type == "agent":
            output.say(f"note: {id}: agents are not built yet, so a run of {spec.name} is refused")
