"""Tables on a terminal: ids stay in one piece, to be copied; long texts are folded; what is spare is left out."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

#: Blanks between two columns.
GAP = 2

#: A column is folded no narrower than this.
NARROW = 14

#: What is copied from a table into the next command: folded it would be of no use.
_ID = re.compile(r"[a-z]\d*-[0-9A-Z]{22}")

#: Words whose meaning a colour makes visible at once.
_COLOURS = {
    "completed": "green",
    "ok": "green",
    "running": "cyan",
    "waiting": "yellow",
    "warning": "yellow",
    "failed": "red",
    "problem": "red",
    "cancelled": "magenta",
}


def coloured(text: str) -> Any:
    """Returns a text for the terminal. It is data: brackets in it are no markup."""
    from rich.text import Text

    return Text(text, style=_COLOURS.get(text, ""))


def fit(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, spare: Sequence[str] = ()
) -> dict[int, int]:
    """Returns which columns are shown, by number, and how wide each is.

    What does not fit: 1. loses the columns that are empty in every row, 2. loses those that are spare, the first of them first,
    3. has its long texts folded. Where even that is too much the lines are longer than the terminal.
    """
    from rich.cells import cell_len

    columns = [[row[i] for row in rows] for i in range(len(headers))]
    full = [max(map(cell_len, (header, *cells))) for header, cells in zip(headers, columns, strict=True)]
    least = [
        natural if any(map(_ID.match, cells)) else min(natural, max(NARROW, *map(len, header.split() or [""])))
        for header, cells, natural in zip(headers, columns, full, strict=True)
    ]
    shown = list(range(len(headers)))
    if _total(full) > width:
        shown = [i for i in shown if any(columns[i])]
        for name in spare:
            if _total([least[i] for i in shown]) <= width:
                break
            shown = [i for i in shown if headers[i] != name]
    widths = {i: least[i] for i in shown}
    left = width - _total(list(widths.values()))
    while left > 0 and (tight := [i for i in shown if widths[i] < full[i]]):
        # The narrowest of those that want more first: what needs little gets all of it.
        narrow = min(tight, key=lambda i: (widths[i], i))
        widths[narrow] += 1
        left -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * max(0, len(widths) - 1)


def draw(
    console: Console,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    spare: Sequence[str] = (),
    right: Collection[str] = (),
) -> Any:
    """Returns a table as text, as wide as the console; columns named in `right` stand to the right."""
    from rich.text import Text

    widths = fit(headers, rows, console.width, spare=spare)
    table = Text(no_wrap=True, overflow="ignore")
    for style, row in [("bold", headers), *(("", row) for row in rows)]:
        folded = [
            (Text(row[i], style) if style else coloured(row[i])).wrap(console, max(1, width), overflow="fold")
            or [Text()]
            for i, width in widths.items()
        ]
        for at in range(max(map(len, folded), default=0)):
            line = Text()
            for (i, width), lines in zip(widths.items(), folded, strict=True):
                cell = lines[at] if at < len(lines) else Text()
                cell.rstrip()
                if headers[i] in right:
                    cell.pad_left(max(0, width - cell.cell_len))
                line.append_text(cell)
                line.append(" " * (width - cell.cell_len + GAP))
            line.rstrip()
            table.append_text(line).append("\n")
    table.right_crop(1)
    return table
