"""Calls that count as one: unique, throttled and debounced ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.clock import Duration, parse_duration_ms
from weft.engine.runs import Once
from weft.errors import DefinitionError, InvalidArguments, InvalidOption

#: The options of a definition that make calls count as one.
OPTIONS = ("unique_for", "unique", "unique_key", "debounce", "throttle")
#: What happens to a call like one that was made: `unique=`.
POLICIES = {"join": "j", "drop": "d", "replace": "r"}


@dataclass(frozen=True)
class Uniqueness:
    """When calls of one task count as one."""

    task: str
    policy: str
    window_ms: int
    kind: str
    key: Callable[..., Any] | None = None

    @classmethod
    def read(cls, task: str, options: dict[str, Any]) -> Uniqueness | None:
        """Takes its options out of a definition's; None when there are none."""
        given = {name: options.pop(name) for name in OPTIONS if name in options}
        policy = given.pop("unique", "join")
        if not isinstance(policy, str) or policy not in POLICIES:
            raise InvalidOption(f"unique must be one of {', '.join(POLICIES)}, not {policy!r}", option="unique")
        key = given.pop("unique_key", None)
        if key is not None and not callable(key):
            raise InvalidOption(
                f"unique_key takes a function of the task's arguments, not {key!r}", option="unique_key"
            )
        windows: dict[str, Duration] = {name: value for name, value in given.items() if value is not None}
        if len(windows) > 1:
            raise DefinitionError(f"task {task}: {' and '.join(windows)} exclude each other: choose one")
        if not windows:
            if key is not None or policy != "join":
                raise DefinitionError(f"task {task}: unique and unique_key need unique_for, throttle or debounce")
            return None
        ((kind, window),) = windows.items()
        if policy != "join" and kind != "unique_for":
            raise DefinitionError(f"task {task}: unique={policy!r} belongs to unique_for, not to {kind}")
        return cls(task, POLICIES[policy], parse_duration_ms(window, what=kind, allow_zero=False), kind, key)

    def once(self, data: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Once:
        """Returns what makes one call count as one with others: all its arguments, or what unique_key says.

        `data` are the arguments without those that only repeat a default.
        """
        text = data if self.key is None else self._key(args, kwargs).encode()
        digest = hashlib.sha256(f"{self.kind}\0{self.task}\0".encode() + text).hexdigest()[:32]
        return Once(digest, self.policy, self.window_ms, self.kind == "debounce", self.kind == "unique_for")

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        assert self.key is not None
        try:
            key = self.key(*args, **kwargs)
        except Exception as error:
            raise InvalidArguments(
                f"unique_key of task {self.task} raised {type(error).__name__}: {error}. It is called with the arguments"
                " of the task; nothing was enqueued",
                task=self.task,
            ) from error
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise InvalidArguments(
                f"unique_key of task {self.task} returned a {type(key).__name__}: it must be a text or a whole number",
                task=self.task,
            )
        try:
            str(key).encode()
        except UnicodeEncodeError as error:
            raise InvalidArguments(
                f"unique_key of task {self.task} returned a text that is not valid: {error}"
            ) from error
        return str(key)
