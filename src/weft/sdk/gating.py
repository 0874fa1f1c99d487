"""Limits of a task as its definition gives them, and the gates that one call of it has to pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from weft.clock import parse_rate
from weft.core.gates import MAX_NAMES, gate_name
from weft.core.model import Limit
from weft.errors import DefinitionError, InvalidArguments, InvalidOption
from weft.ids import MAX_KEY_CHARS

#: The options of a definition that make gates.
OPTIONS = ("concurrency", "concurrency_key", "concurrency_per_key", "rate_limit", "rate_key", "rate_cost")

#: The most steps a limit may let run at once.
MAX_CONCURRENCY = 1_000_000

KeyFunction = Callable[..., str | int | None]


@dataclass(frozen=True)
class Gating:
    """What limits the calls of one task."""

    task: str
    concurrency: int | None = None
    concurrency_key: KeyFunction | None = None
    concurrency_per_key: int | None = None
    rate: tuple[int, int] | None = None
    rate_key: KeyFunction | None = None
    rate_cost: int | Callable[..., int] = 1

    @classmethod
    def read(cls, task: str, options: dict[str, Any]) -> Gating | None:
        """Takes its options out of a definition's; None when there are none."""
        given = {name: options.pop(name) for name in OPTIONS if name in options}
        given = {name: value for name, value in given.items() if value is not None}
        cost = given.get("rate_cost")
        if cost == 1 and not isinstance(cost, bool):
            del given["rate_cost"]
        if not given:
            return None
        for name in ("concurrency", "concurrency_per_key"):
            if name in given:
                _whole(given[name], name, MAX_CONCURRENCY)
        for name in ("concurrency_key", "rate_key"):
            if name in given and not callable(given[name]):
                raise InvalidOption(
                    f"{name} takes a function of the task's arguments, not {given[name]!r}", option=name
                )
        if "concurrency_per_key" in given and "concurrency_key" not in given:
            raise DefinitionError(
                f"task {task}: concurrency_per_key needs concurrency_key, the function that gives the key"
            )
        if "concurrency_key" in given and not given.keys() & {"concurrency_per_key", "concurrency"}:
            raise DefinitionError(
                f"task {task}: concurrency_key limits nothing by itself: add concurrency_per_key (how many of one key run"
                " at once) or concurrency (how many of all; keys take turns)"
            )
        rate = given.pop("rate_limit", None)
        if rate is None and given.keys() & {"rate_key", "rate_cost"}:
            raise DefinitionError(f"task {task}: rate_key and rate_cost need rate_limit")
        if rate is not None:
            given["rate"] = parse_rate(rate, what="rate_limit")
            cost = given.get("rate_cost", 1)
            if not callable(cost):
                _whole(cost, "rate_cost", given["rate"][0])
        return cls(task, **given)

    def limits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Limit], str]:
        """Returns the gates one call has to pass, the narrowest first, and the key by which calls take turns."""
        key = self._key("concurrency_key", self.concurrency_key, args, kwargs)
        per_key = _key_limits(self.task, key, self.concurrency_per_key) if key and self.concurrency_per_key else []
        if not self.concurrency and not self.rate:
            return per_key, key
        found = [*per_key]
        if self.concurrency:
            found.append(Limit(gate_name("task", self.task), self.concurrency))
        if self.rate:
            n, window_ms = self.rate
            rate_key = self._key("rate_key", self.rate_key, args, kwargs)
            gate = gate_name("rate", self.task, rate_key) if rate_key else gate_name("rate", self.task)
            limit = Limit(gate, n, window_ms, self._cost(args, kwargs, n))
            if rate_key or self.rate_key is None:  # a call without a key has no limit
                found.append(limit)
        return found, key

    def _key(self, option: str, function: KeyFunction | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if function is None:
            return ""
        try:
            key = function(*args, **kwargs)
        except Exception as error:
            raise self._raised(option, error) from error
        if key is None:
            return ""
        text = str(key)
        if type(key) is int and len(text) <= MAX_KEY_CHARS:
            return text  # nothing else can be wrong with it
        if isinstance(key, bool) or not isinstance(key, (str, int)) or not 0 < len(text) <= MAX_KEY_CHARS:
            raise InvalidArguments(
                f"{option} of task {self.task} returned {text[:60]!r}, a {type(key).__name__}: a key is a text of 1 to"
                f" {MAX_KEY_CHARS} characters or a whole number, or None for no limit",
                task=self.task,
            )
        try:
            if not text.isascii():
                text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArguments(
                f"{option} of task {self.task} returned a text that is not valid: {error}"
            ) from error
        return text

    def _cost(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], most: int) -> int:
        if not callable(self.rate_cost):
            return self.rate_cost
        try:
            cost = self.rate_cost(*args, **kwargs)
        except Exception as error:
            raise self._raised("rate_cost", error) from error
        if isinstance(cost, bool) or not isinstance(cost, int) or not 0 < cost <= most:
            raise InvalidArguments(
                f"rate_cost of task {self.task} returned {cost!r}: it must be a whole number from 1 to {most}, the most that"
                " its rate_limit ever lets through",
                task=self.task,
            )
        return cost

    def _raised(self, option: str, error: Exception) -> InvalidArguments:
        return InvalidArguments(
            f"{option} of task {self.task} raised {type(error).__name__}: {error}. It is called with the arguments of"
            " the task; nothing was enqueued",
            task=self.task,
        )


@lru_cache(maxsize=MAX_NAMES)
def _key_limits(task: str, key: str, n: int) -> list[Limit]:
    """Returns the limit of one key of a task, in a list that nobody changes: keys come again and again."""
    return [Limit(gate_name("key", task, key), n)]


def _whole(value: Any, option: str, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidOption(f"{option} must be a whole number from 1 to {most:,}, not {value!r}", option=option)
