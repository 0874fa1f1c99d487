"""What the steps of a run logged."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.model import LogLine
from weft.engine.engine import Engine
from weft.engine.runs import load
from weft.ids import partition_of
from weft.store.steps import read_lines


async def log_lines(engine: Engine, run: str, unpack: Callable[..., LogLine]) -> list[LogLine]:
    """Returns what is kept of what the run's steps logged, oldest first; the first tells how many were dropped."""
    row = await load(engine, run)
    total = row.number("logged", 0)
    packed = await read_lines(engine.ns, partition_of(run), run) if total else []
    return [unpack(line, dropped=max(0, total - len(packed)) if i == 0 else 0) for i, line in enumerate(packed)]
