"""Log lines: whole under any formatter, told once by ours."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from typing import TextIO

import pytest

from weft.telemetry import Aside, PlainFormatter, _writing_to, get_logger


class Lines(logging.Handler):
    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(params=[logging.Formatter("%(message)s"), PlainFormatter()], ids=["any", "ours"])
def lines(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    handler, logger = Lines(request.param), logging.getLogger("weft.telemetry.test")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


def test_a_line_tells_its_facts_once_whatever_formats_it(lines: list[str]) -> None:
    log = get_logger("weft.telemetry.test")
    log.warning("a run failed", run="r0-1", error="100% wrong", spec={"a": 1})
    log.warning("50% of them failed")
    log.warning("50% of them failed", n=3)
    assert [line[line.index(word) :] for line, word in zip(lines, ("a run", "50%", "50%"), strict=True)] == [
        "a run failed  run=r0-1 error=100% wrong spec={'a': 1}",
        "50% of them failed",
        "50% of them failed  n=3",
    ]
    log.warning("one", about={"a": 1})
    assert lines[-1].endswith("one  about={'a': 1}")


class Pipe:
    """A pipe that nobody reads until somebody asks, and a logger that writes to it."""

    def __init__(self, *, most: int) -> None:
        self._mouth, end = os.pipe()
        self.stream: TextIO = os.fdopen(end, "w")
        self.aside = Aside(_writing_to(self.stream), most=most)
        self.aside.setFormatter(logging.Formatter("%(message)s"))
        self.logger = logging.Logger("weft.telemetry.test")
        self.logger.addHandler(self.aside)

    def read(self) -> list[str]:
        """Takes all that is written, and closes the pipe."""
        lines: list[str] = []

        def take() -> None:
            with os.fdopen(self._mouth) as mouth:
                lines.extend(mouth.read().splitlines())

        reader = threading.Thread(target=take)
        reader.start()
        self.aside.flush()
        self.stream.close()
        reader.join()
        return lines


def test_who_logs_never_waits_for_who_reads_and_what_is_dropped_is_counted() -> None:
    pipe, n = Pipe(most=100_000), 5_000
    for i in range(n):
        pipe.logger.warning("%05d %s", i, "x" * 94)

    lines = pipe.read()
    told = [line for line in lines if "dropped" in line]
    dropped = sum(int(line.removesuffix(" log lines were dropped: nobody took them in time")) for line in told)
    kept = [line for line in lines if "dropped" not in line]
    assert 0 < dropped == n - len(kept)
    assert kept == sorted(kept) and kept[0].startswith("00000") and len(kept) >= 1_000
    assert lines[-1] in told


def test_the_end_does_not_wait_for_who_never_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.telemetry.LAST_LINES", 0.05)
    pipe = Pipe(most=1_000_000)
    for _ in range(2_000):
        pipe.logger.warning("x" * 100)
    pipe.aside.flush()
    pipe.aside.close()
    assert pipe.read() == ["x" * 100] * 2_000


def test_a_line_that_cannot_be_made_is_told_like_any_other() -> None:
    pipe = Pipe(most=1_000)
    pipe.logger.warning("%d wrong", "text")
    lines = pipe.read()
    assert lines[0].startswith("a log line could not be made at ") and "'%d wrong' ('text',)" in lines[0]
    assert lines[-1].startswith("TypeError: %d format")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_writes_its_own_lines_and_none_of_its_parents() -> None:
    pipe = Pipe(most=1_000_000)
    for i in range(1_000):
        pipe.logger.warning("%d %s", i, "x" * 100)
    # The thread waits for a reader at this point, or soon.
    ready, go = os.pipe()
    if (child := os.fork()) == 0:
        pipe.aside.left_behind()  # what the process's own handler is told by a hook
        os.read(ready, 1)
        pipe.logger.warning("from the child")
        pipe.aside.flush()
        os._exit(0)
    pipe.stream.flush()
    threading.Timer(0.05, os.write, (go, b".")).start()
    lines = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(lines)[:-1] == sorted(f"{i} {'x' * 100}" for i in range(1_000))
    assert lines.count("from the child") == 1
