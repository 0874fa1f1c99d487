"""`weft dlq`: lists, groups, shows, replays, purges and marks dead letters, the runs that failed for good."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.filters import Filters, filtered
from weft.cli.progress import telling

if TYPE_CHECKING:
    from weft.core.letters import DeadLetter, LetterGroup, LetterPage, ReplayReport
    from weft.sdk.app import Weft
    from weft.sdk.run import Run

group = typer.Typer(help="List, show, replay and purge dead letters.", no_args_is_help=True, rich_markup_mode=None)

LetterId = Annotated[str, typer.Argument(metavar="ID", help="The failed run's id.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of failed runs; or use filters or --all.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters there are.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell how many are meant.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

#: Letters that were skipped which a replay names; of more it tells the number.
MAX_TOLD = 20


@group.command("ls")
@filtered()
def ls(
    filters: Filters,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    cursor: Annotated[str, typer.Option(help="Go on where a page ended; it is told on stderr.")] = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """List dead letters, newest first.

    In a pipe the columns are: id, task, queue, failed, attempts, error, fingerprint, state.
    """

    async def find(app: Weft) -> LetterPage:
        return await app.dlq.list(limit=limit, cursor=cursor, **filters)

    page = targets.with_app(targets.load_app_or_bare(app), find)
    if json:
        output.print_json_lines(_document(letter) for letter in page)
    else:
        output.print_table(
            ["id", "task", "queue", "failed", "attempts", "error", "fingerprint", "state"],
            [(x.id, x.task, x.queue, x.failed_at, x.attempts, _short(x.error), x.fingerprint, _state(x)) for x in page],
            empty="no such dead letters",
            spare=["attempts", "fingerprint", "queue"],
        )
    if page.cursor:
        output.say(f"there are more: --cursor {page.cursor}")


@group.command("groups")
@filtered(without="fingerprint")
def groups(
    filters: Filters,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Group dead letters by task and error: those that differ only in numbers, ids and quoted values are one.

    In a pipe the columns are: fingerprint, count, task, error, first, last, newest.
    """

    async def find(app: Weft) -> list[LetterGroup]:
        return await app.dlq.groups(**filters)

    found = targets.with_app(targets.load_app_or_bare(app), find)
    if json:
        output.print_json_lines({**_fields(each), "run_id": each.id} for each in found)
        return
    output.print_table(
        ["fingerprint", "count", "task", "error", "first", "last", "newest"],
        [
            (
                x.fingerprint,
                x.count,
                x.task,
                _short({"type": x.type, "message": x.message}),
                x.first_at,
                x.last_at,
                x.id,
            )
            for x in found
        ],
        empty="no such dead letters",
        spare=["first"],
    )


