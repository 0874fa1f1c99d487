"""dramatiq on Redis with the results middleware. It has no bulk enqueue: `group` sends one by one."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench.driver import RESULT_TIMEOUT_S, Driver, script
from bench.effects import record

url = os.environ["BENCH_REDIS_URL"]
broker = RedisBroker(url=url)
broker.add_middleware(Results(backend=RedisBackend(url=url)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def noop() -> int:
    return record()


class PeerDriver(Driver):
    def worker_command(self, processes: int) -> list[str]:
        return [script("dramatiq"), "bench.dramatiq_driver", "--processes", str(processes), "--threads", "8"]

    def enqueue_one(self, n: int) -> None:
        for _ in range(n):
            noop.send()

    def round_trip(self) -> int:
        return noop.send().get_result(block=True, timeout=RESULT_TIMEOUT_S * 1000)
