"""What the steps of a run logged."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.model import LogLine
from weft.engine.coldruns import cold_blob
from weft.engine.engine import Engine
from weft.engine.runs import find
from weft.ids import partition_of
from weft.store.steps import read_lines


async def log_lines(engine: Engine, run: str, unpack: Callable[..., LogLine]) -> list[LogLine]:
    """Returns what is kept of what the run's steps logged, oldest first; the first tells how many were dropped."""
    row = await find(engine, run)
    total, packed = row.number("logged", 0), list[bytes]()
    if total:
        packed = await read_lines(engine.ns, partition_of(run), run)
    if not packed and not row.open:
        # The lines of an archived run are archived too, and the store may have let them go.
        total, packed = await archived_lines(engine, run)
    return [unpack(line, dropped=max(0, total - len(packed)) if i == 0 else 0) for i, line in enumerate(packed)]


async def archived_lines(engine: Engine, run: str) -> tuple[int, list[bytes]]:
    """Returns how many lines a run logged, and those that the archive has, packed."""
    data = await cold_blob(engine, f"lines {run}")
    if data is None:
        return 0, []
    from weft.archive.lines import parse_lines

    return parse_lines(data)
