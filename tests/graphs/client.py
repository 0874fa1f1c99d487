"""A client in a process of its own: starts the graph of every construct, signals, approves, and waits for the end.

    python -m graphs.client URL NAMESPACE SITE

Everything it does can be repeated: whoever starts it again after a crash asks for the same.
"""

from __future__ import annotations

import asyncio
import sys

from chaos.workload import client_app  # installs the crash points that the environment asks for
from graphs.attending import attend, input_of
from graphs.every import declare_every


async def main(url: str, namespace: str, site: str) -> None:
    app = client_app(url, namespace)
    async with app:
        run = await declare_every(app).options(idempotency_key="every").start(input_of(site))
        await attend(app, run)
        await run.result(60)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
