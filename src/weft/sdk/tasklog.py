"""`current().log`: a logger whose lines also stay with the run, bounded.

A line goes to the worker's own log as any other, and packed into the attempt's buffer, from which it leaves together with
the next report or the commit. Nothing here waits, and nothing raises: a log line must not cost a step its result.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from weft.core.model import LogLine

#: Lines and bytes that are kept of one run; lib/keep.lua has the same numbers.
MAX_LINES, MAX_BYTES = 100, 16_384
#: Characters of a message, and of a field's text, that are kept.
MAX_MESSAGE, MAX_TEXT = 1_000, 200
#: Fields of a line that are kept, and bytes up to which they are.
MAX_FIELDS, MAX_LINE_BYTES = 16, 6_000

#: What the standard library takes, and as what; every other keyword is a field.
_OF_LOGGING: dict[str, tuple[type, ...]] = {
    "exc_info": (bool, BaseException, tuple, type(None)),
    "stack_info": (bool,),
    "stacklevel": (int,),
    "extra": (Mapping,),
}

_ENCODE = msgspec.msgpack.Encoder().encode

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class TaskLog(_Adapter):
    """A logger that adds the run and the attempt to every line, takes fields by keyword, and keeps what it is told.

    Lines from level INFO on are kept with the run; DEBUG only where the worker's own log shows it.
    """

    def __init__(self, task: str, run: str, attempt: int, keep: Callable[[bytes], None], *, step: str = "") -> None:
        self._facts = {"run": run, **({"step": step} if step else {}), "attempt": attempt}
        super().__init__(logging.getLogger(f"weft.task.{task}"), {"facts": self._facts})
        self._attempt, self._keep, self._step = attempt, keep, step

    # What is given by keyword is a field, whatever its name: `level` and `msg` are ordinary ones.
    def debug(self, msg: object, /, *args: object, **fields: Any) -> None:  # type: ignore[override]
        self._write(logging.DEBUG, msg, args, fields)

    def info(self, msg: object, /, *args: object, **fields: Any) -> None:  # type: ignore[override]
        self._write(logging.INFO, msg, args, fields)

    def warning(self, msg: object, /, *args: object, **fields: Any) -> None:  # type: ignore[override]
        self._write(logging.WARNING, msg, args, fields)

    def error(self, msg: object, /, *args: object, **fields: Any) -> None:  # type: ignore[override]
        self._write(logging.ERROR, msg, args, fields)

    def exception(self, msg: object, /, *args: object, **fields: Any) -> None:  # type: ignore[override]
        self._write(logging.ERROR, msg, args, {"exc_info": True, **fields})

    def critical(self, msg: object, /, *args: object, **fields: Any) -> None:  # type: ignore[override]
        self._write(logging.CRITICAL, msg, args, fields)

    def log(self, level: int, msg: object, /, *args: object, **fields: Any) -> None:  # type: ignore[override]
        """Logs one line, like `.info("sent %s", name, to=address)`."""
        self._write(level, msg, args, fields)

    def _write(self, level: int, msg: object, args: tuple[object, ...], fields: dict[str, Any]) -> None:
        given = {name: fields[name] for name in _OF_LOGGING if name in fields}
        known: dict[str, Any] = {name: fields.pop(name) for name in given if isinstance(given[name], _OF_LOGGING[name])}
        enabled = self.isEnabledFor(level)
        if enabled or level >= logging.INFO:
            told = {**known.get("extra", {}), **fields}
            if known.get("exc_info"):
                told = {**told, "error": _error(known["exc_info"])}
            self._keep(pack_line(level, _message(msg, args), told, self._attempt, self._step))
        if enabled:
            known["extra"] = {**known.get("extra", {}), "facts": {**self._facts, **fields}}
            # Two frames further up: neither this nor who called it is where the line was written.
            known["stacklevel"] = known.get("stacklevel", 1) + 2
            self.logger.log(level, msg, *args, **known)


class _Packed(msgspec.Struct, array_like=True, omit_defaults=True):
    """A line as it is kept."""

    at_ms: int
    level: str
    message: str
    fields: dict[str, Any]
    attempt: int
    step: str = ""


_DECODER = msgspec.msgpack.Decoder(_Packed)


class Lines:
    """Lines of one attempt that are not known to be kept yet; numbered, so that sending some twice does no harm."""

    __slots__ = ("_bytes", "_last", "_lines", "_lock")

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._bytes = self._last = 0
        # Written by the step's thread, sent by the loop's.
        self._lock = threading.Lock()

    def add(self, line: bytes) -> None:
        """Adds a line; when there are too many the oldest go."""
        with self._lock:
            self._lines.append(line)
            self._last += 1
            self._bytes += len(line)
            while len(self._lines) > MAX_LINES or self._bytes > MAX_BYTES:
                self._bytes -= len(self._lines.popleft())

    def pack(self) -> tuple[bytes, int]:
        """Returns what is there, as lib/keep.lua reads it, and the number of the last line."""
        with self._lock:
            first = self._last - len(self._lines) + 1
            return b"%d|" % first + b"".join(b"%d:%b" % (len(line), line) for line in self._lines), self._last

    def forget(self, last: int) -> None:
        """Drops lines up to a number: they are kept."""
        with self._lock:
            while self._lines and self._last - len(self._lines) < last:
                self._bytes -= len(self._lines.popleft())

    def __bool__(self) -> bool:
        return bool(self._lines)


def pack_line(level: int, message: str, fields: Mapping[str, Any], attempt: int, step: str = "") -> bytes:
    """Packs one line; what is too long is cut, what cannot be carried becomes text."""
    kept = {_text(name, 64): _plain(value) for name, value in list(fields.items())[:MAX_FIELDS]}
    name = logging.getLevelName(level).lower()
    text, at_ms = _text(message, MAX_MESSAGE), int(time.time() * 1000)
    packed = _ENCODE(_Packed(at_ms, name, text, kept, attempt, step))
    if len(packed) > MAX_LINE_BYTES:
        packed = _ENCODE(_Packed(at_ms, name, text, {"fields": "too large to be kept"}, attempt, step))
    return packed


def unpack_line(packed: bytes, *, dropped: int = 0) -> LogLine:
    """Returns a line as people read it."""
    line = _DECODER.decode(packed)
    at = datetime.fromtimestamp(line.at_ms / 1000, UTC)
    return LogLine(at, line.level, line.message, line.fields, line.attempt, dropped, line.step)


def _plain(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 63:
        return _text(value, MAX_TEXT)
    if value is None or type(value) in (bool, int, float):
        return value
    return _text(value, MAX_TEXT)


def _text(value: object, limit: int) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - a broken __str__ must not cost the step its line
        text = f"<a {type(value).__name__} that cannot be shown>"
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.encode("utf-8", "replace").decode()


def _message(msg: object, args: tuple[object, ...]) -> str:
    values: Any = args
    if len(args) == 1 and isinstance(args[0], Mapping) and args[0]:
        values = args[0]  # as the standard library does: "%(name)s"
    try:
        return str(msg) % values if args else str(msg)
    except Exception:  # noqa: BLE001 - the standard library only complains on stderr, too
        return _text(msg, MAX_MESSAGE)


def _error(exc_info: Any) -> str:
    error = exc_info if isinstance(exc_info, BaseException) else (exc_info if isinstance(exc_info, tuple) else None)
    error = error[1] if isinstance(error, tuple) else error or sys.exc_info()[1]
    return "" if error is None else f"{type(error).__name__}: {_text(error, MAX_TEXT)}"