@group.command("show")
def show(id: LetterId, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Show one dead letter: arguments, error with its causes and traceback, attempts, worker."""

    async def read(app: Weft) -> DeadLetter:
        return await app.dlq.get(id)

    letter = targets.with_app(targets.load_app_or_bare(app), read)
    if json:
        output.print_json(_document(letter))
    else:
        _print_letter(letter)


@group.command("replay")
@filtered(without="replayed")
def replay(
    ids: Ids = None,
    *,
    filters: Filters,
    all: All = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also what was replayed before, or beside an active equal run.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Start dead letters again as new runs: by id, by filter, or all.

    Prints the new run of each. One id that was replayed before, or whose equal call is active, is a conflict (exit code 5);
    among many it is skipped.
    """
    _check_meant(ids, filters, all)
    loaded = targets.load_app_or_bare(app)
    if ids and len(ids) == 1 and not (dry_run or all or filters):
        one = ids[0]

        async def again(app: Weft) -> Run[Any]:
            return await app.dlq.replay(one, force=force)

        _print_replays({one: targets.with_app(loaded, again).id}, json=json)
        return
    meant: dict[str, Any] = {"ids": ids or None, "all": all, **filters}
    if not (ids or force):
        meant |= {"all": False, "replayed": False}

    async def run(app: Weft) -> ReplayReport | None:
        # By their ids: what fails while somebody reads the question is not what they answer it for.
        found = await app.dlq.find(**meant)
        if not _go_ahead(len(found), "replay", dry_run=dry_run, yes=yes or bool(ids), json=json):
            return None
        with telling("looked at") as progress:
            return await app.dlq.replay_many(ids=found, force=force, progress=progress)

    report = targets.with_app(loaded, run)
    if report is None:
        return
    _print_replays(report.replayed, json=json)
    for skipped, why in itertools.islice(report.skipped.items(), MAX_TOLD):
        output.say(f"{skipped} was skipped: {why}")
    if len(report.skipped) > MAX_TOLD:
        output.say(f"… and {len(report.skipped) - MAX_TOLD} more were skipped")
    output.say(f"{len(report.replayed)} replayed, {len(report.skipped)} skipped")


@group.command("purge")
@filtered()
def purge(
    ids: Ids = None,
    *,
    filters: Filters,
    all: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Delete dead letters with all that is kept of them: by id, by filter, or all. Cannot be undone."""
    _check_meant(ids, filters, all)
    loaded = targets.load_app_or_bare(app)
    meant: dict[str, Any] = {"ids": ids or None, "all": all, **filters}

    async def run(app: Weft) -> int | None:
        found = await app.dlq.find(**meant)
        if not _go_ahead(len(found), "purge", dry_run=dry_run, yes=yes or bool(ids), json=json):
            return None
        with telling("looked at") as progress:
            return await app.dlq.purge(ids=found, progress=progress)

    purged = targets.with_app(loaded, run)
    if purged is None:
        return
    if json:
        output.print_json({"purged": purged})
    else:
        print(purged)
    if ids and not purged:
        output.say("weft: no such dead letters")
        raise typer.Exit(output.NOT_FOUND)


def _check_meant(ids: list[str] | None, filters: Mapping[str, Any], all: bool) -> None:
    ways = bool(ids) + bool(filters) + all
    if not ways:
        raise typer.BadParameter("say which dead letters are meant: their ids, filters such as --task, or --all")
    if ways > 1:
        raise typer.BadParameter("ids, filters and --all are three ways to say which dead letters are meant: use one")


@group.command("investigate")
def investigate(
    id: LetterId,
    note: Annotated[str | None, typer.Argument(help="What was found.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take the mark back.")] = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Mark a dead letter as investigated, with a note."""
    import getpass

    if clear == (note is not None):
        raise typer.BadParameter("give a note, or --clear to take the mark back", param_hint="NOTE")

    async def mark(app: Weft) -> DeadLetter:
        return await app.dlq.investigate(id, note, by=f"cli:{getpass.getuser()}")

    letter = targets.with_app(targets.load_app_or_bare(app), mark)
    if json:
        output.print_json(_document(letter))
    else:
        output.print_table(["id", "state"], [(letter.id, _state(letter) or "open")])


def _go_ahead(matched: int, verb: str, *, dry_run: bool, yes: bool, json: bool) -> bool:
    """Tells how many are meant; returns whether to go on. Without a terminal to ask on, `--yes` must have been said."""
    if dry_run:
        output.print_json({"matched": matched}) if json else print(matched)
        return False
    if matched == 0 and not yes:
        output.say("no such dead letters")
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        output.say(f"weft: this would {verb} {matched} dead letters: say --yes to do it, or --dry-run to count only")
        raise typer.Exit(output.USAGE)
    return typer.confirm(f"{verb} {matched} dead letters?", err=True)


def _print_replays(replayed: dict[str, str], *, json: bool) -> None:
    if json:
        output.print_json_lines({"id": new, "run_id": new, "replay_of": old} for old, new in replayed.items())
    else:
        output.print_table(["run", "replay of"], [(new, old) for old, new in replayed.items()])


def _fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _document(letter: DeadLetter) -> dict[str, Any]:
    return _fields(letter)


def _short(error: dict[str, Any]) -> str:
    text = " ".join(f"{error['type']}: {error['message']}".split())
    return text if len(text) <= 80 else text[:79] + "…"


def _state(letter: DeadLetter) -> str:
    words = ["replayed"] if letter.replayed_as else []
    return " ".join([*words, "investigated"] if letter.investigated else words)


def _print_letter(letter: DeadLetter) -> None:
    mark = letter.investigated
    output.print_fields(
        [
            ("id", letter.id),
            ("run", letter.run_id if letter.step else None),
            ("step", letter.step),
            ("task", letter.task),
            ("queue", f"{letter.queue} (priority {letter.priority})"),
            ("attempts", letter.attempts),
            ("crashes", letter.crashes or None),
            ("worker", letter.worker),
            ("created", letter.created_at),
            ("failed", letter.failed_at),
            ("tags", letter.tags),
            ("fingerprint", letter.fingerprint),
            ("replay of", letter.replay_of),
            ("replayed as", letter.replayed_as),
            ("investigated", f"{mark.at.isoformat(timespec='seconds')} by {mark.by}: {mark.note}" if mark else None),
            ("input", output.to_json(letter.input) if letter.input is not None else None),
            ("error", f"{letter.error['type']}: {letter.error['message']}"),
            *(("cause", f"{cause['type']}: {cause['message']}") for cause in letter.error["causes"]),
        ]
    )
    if letter.error["traceback"]:
        output.show(f"\n{letter.error['traceback'].rstrip()}")
