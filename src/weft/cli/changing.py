"""`weft runs reschedule`, and `weft runs change`: one verb for many runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.enqueue import read_moment, read_tag
from weft.cli.runs import RunId, group

if TYPE_CHECKING:
    from datetime import datetime

    from weft.engine.bulk import Changed
    from weft.sdk.app import Weft


@group.command("reschedule")
def reschedule(
    id: RunId,
    delay: Annotated[str | None, typer.Option(help="Go on that much later from now, such as 5m; 0: now.")] = None,
    eta: Annotated[str | None, typer.Option(metavar="TIME", help="Go on then; ISO 8601 with a time zone.")] = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Change when a run that waits for its delay, snooze or back-off goes on. Exit code 5 when it waits for none."""
    if (delay is None) == (eta is None):
        raise typer.BadParameter("say when: one of --delay, such as 5m (0: now), and --eta")
    moment = None if eta is None else read_moment(eta, "--eta")

    async def move(app: Weft) -> datetime:
        return await app.runs.get(id).reschedule(delay=delay, eta=moment)

    due = targets.with_app(targets.load_app_or_bare(app), move)
    if json:
        output.print_json({"id": id, "run_id": id, "due_at": due})
    else:
        output.print_table(["id", "due"], [(id, due)])


@group.command("change")
def change(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="cancel, pause, resume or retry.")],
    status: Annotated[str | None, typer.Option(help="Runs with this status.")] = None,
    name: Annotated[str | None, typer.Option(help="Runs of this task or graph.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="K=V", help="Runs with this tag.")] = None,
    queue: Annotated[str | None, typer.Option(help="Runs of this queue.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most, the newest first.")] = 1000,
    reason: Annotated[str, typer.Option(help="Why; kept with the runs.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this they are only told.")] = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Cancel, pause, resume or retry all runs of a filter that it can be done to. Without --yes they are only told.

    Exit code 5 when some were refused. The lines are the ids of the runs that were changed, or
    without --yes would be.
    """
    wanted = None if tag is None else read_tag(tag)

    async def begin(app: Weft) -> Changed:
        return await app.runs.change(
            action, status=status, name=name, tag=wanted, queue=queue, limit=limit, reason=reason, dry_run=not yes
        )

    told = targets.with_app(targets.load_app_or_bare(app), begin)
    if json:
        output.print_json({"matched": told.matched, "done": told.done, "refused": told.refused, "runs": told.runs})
    elif shown := told.done if yes else told.runs:
        print("\n".join(shown))
    if not yes:
        meant = "1 run is" if told.matched == 1 else f"{told.matched:,} runs are"
        output.say(f"{meant} meant; nothing was changed: say --yes to {action} {'it' if told.matched == 1 else 'them'}")
    for id, why in told.refused.items():
        output.say(f"{id}: {why}")
    if told.refused:
        raise typer.Exit(output.CONFLICT)
