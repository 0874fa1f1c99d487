"""What every command shares: data on stdout, talk on stderr, errors as exit codes.

Lists are rich tables on a terminal, tab-separated lines without a header in a pipe, JSON Lines with `--json`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from weft import errors
from weft.terminal import visible

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

_OBEYED = re.compile(r"[\x7f-\x9f]")

OK, FAILED, USAGE, NOT_FOUND, UNAVAILABLE, CONFLICT = range(6)

#: Error class -> exit code; the nearest ancestor counts.
EXIT_CODES: dict[type[BaseException], int] = {
    errors.WeftError: FAILED,
    errors.UserError: USAGE,
    errors.NotFound: NOT_FOUND,
    errors.ResultExpired: NOT_FOUND,
    errors.HistoryExpired: NOT_FOUND,
    errors.Conflict: CONFLICT,
    errors.OwnershipLost: CONFLICT,
    errors.Unavailable: UNAVAILABLE,
    errors.StoreRefused: UNAVAILABLE,
}

Json = Annotated[bool, typer.Option("--json", help="Print JSON: one document for one thing, lines for a list.")]


def exit_code(error: BaseException) -> int:
    """Returns the exit code that an error stands for."""
    return next((EXIT_CODES[cls] for cls in type(error).__mro__ if cls in EXIT_CODES), FAILED)


def complain(error: Exception) -> int:
    """Prints an error as people read it and returns its exit code. `WEFT_LOG_LEVEL=debug` shows the traceback too."""
    if os.environ.get("WEFT_LOG_LEVEL", "").lower() == "debug":
        import traceback

        traceback.print_exception(error)
    if isinstance(error, errors.WeftError):
        say(f"weft: {error.message}")
        if isinstance(error, errors.Unavailable):
            say("`weft doctor` tells which store is meant and how it is.")
    else:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        say(f"weft: {type(error).__name__}: {error} (WEFT_LOG_LEVEL=debug shows where){notes}")
    return exit_code(error)


def say(text: str) -> None:
    """Talks to whoever watches: stderr, never mixed with data."""
    print(visible(text), file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Prints a text that others wrote: it is data, and commands a terminal nothing."""
    print(visible(text), flush=True)


# --- data -----------------------------------------------------------------------------------------


def print_json(document: object) -> None:
    """Prints one JSON document: on one line in a pipe, indented on a terminal."""
    text = to_json(document)
    if sys.stdout.isatty():
        import msgspec

        text = msgspec.json.format(text, indent=2)
    print(text, flush=True)


def print_json_lines(documents: Iterable[object]) -> None:
    """Prints JSON Lines."""
    for document in documents:
        print(to_json(document), flush=True)


def to_json(document: object) -> str:
    """Returns a document as JSON; times as ISO 8601, bytes as base64, what JSON has no word for as text."""
    import msgspec

    try:
        text = msgspec.json.encode(document, enc_hook=str).decode()
    except (TypeError, ValueError):
        # msgpack has maps by any key, JSON only by text.
        text = msgspec.json.encode(_text_keys(document), enc_hook=str).decode()
    # JSON may hold these as they are, and a terminal obeys them.
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _text_keys(item) for key, item in value.items()}
    return [_text_keys(item) for item in value] if isinstance(value, (list, tuple)) else value


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "", spare: Sequence[str] = ()
) -> None:
    """Prints rows: a table on a terminal, tab-separated lines in a pipe. `empty` is said when there are none.

    A terminal that is too narrow for all columns does without the `spare` ones, the first of them first; a pipe gets them all.
    """
    terminal = sys.stdout.isatty()
    cells = [[cell(value, brief=terminal) for value in row] for row in rows]
    if not cells:
        if empty:
            say(empty)
    elif terminal:
        from weft.cli.tables import draw

        screen = console()
        screen.print(draw(screen, headers, cells, spare=spare), soft_wrap=True)
    else:
        for row in cells:
            print("\t".join(" ".join(text.split()) if "\n" in text or "\t" in text else text for text in row))


def print_fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Prints names and values: aligned on a terminal, tab-separated in a pipe. Empty values are left out."""
    shown = [(name, cell(value)) for name, value in pairs if value not in (None, "", {}, [])]
    if not sys.stdout.isatty():
        for name, text in shown:
            print(f"{name}\t{text}")
        return
    from rich.table import Table
    from rich.text import Text

    from weft.cli.tables import coloured

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")  # cut short, a path or an id would be of no use
    for name, text in shown:
        grid.add_row(Text(name, "bold"), coloured(text))
    console().print(grid)


def console() -> Console:
    """Returns the console for stdout. Markup and highlighting are off for data: it may hold brackets of its own."""
    from rich.console import Console

    return Console(highlight=False)


def cell(value: object, *, brief: bool = False) -> str:
    """Returns a value as a table shows it. `brief`: a moment by the clock of whoever looks, without the date of today."""
    from datetime import datetime

    if value is None:
        return ""
    if isinstance(value, datetime):
        local = value.astimezone()
        if not brief:
            return local.isoformat(sep=" ", timespec="milliseconds")
        today = local.date() == datetime.now(local.tzinfo).date()
        return f"{local:%H:%M:%S}" if today else f"{local:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, Mapping):
        return visible(" ".join(f"{key}={item}" for key, item in value.items()))
    return visible(str(value))
