"""`weft graph`: checks graph files and draws graphs. Nothing is started and no store is opened."""

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

group = typer.Typer(help="Check and draw graphs.", no_args_is_help=True, rich_markup_mode=None)


@group.command("validate")
def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="YAML files with graphs.")],
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Print all problems of graph files, each with its line and column; exit code 1 when there are some.

    Where an app is named, arguments are checked against the signatures of its tasks. In a pipe, lines are
    `FILE:LINE:COLUMN: message [code]`.
    """
    import msgspec

    from weft.sdk.files import check_file

    loaded = _app_if_any(app)
    n_problems = 0
    for file in files:
        for checked in check_file(file, loaded.find_shape if loaded else None):
            name = checked.spec.name if checked.spec else ""
            for problem in checked.problems:
                n_problems += 1
                if json:
                    output.print_json_lines([{"file": file, "graph": name, **msgspec.structs.asdict(problem)}])
                else:
                    print(f"{file}:{problem.line or 1}:{problem.column or 1}: {problem.message} [{problem.code}]")
            if checked.spec and not checked.problems:
                output.say(f"{file}: {name}: ok, {len(checked.spec.nodes)} nodes")
                _note_tasks(checked.spec, loaded)
    if n_problems:
        output.say(f"{n_problems} {'problem' if n_problems == 1 else 'problems'}")
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


def _note_tasks(spec: GraphSpec, app: Weft | None) -> None:
    """Says which tasks the app does not have. No problem: another app's workers may serve them."""
    from weft.core.graph.problems import similar

    calls: dict[str, Any] = {node.call: None for node in spec.nodes.values() if node.call}
    for call in calls if app else ():
        if app and call not in app.tasks:
            output.say(f"note: app {app.name!r} has no task {call!r}{similar(call, app.tasks)}")
