"""Log lines: whole under any formatter, told once by ours."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from weft.telemetry import PlainFormatter, get_logger


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
