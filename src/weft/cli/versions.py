"""The part of `weft graph` about versions: lists, publishes, tags and compares them, and lists patches of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.graph import group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.core.versions import Definition, DefinitionTag, Patched
    from weft.sdk.app import Weft

__all__ = ["group"]

Name = Annotated[str, typer.Argument(metavar="NAME", help="The graph's name.")]
Tag = Annotated[str, typer.Argument(metavar="TAG", help="The tag's name, such as prod.")]
Version = Annotated[str, typer.Argument(metavar="VERSION", help="A tag, a version, or the beginning of a digest.")]
Expected = Annotated[
    str | None, typer.Option(metavar="VERSION", help="Only if the tag names this version now; '' if it names none.")
]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who wants it; default: cli:<os user>.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the audit.")]
Limit = Annotated[int, typer.Option(min=1, help="How many at most.")]


@group.command("versions")
def versions(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The graph; without it, all that have versions.")
    ] = None,
    limit: Limit = 100,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """List the versions of a graph, the newest first: those that runs were started with, or that were published.

    In a pipe the columns are: digest, version, tags, created, first run, by.
    """

    async def read(app: Weft) -> tuple[Sequence[str], Sequence[Definition]]:
        return ([], await app.definitions.versions(name, limit=limit)) if name else (await app.definitions.names(), [])

    names, found = targets.with_app(targets.load_app_or_bare(app), read)
    if name is None:
        if json:
            output.print_json_lines({"name": one} for one in names)
        else:
            output.print_table(["graph"], [(one,) for one in names], empty="no graph has versions yet")
    elif json:
        output.print_json_lines(_document(one) for one in found)
    else:
        output.print_table(
            ["digest", "version", "tags", "created", "first run", "by"],
            [(d.digest[:12], d.version, ", ".join(d.tags), d.created_at, d.run_id, d.actor) for d in found],
        )


@group.command("publish")
def publish(
    name: Name, by: By = "", reason: Reason = "", app: targets.AppOption = None, json: output.Json = False
) -> None:
    """Make a version of a graph of the app as it is now, without a run. One that is there stays as it is."""
    loaded, _ = targets.load_app(app)
    found = targets.with_app(loaded, lambda app: app.definitions.publish(name, by=by, reason=reason))
    if json:
        output.print_json(_document(found))
    else:
        print(found.digest)


@group.command("tag")
def tag(
    name: Name,
    tag: Tag,
    version: Version,
    expected: Expected = None,
    by: By = "",
    reason: Reason = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Let a tag name a version. Exit code 5 when it is not where --expected says."""

    async def act(app: Weft) -> DefinitionTag:
        return await app.definitions.tag(name, tag, version, **_moved(expected, by, reason))

    _print_tag(targets.with_app(targets.load_app_or_bare(app), act), json=json)


@group.command("untag")
def untag(
    name: Name,
    tag: Tag,
    expected: Expected = None,
    by: By = "",
    reason: Reason = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Take a tag away; `weft graph undo` brings it back."""
    _change("untag", name, tag, _moved(expected, by, reason), app, json)


@group.command("undo")
def undo(
    name: Name,
    tag: Tag,
    expected: Expected = None,
    by: By = "",
    reason: Reason = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Take the last move of a tag back. Exit code 5 when there is none."""
    _change("undo", name, tag, _moved(expected, by, reason), app, json)


@group.command("redo")
def redo(
    name: Name,
    tag: Tag,
    expected: Expected = None,
    by: By = "",
    reason: Reason = "",
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Make a move again that was taken back. Exit code 5 when there is none, or the tag was moved since."""
    _change("redo", name, tag, _moved(expected, by, reason), app, json)


@group.command("tags")
def tags(name: Name, app: targets.AppOption = None, json: output.Json = False) -> None:
    """List the tags of a graph, those that were taken away too.

    In a pipe the columns are: tag, digest, version, moved, by, how many moves can be undone, and redone.
    """
    found = targets.with_app(targets.load_app_or_bare(app), lambda app: app.definitions.tags(name))
    if json:
        output.print_json_lines(_document(one) for one in found)
        return
    output.print_table(
        ["tag", "digest", "version", "moved", "by", "undo", "redo"],
        [(t.tag, t.digest[:12], t.version, t.moved_at, t.actor, t.undoable, t.redoable) for t in found],
        empty=f"graph {name} has no tags",
    )


@group.command("diff")
def diff(name: Name, before: Version, after: Version, app: targets.AppOption = None, json: output.Json = False) -> None:
    """Show what differs between two versions: nodes, then RFC 6902 operations, one per line in a pipe."""
    found = targets.with_app(targets.load_app_or_bare(app), lambda app: app.definitions.diff(name, before, after))
    if json:
        output.print_json({"name": name, **_document(found)})
        return
    output.print_fields([(word, ", ".join(getattr(found, word)) or None) for word in ("added", "removed", "changed")])
    for operation in found.operations:
        print(output.to_json(operation))
    if not found.operations:
        output.say("nothing differs")


@group.command("patches")
def patches(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Of this run; without it, of all.")] = None,
    author: Annotated[str | None, typer.Option(help="By this author.")] = None,
    limit: Limit = 100,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """List patches of runs: of one run in order, else the newest of the archive first.

    In a pipe the columns are: run, revision, undoes, time, author, reason, number of operations, step.
    """

    async def read(app: Weft) -> Sequence[Patched]:
        from weft.engine.versions import patches_of

        if run is None:
            return await app.definitions.patches(author=author, limit=limit)
        found = await patches_of(app.engine(), run)
        return [one for one in found if author is None or one.author == author][:limit]

    found = targets.with_app(targets.load_app_or_bare(app), read)
    if json:
        output.print_json_lines(_document(one) for one in found)
        return
    output.print_table(
        ["run", "revision", "undoes", "at", "author", "reason", "operations", "step"],
        [(p.run_id, p.revision, p.undoes or "", p.at, p.author, p.reason, len(p.operations), p.step) for p in found],
        empty="there are no patches",
    )


def _change(verb: str, name: str, tag: str, moved: dict[str, Any], app: str | None, json: bool) -> None:
    async def act(app: Weft) -> DefinitionTag:
        found: DefinitionTag = await getattr(app.definitions, verb)(name, tag, **moved)
        return found

    _print_tag(targets.with_app(targets.load_app_or_bare(app), act), json=json)


def _moved(expected: str | None, by: str, reason: str) -> dict[str, Any]:
    told: dict[str, Any] = {"by": by, "reason": reason}
    return told if expected is None else {**told, "expected": expected or None}


def _print_tag(found: DefinitionTag, *, json: bool) -> None:
    if json:
        output.print_json(_document(found))
        return
    output.print_fields(
        [
            ("tag", found.tag),
            ("digest", found.digest or "none"),
            ("version", found.version or None),
            ("by", found.actor),
            ("undo", found.undoable),
            ("redo", found.redoable),
        ]
    )


def _document(found: Any) -> dict[str, Any]:
    said = {name: getattr(found, name) for name in found.__struct_fields__}
    return {name: value for name, value in said.items() if name != "document" or value is not None}
