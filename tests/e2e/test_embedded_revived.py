"""Whoever uses the embedded store outlives its server: the server is started again, with its data."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from weft import Weft


def flush_always(app: Weft) -> None:
    """Has everything on the disk at once: a file that is flushed every second may be two seconds behind while the disk is busy.

    Not by `durability="fsync"`, which a Redis 7.0 on the path does not have.
    """
    with redis.Redis.from_url(app.url()) as client:
        client.config_set("appendfsync", "always")


async def test_work_goes_on_after_the_embedded_server_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_REDIS_URL", raising=False)
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "data"))
    app = Weft("revived")

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker():
        first = await double.enqueue(1)
        assert await first.result(timeout=10) == 2
        assert app.embedded is not None
        dead = app.embedded.pid

        os.kill(dead, signal.SIGKILL)

        # The start is repeated while the store is away, so nobody needs to wait for the server here.
        second = await double.enqueue(21)
        assert await second.result(timeout=20) == 42
        assert app.embedded.pid != dead


async def test_what_was_queued_before_the_kill_is_done_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_REDIS_URL", raising=False)
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "data"))
    app = Weft("revived")
    gate = asyncio.Event()

    @app.task
    async def held(n: int) -> int:
        await gate.wait()
        return n

    async with app, app.worker(concurrency=1):
        flush_always(app)
        runs = await held.enqueue_many([(n,) for n in range(20)])
        assert app.embedded is not None

        os.kill(app.embedded.pid, signal.SIGKILL)
        gate.set()

        assert [await run.result(timeout=20) for run in runs] == list(range(20))


async def test_a_producer_without_a_worker_brings_its_server_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_REDIS_URL", raising=False)
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "data"))
    app = Weft("revived")

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app:
        flush_always(app)
        first = await double.enqueue(1)
        assert app.embedded is not None
        dead = app.embedded.pid
        os.kill(dead, signal.SIGKILL)

        # Many at once: they wait for one attempt, and none of them is told of the other's server.
        started = await asyncio.gather(*(double.enqueue(n) for n in range(50)))

        assert len({run.id for run in started}) == 50
        assert await first.status() == "queued"
        assert app.embedded.pid != dead


def test_a_server_that_was_stopped_for_all_comes_back_for_who_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_REDIS_URL", raising=False)
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "data"))
    web, dev = Weft("shop"), Weft("shop")

    @web.task
    def double(n: int) -> int:
        return 2 * n

    first = double.delay(1)
    dev.url()
    dev.release(stop=True)  # as `weft dev` does when it is stopped

    assert double.delay(2).sync.status() == "queued"  # a start is repeated; a read that was cut off tells so
    assert first.sync.status() == "queued"
    web.portal.close()
    web.release()


def test_a_forked_process_keeps_the_server_after_its_parent_has_gone(tmp_path: Path) -> None:
    script = """
import os, sys
from weft import Weft

app = Weft("forked")

@app.task
def double(n: int) -> int:
    return 2 * n

run = double.delay(1)
gone, told = os.pipe()
if os.fork():
    sys.exit(0)  # by which it lets go of the server
os.close(told)
os.read(gone, 1)
assert app.embedded is None
print(run.sync.status(), double.delay(2).sync.status(), app.embedded is not None, flush=True)
"""
    environment = {key: value for key, value in os.environ.items() if key != "WEFT_REDIS_URL"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment | {"WEFT_DATA": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["queued", "queued", "True"], done.stderr
