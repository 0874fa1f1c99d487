"""Prints when each of six pages is taken and done by four worker processes, beside the figures of source document 004.

python scripts/document_timing.py [--rounds 9] [--json]

The pipeline is `examples/documents.py`, with a classifier that takes 50 ms per page; the times are those of the run's own
history, from the moment the pages are put in line. Of several rounds the median of each figure is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from page_text import table

ROOT = Path(__file__).resolve().parents[1]
TARGET = "examples.documents:app"
#: Worker processes, each with one slot; pages; and what one page takes.
WORKERS, PAGES, MS_PER_PAGE = 4, 6, 50
#: What the document says of its own system: page -> worker, taken, done (ms).
DOCUMENT = {1: (1, 1, 51), 2: (2, 1, 52), 3: (3, 1, 53), 4: (4, 1, 54), 5: (1, 51, 101), 6: (2, 52, 102)}
#: Seconds anything may take.
PATIENCE = 60

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print every round as it was")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-timing-") as directory:
        os.chdir(directory)  # the embedded store of this directory is shared by all processes that are started in it
        workers = start_workers()
        try:
            rounds = asyncio.run(measure(Path(directory), options.rounds))
        finally:
            workers.send_signal(signal.SIGTERM)
            workers.wait(PATIENCE)
    sys.stdout.write((json.dumps(rounds) if options.json else show(rounds)) + "\n")


def start_workers() -> subprocess.Popen[str]:
    """Starts the worker processes and waits until all are ready."""
    log = Path("workers.log")
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "weft", "worker", TARGET, "--processes", str(WORKERS), "-c", "1"]
    with log.open("w") as out:
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=out, stderr=out, text=True)
    deadline = time.monotonic() + PATIENCE
    while log.read_text().count("ready") < WORKERS:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise SystemExit(f"the workers do not start:\n{log.read_text()}")
        time.sleep(0.05)
    return process


async def measure(directory: Path, rounds: int) -> list[list[Row]]:
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    example: Any = importlib.import_module("examples.documents")
    file = directory / "file.txt"
    file.write_text("\f".join(f"Dear reader, this is page {n}" for n in range(1, PAGES + 1)))
    found = []
    async with example.app:
        for _ in range(rounds + 1):
            run = await example.documents.start({"files": [str(file)], "ms_per_page": MS_PER_PAGE})
            await run.result(timeout=PATIENCE)
            found.append(rows_of(await run.history()))
    return found[1:]  # the first one warms up


def rows_of(history: list[Any]) -> list[Row]:
    """Reads when each page was taken and done from the events of a run."""
    (begun,) = (event for event in history if "classify" in event.data.get("opened", ()))
    zero = begun.at.timestamp() * 1000
    ends = [event for event in history if event.type == "step_completed" and event.step.startswith("classify#")]
    names: dict[str, int] = {}
    for event in sorted(ends, key=lambda event: event.data["started"]):
        names.setdefault(event.data["by"], len(names) + 1)
    rows = [
        {
            "page": int(event.step.partition("#")[2]) + 1,
            "worker": names[event.data["by"]],
            "taken_ms": round(event.data["started"] - zero),
            "done_ms": round(event.at.timestamp() * 1000 - zero),
        }
        for event in ends
    ]
    # Pages as the document numbers them: in the order in which they are taken.
    rows.sort(key=lambda row: (row["taken_ms"], row["page"]))
    return [{**row, "page": n} for n, row in enumerate(rows, 1)]


def show(rounds: list[list[Row]]) -> str:
    lines = []
    for n in range(PAGES):
        worker, taken, done = DOCUMENT[n + 1]
        mine = [[rows[n][key] for rows in rounds] for key in ("taken_ms", "done_ms")]
        here = [f"{statistics.median(values):.0f}" for values in mine]
        lines.append([str(n + 1), str(worker), str(taken), str(done), *here])
    columns = ["page", "worker", "taken (document)", "done (document)", "taken (Weft)", "done (Weft)"]
    return table(columns, lines) + f"\n\nMilliseconds; median of {len(rounds)} rounds."


if __name__ == "__main__":
    main()
