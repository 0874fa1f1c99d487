"""`weft approvals`: lists and shows what waits for people, and decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets

if TYPE_CHECKING:
    from weft.core.approvals import Approval, ApprovalPage
    from weft.sdk.app import Weft

group = typer.Typer(
    help="List, show, approve and reject approvals; make links.", no_args_is_help=True, rich_markup_mode=None
)

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The approval's id: RUN/STEP.")]
As = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="Act as this person; without it as cli:<your user>, a local admin.",
        envvar="WEFT_APPROVALS_AS",
    ),
]
Role = Annotated[list[str] | None, typer.Option("--role", help="A role in which that person acts; may be repeated.")]
Comment = Annotated[str, typer.Option("--comment", "-m", help="What is said with it.")]
Digest = Annotated[
    str | None, typer.Option(help="What the decision is about, as `show` told it; without it, what is shown now.")
]


@group.command("ls")
def ls(
    approver: Annotated[
        list[str] | None, typer.Option(help="What this person or role may decide; may be repeated.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Of this run.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    cursor: Annotated[str, typer.Option(help="Go on where a page ended; it is told on stderr.")] = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """List what waits for a decision, the oldest first.

    In a pipe the columns are: id, title, approvers, votes, opened, due.
    """

    async def find(app: Weft) -> ApprovalPage:
        return await app.approvals.list(approver=approver, run=run, limit=limit, cursor=cursor)

    found = targets.with_app(targets.load_app_or_bare(app), find)
    if json:
        output.print_json_lines(_document(one) for one in found)
    else:
        output.print_table(
            ["id", "title", "approvers", "votes", "opened", "due"],
            [
                (
                    a.id,
                    a.title,
                    ", ".join(a.approvers) or "anybody",
                    f"{len(a.votes)}/{a.quorum}",
                    a.opened_at,
                    a.due_at,
                )
                for a in found
            ],
            empty="nothing waits for a decision",
        )
    if found.cursor:
        output.say(f"there are more: --cursor {found.cursor}")


@group.command("show")
def show(id: ApprovalId, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Show one approval: what it is about, who may decide, who did."""

    async def read(app: Weft) -> Approval:
        return await app.approvals.get(id)

    _print(targets.with_app(targets.load_app_or_bare(app), read), json=json)


@group.command("approve")
def approve(
    id: ApprovalId,
    as_: As = None,
    role: Role = None,
    comment: Comment = "",
    form: Annotated[str | None, typer.Option(metavar="JSON", help="What is filled in its form; - reads stdin.")] = None,
    digest: Digest = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Approve. Exit code 5 when it is decided already, or shows something else than --digest."""
    _decide("approve", id, as_, role, comment, form, digest, app, json)


@group.command("reject")
def reject(
    id: ApprovalId,
    as_: As = None,
    role: Role = None,
    comment: Comment = "",
    digest: Digest = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Reject. Exit code 5 when it is decided already, or shows something else than --digest."""
    _decide("reject", id, as_, role, comment, None, digest, app, json)


@group.command("delegate")
def delegate(
    id: ApprovalId,
    to: Annotated[list[str], typer.Argument(metavar="TO", help="Who decides instead.")],
    as_: As = None,
    role: Role = None,
    comment: Comment = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Let others decide in a person's place."""

    async def act(app: Weft) -> Approval:
        who = as_ or _me()
        return await app.approvals.delegate(id, by=who, to=to, comment=comment, roles=role or (), admin=as_ is None)

    _print(targets.with_app(targets.load_app_or_bare(app), act), json=json)


@group.command("link")
def link(
    id: ApprovalId,
    approver: Annotated[str, typer.Option(metavar="NAME", help="Who decides by it: a person or role.")],
    decision: Annotated[str, typer.Option(help="What it decides: approve or reject.")],
    expires: Annotated[str, typer.Option(metavar="DURATION", help="How long it works.")] = "7d",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Make a link by which one person decides so, once: its URL, where WEFT_PUBLIC_URL is set, else its text.

    Whoever has it can decide. The URL leads to a page that shows what is asked; `weft server` serves it.
    """
    from weft.settings import read_setting

    async def make(app: Weft) -> tuple[str, str | None]:
        text = await app.approvals.link(id, approver=approver, decision=decision, expires=expires)
        return text, app.approvals.url(text) if read_setting("WEFT_PUBLIC_URL") else None

    text, url = targets.with_app(targets.load_app_or_bare(app), make)
    if json:
        output.print_json({"id": id, "approver": approver, "decision": decision, "link": text, "url": url})
        return
    output.show(url or text)
    if url is None:
        output.say("this is the text of the link: with WEFT_PUBLIC_URL set, it would be the URL of its page")


def _decide(
    verb: str,
    id: str,
    as_: str | None,
    roles: list[str] | None,
    comment: str,
    form: str | None,
    digest: str | None,
    given: str | None,
    json: bool,
) -> None:
    filled = None if form is None else read_json(form, "--form")

    async def act(app: Weft) -> Approval:
        about = digest
        if about is None:
            asked = await app.approvals.get(id)
            about = asked.digest
            output.say(f"{verb}: {asked.title or id}: {output.to_json(asked.show)}")
        decide = app.approvals.approve if verb == "approve" else app.approvals.reject
        return await decide(
            id,
            by=as_ or _me(),
            digest=about,
            comment=comment,
            form=filled,
            roles=roles or (),
            via=_me(),
            admin=as_ is None,
        )

    _print(targets.with_app(targets.load_app_or_bare(given), act), json=json)


def read_json(text: str, what: str) -> Any:
    """Reads a JSON value that was typed, or comes by stdin for `-`."""
    import sys

    import msgspec

    text = sys.stdin.read() if text == "-" else text
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"{text[:200]!r} is not JSON: {error}", param_hint=what) from error


def _me() -> str:
    import getpass
    import os

    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError, ImportError):
        return f"cli:{os.getuid()}"


def _print(found: Approval, *, json: bool) -> None:
    if json:
        output.print_json(_document(found))
        return
    decision = found.decision or {}
    output.print_fields(
        [
            ("id", found.id),
            ("title", found.title),
            ("status", found.status),
            ("run", found.run_id),
            ("approvers", ", ".join(found.approvers) or "anybody"),
            ("votes", f"{len(found.votes)} of {found.quorum}"),
            ("opened", found.opened_at),
            ("due", found.due_at),
            ("decided", found.decided_at),
            ("by", decision.get("by")),
            ("comment", decision.get("comment") or None),
            ("form", output.to_json(decision["form"] if decision else found.form) if found.form else None),
            ("shown", output.to_json(found.show)),
            ("digest", found.digest),
            ("durability", found.durability or None),
        ]
    )


def _document(found: Approval) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__struct_fields__}
