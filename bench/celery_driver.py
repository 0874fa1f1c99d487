"""Celery with the Redis broker and the Redis result backend, prefork pool."""

import os
import sys

from celery import Celery, group

from bench.driver import RESULT_TIMEOUT_S, Driver, batches
from bench.effects import record

url = os.environ["BENCH_REDIS_URL"]
app = Celery("bench", broker=url, backend=url)
app.conf.broker_connection_retry_on_startup = True  # its default, said aloud to silence a warning


@app.task(name="noop")
def noop() -> int:
    return record()


class PeerDriver(Driver):
    def worker_command(self, processes: int) -> list[str]:
        # One child per process asked for: more children per core only cost memory on a no-op.
        options = ["--concurrency", str(processes), "--loglevel", "ERROR", "--without-gossip", "--without-mingle"]
        return [sys.executable, "-m", "celery", "--app", "bench.celery_driver", "worker", *options]

    def enqueue_one(self, n: int) -> None:
        for _ in range(n):
            noop.delay()

    def enqueue_bulk(self, n: int) -> None:
        for size in batches(n):
            group(noop.s() for _ in range(size)).apply_async()

    def round_trip(self) -> int:
        return noop.delay().get(timeout=RESULT_TIMEOUT_S)
