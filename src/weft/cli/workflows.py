"""`weft workflows`: tells whether stored runs fit the code; `weft runs resolve|tree|timeline` of workflow runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.runs import RunId
from weft.cli.runs import group as runs
from weft.cli.tables import GAP, NARROW

if TYPE_CHECKING:
    from weft.core.model import RunInfo
    from weft.engine.flowview import RunTree, Span
    from weft.sdk.app import Weft
    from weft.sdk.checking import Checked

#: Characters of a bar.
BAR = 40

group = typer.Typer(help="Check workflows before a deploy.", no_args_is_help=True, rich_markup_mode=None)


@group.callback()
def workflows() -> None:
    """Check workflows before a deploy."""


@group.command("check")
def check(
    last: Annotated[int, typer.Option(min=1, help="How many runs at most, the newest first.")] = 500,
    name: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also runs that failed or were cancelled.")] = False,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only this run, archived or imported ones too.")] = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Replay stored workflow runs against this code and tell which fit; nothing is written and no step runs.

    compatible: it goes on with this code. needs pin: it does not fit, and must keep the code it has (weft runs resolve ID
    pin). breaks: it does not fit, and no other version is known. Exit code 1 when a run does not fit, 3 when there
    is no workflow of that name. In a pipe the columns are: id, workflow, status, verdict, version.
    """
    loaded, _ = targets.load_app(app)

    async def look(app: Weft) -> list[Checked]:
        from weft.sdk.checking import check_run, check_runs

        with targets.aside():
            if run is not None:
                return [await check_run(app, run)]
            found = await check_runs(app, last=last, name=name, ended=ended)
        if name is not None and not found and name not in app.workflows:
            from weft.errors import NotFound

            known = ", ".join(sorted(app.workflows)) or "none"
            raise NotFound(f"app {app.name!r} has no workflow {name!r}, and no stored run is of one; it has {known}")
        return found

    found = targets.with_app(loaded, look)
    if json:
        output.print_json_lines(found)
    else:
        headers = ["id", "workflow", "status", "verdict", "version"]
        output.print_table(
            headers, [(c.id, c.name, c.status, c.verdict, c.version) for c in found], empty="no stored runs"
        )
        for one in found:
            if one.text:
                output.say(f"\n{one.id}: {one.text}")
    counts = {verdict: sum(c.verdict == verdict for c in found) for verdict in ("compatible", "needs pin", "breaks")}
    output.say(", ".join(f"{n} {verdict}" for verdict, n in counts.items()))
    if len(found) != counts["compatible"]:
        raise typer.Exit(output.FAILED)


@runs.command("tree")
def tree(id: RunId, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Show a workflow or graph run with all the runs that it, and they, have started, and where each waits."""

    async def read(app: Weft) -> RunTree:
        from weft.engine.flowview import tree

        return await tree(app.engine(), id)

    found = targets.with_app(targets.load_app_or_bare(app), read)
    if json:
        output.print_json(found)
    else:
        _print_tree(found, "", "")


def _print_tree(run: RunTree, head: str, indent: str) -> None:
    about = f"  {' '.join(run.awaits.split())}" if run.awaits else ""
    step = f"{run.step}: " if run.step else ""
    print(f"{head}{step}{run.name} {run.id} {run.status}{about}")
    for i, child in enumerate(run.children):
        last = i + 1 == len(run.children) and not run.left_out
        _print_tree(child, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  "))
    if run.left_out:
        print(f"{indent}└─ and {run.left_out} more")


@runs.command("timeline")
def timeline(id: RunId, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Show what a workflow run did along the time: steps, calls, children, timers and signals.

    In a pipe the columns are: began (ms since the run began), took (ms), kind, step, status, attempt, bar.
    """

    async def read(app: Weft) -> tuple[RunInfo, list[Span]]:
        from weft.engine.flowview import timeline

        return await app.runs.get(id).info(), await timeline(app.engine(), id)

    info, spans = targets.with_app(targets.load_app_or_bare(app), read)
    if json:
        output.print_json_lines({"id": id, "run_id": id, **_plain(span)} for span in spans)
        return
    ends = [span.ended_at or span.started_at for span in spans]
    whole = max([info.finished_at or info.created_at, *ends], default=info.created_at) - info.created_at
    headers, rows, places = ["began", "took", "kind", "step", "status", "attempt"], [], []
    for span in spans:
        began, seconds = (span.started_at - info.created_at).total_seconds(), span.seconds
        took = "" if seconds is None else f"{seconds * 1000:.0f}"
        rows.append((f"{began * 1000:.0f}", took, span.kind, span.step, span.status, str(span.attempt)))
        places.append((began, seconds))
    room = room_for_bars([headers, *rows], output.console().width) if sys.stdout.isatty() else BAR
    bars = [_bar(began, seconds, whole.total_seconds(), room) for began, seconds in places]
    drawn = [(*row, bar) for row, bar in zip(rows, bars, strict=True)]
    output.print_table([*headers, ""], drawn, empty="nothing has happened yet", spare=["attempt"])


def room_for_bars(rows: Sequence[Sequence[str]], width: int) -> int:
    """Returns how long bars may be behind these columns: folded they would show nothing."""
    taken = sum(max(map(len, column)) + GAP for column in zip(*rows, strict=True))
    return min(BAR, max(NARROW, width - taken))


def _plain(span: Span) -> dict[str, Any]:
    import msgspec

    return {**msgspec.to_builtins(span), "seconds": span.seconds}


def _bar(began: float, seconds: float | None, whole: float, room: int) -> str:
    if whole <= 0:
        return ""
    at = min(room - 1, max(0, round(began / whole * room)))
    length = room - at if seconds is None else max(1, round(seconds / whole * room))
    return "·" * at + ("█" if seconds is not None else "░") * min(length, room - at)


@runs.command("resolve")
def resolve(
    id: RunId,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="pin, fork or accept.")],
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Settle a workflow run whose code does not fit what it did: pin, fork or accept. Prints the id of the run that goes on.

    pin: go on with the version of the code that it had. accept: go on with this code, which gets what was done when it asks for
    it. fork: the same in a new run; this one stays as it is. Exit code 5 when there is nothing to settle.
    """
    import getpass

    async def settle(app: Weft) -> str:
        from weft.sdk.resolving import resolve

        with targets.aside():
            return await resolve(app, id, action, by=f"cli:{getpass.getuser()}")

    goes_on = targets.with_app(targets.load_app_or_bare(app), settle)
    if json:
        output.print_json(
            {"id": goes_on, "run_id": goes_on, "action": action, "replay_of": id if goes_on != id else ""}
        )
    else:
        print(goes_on)
