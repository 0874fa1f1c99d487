"""A worker process that may be told where to die: `python -m weft.testing.victim TARGET URL NAMESPACE`.

It serves all queues of the app with one slot, on the store it is told, whatever the app says: a test must never reach
the store of production. Crash points come from the environment (see `crash.py`). It drains on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

from weft.testing.crash import install_from_environ
from weft.testing.target import load_app

if TYPE_CHECKING:
    from weft.sdk.app import Weft


async def serve(app: Weft) -> None:
    """Works until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    queues = {"default"} | {task.spec.queue for task in app.tasks.values()}
    queues |= {workflow.spec.queue for workflow in app.workflows.values()}
    async with app, app.worker(queues=sorted(queues), concurrency=1):
        await stop.wait()


def main(target: str, url: str, namespace: str) -> None:
    app = load_app(target)
    with app.testing(redis_url=url, namespace=namespace):
        install_from_environ()
        asyncio.run(serve(app))


if __name__ == "__main__":
    main(*sys.argv[1:])
