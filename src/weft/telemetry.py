"""Logging, set up once. Library code asks for a logger; only the command line configures where lines go."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from weft.terminal import visible

#: Characters of lines that wait to be written, at most.
MAX_HELD = 4_000_000
#: Characters of lines that are written together.
TOGETHER = 8_000
#: Seconds that the end of a process waits for its last lines to be taken.
LAST_LINES = 1.0


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


class Aside(logging.Handler):
    """Writes lines in a thread of its own, so that nobody who logs ever waits for who reads them.

    A pipe that is full, or a terminal on hold, would stop the event loop. Lines that are too much are dropped, and counted.
    """

    def __init__(self, write: Callable[[str], None], *, most: int = MAX_HELD) -> None:
        super().__init__()
        self._write, self._most = write, most
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        #: Guards what is counted; told when a line is written. Never held while somebody writes.
        self._counts = threading.Condition()
        self._held = self._dropped = 0
        self._forked = False
        threading.Thread(target=self._work, name="weft log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record) + "\n"
            if self._forked:
                return self._write(text)
            with self._counts:
                if self._held and self._held + len(text) > self._most:
                    self._dropped += 1
                    return
                self._put(self._tell_dropped() + text)
        except Exception:  # noqa: BLE001 - whoever logs must not fail by what it logs
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Tells of a line that could not be made, as logging itself does, and no more directly than any other line."""
        wrong = "".join(traceback.format_exception(*sys.exc_info())).rstrip()
        with contextlib.suppress(Exception):
            text = f"a log line could not be made at {record.pathname}:{record.lineno}: {record.msg!r} {record.args!r}\n{wrong}"
            self.emit(logging.LogRecord("weft.telemetry", logging.ERROR, "", 0, text, None, None))

    def flush(self) -> None:
        """Waits until all lines are written, and not for ever: nobody may read them."""
        with self._counts:
            if not self._forked and self._dropped:
                self._put(self._tell_dropped())
            self._counts.wait_for(lambda: not self._held, LAST_LINES)

    def left_behind(self) -> None:
        """Called in a child that was forked: it has no thread that writes, and its parent's lines are not its own."""
        self._counts, self._lines = threading.Condition(), queue.SimpleQueue()
        self._held, self._dropped, self._forked = 0, 0, True

    def _put(self, text: str) -> None:
        self._held += len(text)
        self._lines.put(text)

    def _work(self) -> None:
        while True:
            text = self._lines.get()
            while not self._lines.empty() and len(text) < TOGETHER:
                text += self._lines.get()
            # Whatever is wrong with where lines go: there is nobody whom it could be told.
            with contextlib.suppress(Exception):
                self._write(text)
            with self._counts:
                self._held -= len(text)
                if not self._held and self._dropped:
                    self._put(self._tell_dropped())
                self._counts.notify_all()

    def _tell_dropped(self) -> str:
        n, self._dropped = self._dropped, 0
        if not n:
            return ""
        text = f"{n} log lines were dropped: nobody took them in time"
        return self.format(logging.LogRecord("weft.telemetry", logging.WARNING, "", 0, text, None, None)) + "\n"


def _writing_to(stream: TextIO | None) -> Callable[[str], None]:
    """Returns what writes to a stream: to its descriptor, if it has one, for a forked child may find the stream locked."""
    if stream is None:
        return lambda text: None
    try:
        number = stream.fileno()
    except OSError:

        def put(text: str) -> None:
            stream.write(text)
            stream.flush()

        return put

    def write(text: str) -> None:
        data = text.encode(stream.encoding or "utf-8", "backslashreplace")
        while data:
            try:
                data = data[os.write(number, data) :]
            except BlockingIOError:  # somebody who shares it has made it so
                select.select([], [number], [], 1.0)

    return write


def get_logger(name: str) -> Logger:
    """Returns the logger of one room."""
    return Logger(name)


def configure(level: str, *, aside: bool = False) -> None:
    """Sends Weft's lines to stderr, and user code's through the same handler.

    `aside`: for processes that serve, which must never wait until somebody reads what they say.
    """
    handler: logging.Handler = logging.StreamHandler()
    if aside:
        handler = _Here.aside = Aside(_writing_to(sys.stderr))
    handler.setFormatter(PlainFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _Here:
    #: What writes the lines of this process, if it serves.
    aside: Aside | None = None


def _leave_behind() -> None:
    if _Here.aside is not None:
        _Here.aside.left_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_behind)
