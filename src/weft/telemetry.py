"""Logging, set up once. Library code asks for a logger; only the command line configures where lines go."""

from __future__ import annotations

import logging
from typing import Any


class Logger:
    """A thin structured logger over the standard library: a sentence, then facts as key=value."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, sentence: str, **facts: Any) -> None:
        self._write(logging.DEBUG, sentence, facts)

    def info(self, sentence: str, **facts: Any) -> None:
        self._write(logging.INFO, sentence, facts)

    def warning(self, sentence: str, **facts: Any) -> None:
        self._write(logging.WARNING, sentence, facts)

    def error(self, sentence: str, **facts: Any) -> None:
        self._write(logging.ERROR, sentence, facts)

    def _write(self, level: int, sentence: str, facts: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, sentence, extra={"facts": facts})


class PlainFormatter(logging.Formatter):
    """`12:00:01 warning weft.worker  sentence  key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{key}={value}" for key, value in getattr(record, "facts", {}).items())
        head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():<7} {record.name}"
        line = f"{head}  {record.getMessage()}" + (f"  {facts}" if facts else "")
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def get_logger(name: str) -> Logger:
    """Returns the logger of one room."""
    return Logger(name)


def configure(level: str) -> None:
    """Sends Weft's lines to stderr, and user code's through the same handler."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
