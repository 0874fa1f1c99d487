"""`weft keys`: what lies in the store, what it weighs, what it means, and what should not be there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from weft.cli import output
from weft.cli import target as targets

if TYPE_CHECKING:
    from weft.engine.keyspace import Explanation
    from weft.sdk.app import Weft

T = TypeVar("T")
Progress = Callable[[int], None]

group = typer.Typer(
    help="List, explain, weigh and audit the keys in the store.", no_args_is_help=True, rich_markup_mode=None
)

#: Keys in the store above which a scan shows its progress.
WORTH_A_BAR = 20_000


@group.command("ls")
def ls(app: targets.AppOption = None, json: output.Json = False) -> None:
    """List the families of keys and how many there are.

    In a pipe the columns are: family, keys, type, lifetime, what they hold.
    """
    from weft.engine import keyspace

    found = _walk(app, lambda app, progress: keyspace.count_families(app.engine(), progress=progress))
    if json:
        output.print_json_lines(found)
    else:
        rows = [(f.family or "(unknown)", f.keys, f.type, f.lifetime, f.holds) for f in found]
        output.print_table(["family", "keys", "type", "lifetime", "holds"], rows)


@group.command("memory")
def memory(
    sample: Annotated[
        int, typer.Option(min=1, help="Keys weighed per family; with more of them it is an estimate.")
    ] = 1000,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Weigh the keys of each family.

    In a pipe the columns are: family, keys, bytes, bytes per key, exact or estimated.
    """
    from weft.engine import keyspace

    found = _walk(app, lambda app, progress: keyspace.weigh_families(app.engine(), sample=sample, progress=progress))
    if json:
        output.print_json_lines(found)
        return
    rows: list[tuple[object, ...]] = [
        (f.family or "(unknown)", f.keys, f.bytes, f.bytes_per_key, "exact" if f.exact else f"of {f.sampled}")
        for f in found
    ]
    total = ("total", sum(f.keys for f in found), sum(f.bytes for f in found), "", "")
    output.print_table(["family", "keys", "bytes", "per key", "measured"], [*rows, total])


@group.command("explain")
def explain(
    key: Annotated[str, typer.Argument(help="A key, a run id (all its keys), or the name of a family.")],
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Explain a key, or all keys of a run.

    Its family, what it holds now, how long it stays, who writes it, how to look at it.
    """
    from weft.engine import keyspace

    found = targets.with_app(targets.load_app_or_bare(app), lambda app: keyspace.explain(app.engine(), key))
    if json:
        is_run = not any(key in (explanation.key, explanation.family) for explanation in found)
        output.print_json({"id": key, "run_id": key, "keys": found} if is_run else found[0])
        return
    for i, explanation in enumerate(found):
        if i:
            print()
        _print_explanation(explanation)


@group.command("audit")
def audit(app: targets.AppOption = None, json: output.Json = False) -> None:
    """Check that every key is as it should be.

    Finds unknown keys, wrong types, missing lifetimes, leaks, lost runs, stuck tokens. Exit code 1 when it finds any.
    In a pipe the columns are: key, family, problem, what to do.
    """
    from weft.engine import keyspace

    found = _walk(app, lambda app, progress: keyspace.audit(app.engine(), progress=progress))
    if json:
        output.print_json_lines(found)
    else:
        rows = [(f.key, f.family or "(unknown)", f.problem, f.advice) for f in found]
        output.print_table(["key", "family", "problem", "what to do"], rows, empty="all keys are as they should be")
    if found:
        raise typer.Exit(output.FAILED)


def _walk(target: str | None, work: Callable[[Weft, Progress], Awaitable[T]]) -> T:
    """Runs something that walks over all keys, with a progress bar on a terminal when there are many."""
    from weft.engine import keyspace

    async def body(app: Weft) -> T:
        total = await keyspace.estimate_keys(app.engine())
        with _progress(total) as progress:
            return await work(app, progress)

    return targets.with_app(targets.load_app_or_bare(target), body)


@contextmanager
def _progress(total: int) -> Iterator[Progress]:
    import sys

    if total < WORTH_A_BAR or not sys.stderr.isatty():
        yield lambda n: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("keys", total=total)
        yield lambda n: bar.advance(task, n)


def _print_explanation(found: Explanation) -> None:
    from weft.clock import format_duration

    lifetime = found.lifetime
    if found.exists:
        lifetime += f" (expires in {format_duration(found.ttl_ms)})" if found.ttl_ms is not None else " (no expiry)"
    output.print_fields(
        [
            ("key", found.key),
            ("role", found.role),
            ("family", f"{found.family} ({found.template})"),
            ("type", found.type),
            ("holds", found.holds),
            ("lifetime", lifetime),
            ("bytes", found.bytes),
            ("owner", found.owner),
            ("inspect", found.inspect),
            ("replaces", found.replaces),
        ]
    )
    output.print_table(
        ["field", "value", "meaning"],
        [
            (field.name, field.value if isinstance(field.value, str) else output.to_json(field.value), field.meaning)
            for field in found.fields
        ],
    )
