"""`weft audit`: what people and operators did, and whether any of it was changed since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.enqueue import read_moment

if TYPE_CHECKING:
    from weft.core.acts import AuditPage
    from weft.sdk.app import Weft

group = typer.Typer(help="List what people did, and check it.", no_args_is_help=True, rich_markup_mode=None)


@group.command("ls")
def ls(
    actor: Annotated[str | None, typer.Option(help="Done by this person.")] = None,
    action: Annotated[str | None, typer.Option(help="Of this kind, such as run.patch or control.pause.")] = None,
    object: Annotated[str | None, typer.Option(help="Done to this.")] = None,
    run: Annotated[str | None, typer.Option(help="Done to this run.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Since then, an ISO time.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Until then, an ISO time.")] = None,
    cursor: Annotated[str, typer.Option(help="Where the page before ended.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """List what people did, the newest first; the cursor to go on from is said at the end.

    With --json a last line {"cursor": …} says whether there is more. In a pipe the columns are: id, time, actor, action,
    object, reason, detail as JSON.
    """
    first, last = (
        None if text is None else read_moment(text, option) for text, option in ((since, "--since"), (until, "--until"))
    )

    async def read(app: Weft) -> AuditPage:
        return await app.audit.list(
            actor=actor, action=action, object=object, run=run, since=first, until=last, cursor=cursor, limit=limit
        )

    page = targets.with_app(targets.load_app_or_bare(app), read)
    if json:
        output.print_json_lines({n: getattr(entry, n) for n in entry.__struct_fields__} for entry in page.entries)
        output.print_json({"cursor": page.cursor})
        return
    output.print_table(
        ["id", "at", "actor", "action", "object", "reason", "detail"],
        [
            (e.id, e.at, e.actor, e.action, e.object, e.reason, output.to_json(e.detail) if e.detail else "")
            for e in page.entries
        ],
        empty="nothing was done",
    )
    if page.cursor:
        output.say(f"go on with --cursor {page.cursor}")


@group.command("verify")
def verify(
    anchor: Annotated[
        list[str] | None, typer.Option(metavar="ANCHOR", help="What an earlier check printed; may be repeated.")
    ] = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Check that no entry was changed, removed or put in between; exit code 1 when one was.

    It prints an anchor per chain. Kept elsewhere and given back by --anchor, they show that all up to them is the same.
    """
    found = targets.with_app(targets.load_app_or_bare(app), lambda app: app.audit.verify(anchor or ()))
    if json:
        output.print_json({name: getattr(found, name) for name in found.__struct_fields__})
    else:
        for anchor_text in found.anchors:
            print(anchor_text)
        for problem in found.problems:
            output.say(problem)
        output.say(f"{found.checked} entries were checked: {'all as they were' if found.ok else 'not as they were'}")
    if not found.ok:
        raise typer.Exit(output.FAILED)
