"""A run as one file: its events as the log had them, what it was given and gave, and its definition. Pure.

A file is one JSON document. What a reader must have exactly (events, values) stands in it as base64 of what the store has; what
people look at stands beside it as it is. Both were redacted by the same hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from weft.core.fold import ENDINGS, Logged, RunState, StepState, fold, fold_step
from weft.core.history import read_history
from weft.errors import FileRefused
from weft.ids import partition_of

#: What a file begins with, and the newest form of it.
MARK, FORM = "weft run", 1
#: What stands in place of what was taken out.
REDACTED = "[redacted]"
#: Names under which people keep what nobody else may read.
_SECRET_NAME = re.compile(
    r"(?i)(^|[_\-.])(password|passwd|pwd|secret|token|api_?key|apikey|authorization|cookie|credentials?|private_?key)s?$"
)


class Carried(msgspec.Struct, frozen=True):
    """A run as one file."""

    mark: str
    form: int
    id: str
    name: str
    kind: str
    status: str
    #: The version of Weft that wrote it, and when, in ms.
    weft: str
    exported_ms: int
    #: For people: what it was given and gave, and its history.
    input: Any
    result: Any
    error: Any
    history: list[Any]
    #: As the log had them, those of its steps too.
    events: list[Logged]
    #: Large values and definitions, by the name under which the archive keeps them.
    values: dict[str, bytes]
    #: Names of definitions among the values.
    definitions: list[str] = []
    #: How many places were redacted.
    redacted: int = 0


def write_file(carried: Carried) -> bytes:
    """Returns the file."""
    return msgspec.json.format(msgspec.json.encode(carried, enc_hook=str), indent=1)


def read_file(data: bytes) -> tuple[Carried, RunState, dict[tuple[str, str], StepState]]:
    """Reads a file; returns it with how the run and its steps stand. Raises FileRefused for what cannot be taken whole."""
    try:
        head = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FileRefused(f"this is no exported run: {error}") from None
    if bytes(head.get("mark", b"")) != f'"{MARK}"'.encode():
        raise FileRefused("this is no exported run: `weft runs export` writes those")
    if bytes(head.get("form", b"")) != str(FORM).encode():
        raise FileRefused(
            f"this file has form {bytes(head.get('form', b'none')).decode()[:20]}; this Weft reads form {FORM}"
        )
    try:
        carried = msgspec.json.decode(data, type=Carried)
        partition_of(carried.id)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the file is wrong with the file
        raise FileRefused(f"this file is damaged: {error}") from None
    return carried, *_fold(carried)


def _fold(carried: Carried) -> tuple[RunState, dict[tuple[str, str], StepState]]:
    """Folds the events of a file: what it tells about the run must come out of them."""
    state, steps = RunState(carried.id), dict[tuple[str, str], StepState]()
    own = [event for event in carried.events if event.run.partition("/")[0] == carried.id]
    if len(own) != len(carried.events):
        raise FileRefused("this file is damaged: it has events of other runs")
    try:
        for event in read_history(carried.id, [event for event in own if event.run == carried.id]).events:
            fold(state, event)
        for event in own:
            if "/" in event.run or event.type.startswith(("route", "step_")):
                fold_step(steps, event)
    except (ValueError, msgspec.MsgspecError, KeyError) as error:
        raise FileRefused(f"this file is damaged: an event cannot be read: {error!r}") from None
    if state.gap or not state.seq:
        raise FileRefused(f"this file is damaged: the events of run {carried.id} do not follow on each other")
    if state.status not in ENDINGS or (state.status, state.name, state.kind) != (
        carried.status,
        carried.name,
        carried.kind,
    ):
        raise FileRefused(
            f"this file is damaged: its events tell of a {state.kind} {state.name!r} that is {state.status}"
        )
    return state, steps


class Redaction:
    """Takes secrets out of values: what stands under a name that says so, and texts that are known to be secret."""

    def __init__(self, secrets: list[str]) -> None:
        self._pattern = (
            re.compile("|".join(map(re.escape, sorted(secrets, key=len, reverse=True)))) if secrets else None
        )
        #: How many places were redacted.
        self.n = 0

    def value(self, value: Any) -> Any:
        """Returns a plain value without what is secret in it. Bytes that are packed values are looked into."""
        if isinstance(value, dict):
            return {key: self._named(key, item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, str):
            return self._text(value)
        return self.packed(value) if isinstance(value, bytes) else value

    def packed(self, data: bytes) -> bytes:
        """Returns packed bytes without what is secret in them; as they are when there is nothing."""
        for decode, encode in _FORMS:
            try:
                value = decode(data)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
            if isinstance(value, dict | list | str | bytes):
                before = self.n
                clean = self.value(value)
                return encode(clean) if self.n != before else data
        return self._text(data.decode("latin-1")).encode("latin-1")

    def _named(self, name: Any, value: Any) -> Any:
        # A handle names a secret, and is none.
        handle = name == "secret" and isinstance(value, str) and value.isupper()
        if (
            isinstance(name, str)
            and _SECRET_NAME.search(name)
            and isinstance(value, str | bytes)
            and value
            and not handle
        ):
            self.n += 1
            return REDACTED
        return self.value(value)

    def _text(self, text: str) -> str:
        if self._pattern is None:
            return text
        found, n = self._pattern.subn(REDACTED, text)
        self.n += n
        return found


_FORMS: list[tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = [
    (msgspec.msgpack.decode, msgspec.msgpack.encode),
    (msgspec.json.decode, msgspec.json.encode),
]
