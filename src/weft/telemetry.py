"""Logging, set up once. Library code asks for a logger; only the command line configures where lines go."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from weft.terminal import visible


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
        """Writes a line that is whole under any formatter: an app whose logging is its own must see which run failed."""
        if self._logger.isEnabledFor(level):
            named = "".join(f" {name.replace('%', '%%')}=%s" for name in facts)
            text = sentence.replace("%", "%%") + (f" {named}" if named else "")
            # Without arguments nothing is filled in, so nothing is doubled either. `told`: the message has the facts.
            extra = {"facts": facts, "told": True}
            # A handler that cannot write tells of the errors around it, and their own code may raise: no step may end by that.
            with contextlib.suppress(Exception):
                self._logger.log(level, text if facts else sentence, *facts.values(), extra=extra)


class PlainFormatter(logging.Formatter):
    """`12:00:01 warning weft.worker  sentence  key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        own = getattr(record, "told", False)
        facts = {} if own else getattr(record, "facts", {})
        told = " ".join(f"{key}={value}" for key, value in facts.items())
        head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():<7} {record.name}"
        # Weft's own lines repeat what others wrote, such as errors; what user code logs is as it wants it.
        message = visible(record.getMessage()) if own else record.getMessage()
        line = f"{head}  {message}" + (f"  {told}" if told else "")
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
