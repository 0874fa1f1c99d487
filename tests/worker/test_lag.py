"""The lag detector: names the line that blocks the event loop."""

import asyncio
import contextlib
import logging
import queue
import sys
import threading
import time

import pytest

from weft import StepFailed
from weft.worker import lease
from weft.worker.lease import Pulse


def snore(seconds: float) -> None:
    time.sleep(seconds)  # the line a warning must name


async def test_a_step_that_blocks_the_loop_is_named_with_its_line(app, start_worker, monkeypatch, caplog):
    monkeypatch.setattr(lease, "LAG", 0.3)
    monkeypatch.setattr(lease, "TICK", 0.05)

    @app.task
    async def block() -> None:
        snore(0.8)

    await start_worker()
    await (await block.enqueue()).result(10)

    warnings = [record for record in caplog.records if "event loop is blocked" in record.getMessage()]
    assert len(warnings) == 1, "one warning per blockade, however long it lasts"
    where = warnings[0].facts["where"]
    assert __file__ in where
    assert "in snore" in where
    assert "time.sleep(seconds)" in where


def test_a_step_that_waits_in_a_library_is_named_by_the_line_that_called_it():
    inbox: queue.Queue[None] = queue.Queue()
    blocked = threading.Thread(target=fetch, args=(inbox,))
    blocked.start()
    while (frame := sys._current_frames()[blocked.ident]).f_code.co_name != "wait":
        time.sleep(0.001)
    own, library = lease._where(frame).split(", which waits in ")
    inbox.put(None)
    blocked.join()
    assert __file__ in own and "in fetch: inbox.get()" in own
    assert "threading.py" in library and "in wait" in library


def fetch(inbox):
    inbox.get()


@pytest.fixture
def pulse():
    """The thread that watches the loop, not started: it looks when it is told to."""
    return Pulse(lambda: None, lease=30.0, on_lost=lambda error: None, loop_thread=threading.get_ident())


def complaints(caplog) -> int:
    return caplog.text.count("event loop is blocked")


def test_a_loop_that_turned_lately_is_not_complained_about(pulse, caplog):
    pulse.beat = time.monotonic() - lease.LAG / 2

    pulse._watch_loop()

    assert complaints(caplog) == 0


def test_every_blockade_is_complained_about_once(pulse, caplog):
    pulse.beat = time.monotonic() - 2 * lease.LAG
    for _ in range(5):
        pulse._watch_loop()
    assert complaints(caplog) == 1

    pulse.beat = time.monotonic()
    pulse._watch_loop()
    pulse.beat = time.monotonic() - 3 * lease.LAG
    pulse._watch_loop()

    assert complaints(caplog) == 2
    assert pulse.worst_lag >= 3 * lease.LAG


def test_a_loop_whose_thread_is_gone_is_no_error(caplog):
    pulse = Pulse(lambda: None, lease=30.0, on_lost=lambda error: None, loop_thread=-1)
    pulse.beat = time.monotonic() - 2 * lease.LAG

    pulse._watch_loop()

    assert complaints(caplog) == 1


async def test_a_step_that_swallows_its_cancellation_is_named_with_its_line(app, start_worker, monkeypatch, caplog):
    monkeypatch.setattr("weft.worker.execute.STUBBORN_SECONDS", 0.05)
    let_go = asyncio.Event()

    @app.task(timeout="50ms")
    async def stubborn() -> None:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    @app.task(timeout="50ms")
    async def obedient() -> None:
        await let_go.wait()

    await start_worker()
    runs = [await stubborn.enqueue(), await obedient.enqueue()]
    async with asyncio.timeout(10):
        while not (told := [record for record in caplog.records if "goes on although" in record.getMessage()]):
            await asyncio.sleep(0.01)
    let_go.set()
    for run in runs:
        with pytest.raises(StepFailed, match="timeout"):
            await run.result(10)

    (warning,) = told
    assert (warning.facts["task"], warning.facts["run"], warning.facts["why"]) == ("stubborn", runs[0].id, "timed out")
    assert __file__ in warning.facts["where"] and "in stubborn" in warning.facts["where"]


def test_the_lease_is_renewed_while_nobody_reads_what_is_logged(monkeypatch):
    # Given a log that does not take a line, such as a full pipe, and a loop that stands still.
    monkeypatch.setattr(lease, "LAG", 0.01)
    monkeypatch.setattr(lease, "TICK", 0.01)
    read, renewed = threading.Event(), threading.Semaphore(0)

    class Deaf(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            read.wait(10)

    handler, logger = Deaf(), logging.getLogger("weft.worker")
    logger.addHandler(handler)
    pulse = Pulse(renewed.release, lease=0.1, on_lost=lambda error: None, loop_thread=threading.get_ident())
    try:
        # When it beats, then it goes on renewing.
        pulse.start()
        assert all(renewed.acquire(timeout=5) for _ in range(3))
    finally:
        read.set()
        pulse.stop()
        pulse.join()
        logger.removeHandler(handler)
