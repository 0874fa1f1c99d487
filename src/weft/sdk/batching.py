"""Batches: a task whose function gets a list of items, each of which was enqueued by itself."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from weft.clock import parse_duration_ms
from weft.errors import DefinitionError, InvalidOption
from weft.sdk.signature import Signature

#: The most items one call of a batch function gets.
MAX_BATCH = 10_000
#: How long the first item of a batch waits for others unless the task says otherwise.
DEFAULT_WAIT = "1s"


@dataclass(frozen=True)
class Batching:
    """How calls of one task are gathered, and what a single one looks like."""

    size: int
    wait_ms: int
    signature: Signature

    @classmethod
    def read(
        cls, name: str, fn: Callable[..., Any], options: dict[str, Any], *, given: Iterable[str], pool: str | None
    ) -> Batching | None:
        """Takes its options out of a definition's; None when there are none. `given`: parameters the worker supplies."""
        size, wait = options.pop("batch", None), options.pop("batch_wait", None)
        if size is None:
            if wait is not None:
                raise DefinitionError(f"task {name}: batch_wait needs batch, the most items of one call")
            return None
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_BATCH:
            raise InvalidOption(f"batch must be a whole number from 1 to {MAX_BATCH:,}, not {size!r}", option="batch")
        if pool is not None:
            raise DefinitionError(f"task {name}: batch and pool={pool!r} do not go together: leave pool out")
        wait_ms = parse_duration_ms(DEFAULT_WAIT if wait is None else wait, what="batch_wait", allow_zero=False)
        return cls(size, wait_ms, _item_signature(name, fn, frozenset(given)))

    def check_room(self, name: str, concurrency: int | None) -> None:
        """Refuses a limit below the size of a batch: none would ever fill, and each would wait for its whole `batch_wait`."""
        if concurrency is not None and concurrency < self.size:
            raise DefinitionError(
                f"task {name}: concurrency counts items, so with concurrency={concurrency} no batch of {self.size} ever fills:"
                f" give concurrency={self.size} for one full batch at a time, or a batch of {concurrency}"
            )


def _item_signature(name: str, fn: Callable[..., Any], given: frozenset[str]) -> Signature:
    """Returns the signature of a call with one item, from that of the function that gets a list of them."""
    shape = f"task {name}: a batch function has one parameter, the list of items: def {name}(items: list[int]) -> …"
    try:
        parameters = [p for p in inspect.signature(fn).parameters.values() if p.name not in given]
        hints = typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise DefinitionError(f"{shape}; its annotations cannot be read yet: {error}") from error
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"{shape}; its parameters cannot be read: {error}") from error
    if len(parameters) != 1 or parameters[0].kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        raise DefinitionError(f"{shape}; it has {len(parameters)}: {', '.join(p.name for p in parameters) or 'none'}")
    hint = hints.get(parameters[0].name, list)
    if hint is not list and typing.get_origin(hint) is not list:
        raise DefinitionError(f"{shape}; {parameters[0].name} is annotated as {hint!r}")
    returns = hints.get("return", Any)
    listed = typing.get_origin(returns) is list or returns is list
    if not listed and returns not in (Any, None, type(None)):
        raise DefinitionError(f"{shape}; it returns one result per item, as in -> list[str], or None, not {returns!r}")

    def call(item: Any) -> Any:
        raise AssertionError("only its signature is used")

    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            Parameter(
                parameters[0].name,
                Parameter.POSITIONAL_OR_KEYWORD,
                annotation=next(iter(typing.get_args(hint)), Parameter.empty),
            )
        ],
        return_annotation=next(iter(typing.get_args(returns)), Any) if listed else returns,
    )
    return Signature(call, name=name)
