"""`weft retention`: what the archive keeps for how long, and letting go of the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli import output
from weft.cli import target as targets

if TYPE_CHECKING:
    from weft.sdk.app import Weft
    from weft.sdk.retention import KeptRule, Swept

group = typer.Typer(
    help="Show what the archive keeps for how long, and let go of the rest.",
    rich_markup_mode=None,
    no_args_is_help=False,
)

PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar="RULES", help="Instead of WEFT_KEEP_COLD, such as `status=failed 90d; 30d`."),
]


@group.callback(invoke_without_command=True)
def retention(
    context: typer.Context,
    policy: PolicyOption = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Show what the archive keeps for how long, and let go of the rest."""
    if context.invoked_subcommand is None:
        show(policy, app, json)
    elif policy is not None or json:
        raise typer.BadParameter(f"put options behind the command: weft retention {context.invoked_subcommand} …")


@group.command("show")
def show(policy: PolicyOption = None, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Show the rules of WEFT_KEEP_COLD, the first of which that fits a run decides, and how many ended runs each is about.

    In a pipe the columns are: rule, keeps, n, oldest. `weft retention` alone does the same.
    """

    async def read(app: Weft) -> list[KeptRule]:
        return await app.retention.show(policy)

    found = targets.with_app(targets.load_app_or_bare(app), read)
    if json:
        output.print_json_lines({name: getattr(rule, name) for name in rule.__struct_fields__} for rule in found)
    else:
        output.print_table(["rule", "keeps", "n", "oldest"], [(r.rule, r.keeps, r.n, r.oldest) for r in found])


@group.command("apply")
def apply(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would go.")] = False,
    policy: PolicyOption = None,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Let go of what the archive has kept long enough. Archivers do it by themselves, every ten minutes.

    A run goes with its history, its steps and the large values that no other run uses. One whose result is still kept
    (keep_result, dead letters), that has a gap, or that has not ended, stays.
    """
    import dataclasses
    import sys
    import time

    said = [time.monotonic()]

    def progress(swept: Swept) -> None:
        if sys.stderr.isatty() or time.monotonic() - said[0] > 5:
            said[0] = time.monotonic()
            output.say(f"{swept.runs} runs {'would go' if dry_run else 'are gone'} so far")

    async def sweep(app: Weft) -> Swept:
        return await app.retention.apply(dry_run=dry_run, policy=policy, progress=progress)

    swept = targets.with_app(targets.load_app_or_bare(app), sweep)
    if json:
        output.print_json({"dry_run": dry_run, **dataclasses.asdict(swept)})
        return
    verb = "would go" if dry_run else "gone"
    output.print_fields(
        [
            (f"runs {verb}", str(swept.runs)),
            *((f"{kind} runs {verb}", str(n)) for kind, n in sorted(swept.by_kind.items())),
            ("large values gone", None if dry_run else str(swept.blobs)),
            (f"observations {verb}", str(swept.observed)),
            (f"deleted schedules {verb}", str(swept.schedules)),
            ("kept for their results", str(swept.kept)),
        ]
    )
