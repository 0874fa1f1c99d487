"""`weft cache`: outputs of nodes that are kept for steps like the ones that gave them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli import output
from weft.cli import target as targets

if TYPE_CHECKING:
    from weft.engine.memos import MemoInfo
    from weft.sdk.app import Weft

group = typer.Typer(help="List and forget outputs of nodes with `cache`.", no_args_is_help=True, rich_markup_mode=None)

Graph = Annotated[str | None, typer.Option("--graph", metavar="NAME", help="Only of this graph.")]
Node = Annotated[str | None, typer.Option("--node", metavar="ID", help="Only of this node; with --graph.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only what `cache.key` gave, or a digest.")]


@group.command("ls")
def ls(
    graph: Graph = None,
    node: Node = None,
    key: Key = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many.")] = 100,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """List outputs that are kept.

    In a pipe the columns are: graph, node, key, digest, made, expires, bytes, run.
    """

    async def find(app: Weft) -> list[MemoInfo]:
        from weft.engine.memos import entries

        found: list[MemoInfo] = []
        async for _, info in entries(app.engine(), graph=graph, node=node, key=key):
            found.append(info)
            if len(found) == limit:
                break
        return found

    found = targets.with_app(targets.load_app_or_bare(app), find)
    if json:
        output.print_json_lines({name: getattr(info, name) for name in info.__struct_fields__} for info in found)
        return
    output.print_table(
        ["graph", "node", "key", "digest", "made", "expires", "bytes", "run"],
        [(x.graph, x.node, x.key, x.digest, x.made_at, x.expires_at, x.size, x.run_id) for x in found],
        empty="nothing is kept",
    )


@group.command("invalidate")
def invalidate(
    graph: Graph = None,
    node: Node = None,
    key: Key = None,
    all: Annotated[bool, typer.Option("--all", help="Everything that is kept.")] = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Forget outputs, by graph, node and key: the next step like them is executed again. Prints how many there were."""
    if all == any(given is not None for given in (graph, node, key)):
        output.say("weft: say which outputs are meant: --graph, --node, --key, or --all")
        raise typer.Exit(output.USAGE)

    async def forget(app: Weft) -> int:
        from weft.engine.memos import forget

        return await forget(app.engine(), graph=graph, node=node, key=key)

    n = targets.with_app(targets.load_app_or_bare(app), forget)
    output.print_json({"forgotten": n}) if json else print(n)
