"""A worker process under test: `python -m chaos.worker`, set up by environment variables.

CHAOS_QUEUES      comma-separated; CHAOS_CONCURRENCY, CHAOS_GRACE numbers
CHAOS_GATE        a file: the process opens the store at once, but serves only when the file is there
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import uvloop

from chaos.workload import app
from weft.telemetry import configure

READY = "chaos worker ready"
DRAINED = "chaos worker drained"


def say(text: str) -> None:
    os.write(2, f"{text}\n".encode())


async def main() -> None:
    queues = os.environ["CHAOS_QUEUES"].split(",")
    worker = app.worker(
        queues=queues,
        concurrency=int(os.environ["CHAOS_CONCURRENCY"]),
        grace=float(os.environ["CHAOS_GRACE"]),
    )
    told = asyncio.Event()

    def on_signal() -> None:
        if told.is_set():
            worker.hasten()
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    async with app:
        say("chaos worker open")
        gate = os.environ.get("CHAOS_GATE")
        while gate and not os.path.exists(gate):
            await asyncio.sleep(0.01)
        async with worker:
            say(f"{READY} {worker.session}")
            await told.wait()
            say("chaos worker stopping")
    say(DRAINED)


if __name__ == "__main__":
    configure(os.environ.get("WEFT_LOG_LEVEL", "info"))
    uvloop.run(main())
    sys.exit(0)
