"""Tables on terminals of any width: what is copied stays whole, and nothing is cut off silently in the middle."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from rich.console import Console

from weft.cli.output import cell
from weft.cli.tables import draw, fit

HEADERS = ["id", "name", "kind", "status", "queue", "created", "tags"]
SPARE = ["kind", "queue"]
ID = "r0-06GY90TBWRHJ1G7D3X9QE5"


def row(tags: str = "", name: str = "charge", queue: str = "default") -> list[str]:
    return [ID, name, "task", "completed", queue, "13:20:53", tags]


def shown(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    screen = Console(file=io.StringIO(), width=width)
    return draw(screen, HEADERS, rows, spare=SPARE).plain.splitlines()  # type: ignore[no-any-return]


def test_what_fits_is_shown_whole_empty_columns_too() -> None:
    head, line = shown([row()], 100)
    assert head.split() == HEADERS
    assert line == f"{ID}  charge  task  completed  default  13:20:53"


def test_a_narrow_terminal_loses_empty_and_spare_columns_and_folds_no_id() -> None:
    wide = "schedule=nightly tick=2026-11-16T13:20:00Z"
    head, line = shown([row()], 74)
    assert head.split() == [word for word in HEADERS if word != "tags"] and line.startswith(ID)

    for width in (70, 80, 90, 100):
        head, *lines = shown([row(), row(wide)], width)
        assert max(map(len, [head, *lines])) <= width
        assert [line.split()[0] for line in lines if line.startswith("r0-")] == [ID, ID]
        assert "".join(" ".join(line[head.index("tags") :] for line in lines).split()) == wide.replace(" ", "")
    assert "kind" not in shown([row(wide)], 80)[0] and "queue" in shown([row(wide)], 90)[0]


def test_a_table_without_rows_has_its_head() -> None:
    assert [line.split() for line in shown([], 80)] == [HEADERS]


def test_long_texts_share_what_is_left() -> None:
    widths = fit(["id", "a", "b"], [[ID, "x" * 40, "y" * 15]], 80)
    assert widths == {0: len(ID), 1: 80 - len(ID) - 15 - 4, 2: 15}


def test_where_nothing_more_can_go_lines_are_longer_than_the_terminal() -> None:
    head, line = shown([row()], 20)
    assert head.split() == ["id", "name", "status", "created"] and line.startswith(f"{ID}  charge")


def test_wide_characters_brackets_and_lines_in_data_do_no_harm() -> None:
    lines = shown([row(name="[bold]漢字[/bold]"), row(name="two\nlines")], 100)
    assert "[bold]漢字[/bold]" in lines[1]
    assert "two" in lines[2] and "lines" in lines[3]


def test_a_moment_of_today_is_shown_without_its_date() -> None:
    now = datetime.now(UTC)
    assert cell(now, brief=True) in (f"{now.astimezone():%H:%M:%S}", f"{now.astimezone():%Y-%m-%d %H:%M:%S}")
    old = now - timedelta(days=400)
    assert cell(old, brief=True) == f"{old.astimezone():%Y-%m-%d %H:%M:%S}"
    assert cell(now).endswith(now.astimezone().isoformat()[-6:])
