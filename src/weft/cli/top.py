"""`weft top`: queues and workers, live."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.queues import HEADERS, SPARE, WORKER_HEADERS, WORKER_SPARE, document, row, worker_row

if TYPE_CHECKING:
    from rich.console import Console

    from weft.engine.queues import QueueInfo, WorkerInfo
    from weft.sdk.app import Weft

#: Columns that are read as numbers, one below the other.
NUMBERS = frozenset({"ready", "running", "held", "oldest", "per second", "workers", "slots", "pid", "concurrency"})


def top(
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Watch queues and workers: depth, age, rates, steps in flight, dead letters. Ctrl-C ends it.

    With --json one document per look. In a pipe it is one look: the lines of `weft queues ls`, then those of `weft workers ls`.
    """
    loaded = targets.load_app_or_bare(app)
    try:
        targets.with_app(loaded, lambda app: _watch(app, interval, once=once, json=json))
    except KeyboardInterrupt:
        return


async def _look(app: Weft, interval: float) -> tuple[list[QueueInfo], list[WorkerInfo], dict[str, int]]:
    queues = await app.queues.list(sample=interval)
    return queues, await app.workers.list(), {"failed": await app.dlq.count()}


async def _watch(app: Weft, interval: float, *, once: bool, json: bool) -> None:
    if json or once or not sys.stdout.isatty():
        while True:
            queues, workers, counts = await _look(app, interval)
            if json:
                import msgspec

                told = {"queues": [document(q) for q in queues], "workers": msgspec.to_builtins(workers), **counts}
                output.print_json_lines([told])
            else:
                output.say("   ".join(_figures(queues, workers, counts)))
                output.print_table(HEADERS, [row(queue) for queue in queues], spare=SPARE)
                output.print_table(WORKER_HEADERS, [worker_row(worker) for worker in workers], spare=WORKER_SPARE)
            if once or not json:
                return
    from rich.live import Live

    screen = output.console()
    with Live(_screen(screen, [], [], {}), console=screen, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(screen, *await _look(app, interval)), refresh=True)


def _figures(queues: list[QueueInfo], workers: list[WorkerInfo], counts: dict[str, int]) -> tuple[str, str, str]:
    total, waiting = sum(queue.throughput for queue in queues), sum(queue.depth for queue in queues)
    in_flight, alive = sum(queue.running for queue in queues), sum(worker.alive for worker in workers)
    work = f"{total:,.0f} steps/s   {waiting:,} waiting   {in_flight:,} in flight"
    return work, f"{counts.get('failed', 0):,} dead letters", f"{alive} workers"


def _screen(screen: Console, queues: list[QueueInfo], workers: list[WorkerInfo], counts: dict[str, int]) -> Any:
    from rich.console import Group
    from rich.text import Text

    from weft.cli.tables import draw

    work, failed, alive = _figures(queues, workers, counts)
    red = "red" if counts.get("failed") else ""
    head = Text.assemble(("weft top  ", "bold"), work, "   ", (failed, red), "   ", alive)
    parts: list[Any] = [head]
    for title, headers, spare, rows in (
        ("queues", HEADERS, SPARE, [row(queue) for queue in queues]),
        ("workers", WORKER_HEADERS, WORKER_SPARE, [worker_row(worker) for worker in workers]),
    ):
        cells = [[output.cell(value, brief=True) for value in each] for each in rows]
        drawn = draw(screen, headers, cells, spare=spare, right=NUMBERS)
        parts += [Text(), Text(title, "italic"), *([drawn] if rows else [])]
    return Group(*parts)
