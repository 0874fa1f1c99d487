"""Temporal: workflows of local activities on its development server, kept by the driver; workers find it by a file.

`python -m bench.temporal_driver worker` is a worker process.
"""

import asyncio
import contextlib
import itertools
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from bench.driver import Driver, script
from bench.effects import record

#: Where the driver writes the address of the server; both run in the directory of the measurement.
ADDRESS = Path("temporal.address")
#: Seconds within which the server has to answer.
START_S = 30.0
#: Starts under way at once: there is no bulk call.
IN_FLIGHT = 16
#: Workflow tasks and activities that one worker process executes at once.
CONCURRENCY = 100

QUEUE = "bench"
#: Temporal asks for a limit of each activity.
LIMIT = timedelta(seconds=60)


@activity.defn
async def step() -> int:
    return record()


# Without the sandbox, which would reload modules for each workflow: the fastest public way.
@workflow.defn(sandboxed=False)
class Chain:
    @workflow.run
    async def run(self) -> int:
        for _ in range(10):
            await workflow.execute_local_activity(step, start_to_close_timeout=LIMIT)
        return 1


@workflow.defn(sandboxed=False)
class Gather:
    @workflow.run
    async def run(self, n: int) -> int:
        return len(
            await asyncio.gather(*[workflow.execute_activity(step, start_to_close_timeout=LIMIT) for _ in range(n)])
        )


class PeerDriver(Driver):
    def __init__(self) -> None:
        self._ids = itertools.count()

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        address = f"127.0.0.1:{_free_port()}"
        port = address.rpartition(":")[2]
        command = [script("temporal"), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", port]
        server = await asyncio.create_subprocess_exec(
            *command, "--log-level", "error", stdout=asyncio.subprocess.DEVNULL
        )
        # In the driver's own process group: it goes with the driver, whatever happens to that.
        stack.callback(server.kill)
        self._client = await _connected(address)
        ADDRESS.write_text(address)

    def worker_command(self, processes: int) -> list[str]:
        return [sys.executable, "-m", "bench.temporal_driver", "worker"]

    async def chains(self, n: int) -> None:
        for at in range(0, n, IN_FLIGHT):
            await asyncio.gather(*[self._start() for _ in range(min(IN_FLIGHT, n - at))])

    async def _start(self) -> None:
        await self._client.start_workflow(Chain.run, id=f"chain-{next(self._ids)}", task_queue=QUEUE)

    async def scatter(self, n: int) -> None:
        await self._client.execute_workflow(Gather.run, n, id=f"gather-{next(self._ids)}", task_queue=QUEUE)

    def enqueue_one(self, n: int) -> None:
        raise NotImplementedError

    def round_trip(self) -> object:
        raise NotImplementedError


async def _connected(address: str) -> Client:
    """A client of a server that has its namespace; raises the last error when it has none in time."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            client = await Client.connect(address)
            await client.count_workflows()
        except (RPCError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
        else:
            return client


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def work() -> None:
    client = await Client.connect(ADDRESS.read_text())
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[Chain, Gather],
        activities=[step],
        max_concurrent_activities=CONCURRENCY,
        max_concurrent_local_activities=CONCURRENCY,
        max_concurrent_workflow_tasks=CONCURRENCY,
    )
    await worker.run()


if __name__ == "__main__":
    asyncio.run(work())
