"""Reads the arguments of a task as they are typed: `key=value`, each by the type its parameter is annotated with."""

from __future__ import annotations

import contextlib
import inspect
import json
import typing
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from weft.clock import parse_duration_ms
from weft.codec import explain, load_model
from weft.differences import spell
from weft.errors import InvalidArguments, InvalidOption

if TYPE_CHECKING:
    from weft.sdk.task import Task
    from weft.sdk.workflow import Workflow

_SILENT = (inspect.Parameter.empty, Any, object, None)


def read_arguments(
    task: Task[Any, Any] | Workflow[Any, Any], words: Sequence[str], document: str | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns what to call the task with, from `key=value` words and a JSON object; a word wins over the object.

    Raises InvalidArguments, with the signature, for what cannot be read. Whether the call fits is for the task to say.
    """
    hints = hints_of(task)
    parameters = inspect.signature(task.fn).parameters
    others = next((name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD), "")
    values: dict[str, Any] = {}
    for name, value in _object(task, document).items():
        values[name] = _convert(task, name, hints.get(name if name in parameters else others), value, typed=False)
    typed: set[str] = set()
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidArguments(f"{word!r} is not key=value; the task is {task.signature.text}")
        if name in typed:
            raise InvalidArguments(f"{name} is given twice; the task is {task.signature.text}")
        typed.add(name)
        values[name] = _convert(task, name, hints.get(name if name in parameters else others), text, typed=True)
    by_position = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_ONLY and name in values]
    return tuple(values.pop(name) for name in by_position), values


def read_input(schema: Mapping[str, Any] | None, words: Sequence[str], document: str | None) -> Any:
    """Returns the input of a graph, from `key=value` words and JSON; a word wins over the JSON. None when there is neither.

    A value is JSON, unless it is none or the schema says that the field is a text.
    """
    found: Any = None
    if document is not None:
        try:
            found = _json(document)
        except ValueError as error:
            raise InvalidArguments(f"--input is not JSON: {error}") from error
    if not words:
        return found
    if found is not None and not isinstance(found, dict):
        raise InvalidArguments("--input must be a JSON object where key=value adds to it")
    fields = (schema or {}).get("properties") or {}
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise InvalidArguments(f"{word!r} is not key=value")
        if name in values:
            raise InvalidArguments(f"{name} is given twice")
        is_text = isinstance(fields.get(name), dict) and fields[name].get("type") == "string"
        values[name] = text if is_text else _json_or_text(text)
    return {**(found or {}), **values}


def hints_of(task: Task[Any, Any] | Workflow[Any, Any]) -> dict[str, Any]:
    """Returns the types of a call's arguments; none where they cannot be resolved."""
    if getattr(task, "batching", None) is not None:
        # A call has one item, its function a list of them.
        return {p.name: p.annotation for p in task.signature.parameters}
    try:
        return typing.get_type_hints(task.fn, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}


def _object(task: Task[Any, Any] | Workflow[Any, Any], document: str | None) -> Mapping[str, Any]:
    if document is None:
        return {}
    try:
        found = _json(document)
    except ValueError as error:
        raise InvalidArguments(f"--input is not JSON: {error}; the task is {task.signature.text}") from error
    if not isinstance(found, dict):
        raise InvalidArguments(f"--input must be a JSON object of arguments by name, for {task.signature.text}")
    return found


def _convert(task: Task[Any, Any] | Workflow[Any, Any], name: str, hint: Any, value: Any, *, typed: bool) -> Any:
    """Returns a value as its parameter wants it: typed text by its type or as JSON, JSON values by their type."""
    if any(hint is silent for silent in _SILENT):
        return _json_or_text(value) if typed else value
    if typed and hint is bytes:
        return value.encode()
    try:
        if typed and timedelta in (hint, *typing.get_args(hint)):
            # As everywhere in Weft; what that does not read, such as ISO 8601, is read below.
            with contextlib.suppress(InvalidOption):
                return timedelta(milliseconds=parse_duration_ms(value, what=name))
        if typed:
            try:
                return msgspec.convert(value, hint, strict=False, dec_hook=load_model)
            except (msgspec.MsgspecError, ValueError):
                value = _json(value)
        return msgspec.convert(value, hint, dec_hook=load_model)
    except TypeError:
        return _by_pydantic(task, name, hint, value, typed=typed)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _misfit(task, name, hint, error) from error


def _by_pydantic(task: Task[Any, Any] | Workflow[Any, Any], name: str, hint: Any, value: Any, *, typed: bool) -> Any:
    """Types that msgspec does not know are pydantic's, as in the task itself."""
    import pydantic

    try:
        adapter = pydantic.TypeAdapter(hint)
        return adapter.validate_python(_json_or_text(value) if typed and isinstance(value, str) else value)
    except (ValueError, pydantic.errors.PydanticUserError) as error:
        raise _misfit(task, name, hint, error) from error


def _misfit(task: Task[Any, Any] | Workflow[Any, Any], name: str, hint: Any, error: Exception) -> InvalidArguments:
    # That a text is no JSON either says nothing; where a document does not fit says all.
    place = explain(error, name) if not isinstance(error, json.JSONDecodeError) else ""
    why = f" ({place})" if " at `" in place else ""
    return InvalidArguments(f"{name} must be {spell(hint)}{why}; the task is {task.signature.text}", argument=name)


def _json_or_text(text: str) -> Any:
    try:
        return _json(text)
    except ValueError:
        return text


def _json(text: str) -> Any:
    """Reads JSON. Raises ValueError for what is none, InvalidArguments for what would not come out as it is written."""
    try:
        return json.loads(text, object_pairs_hook=_once_each)
    except RecursionError:
        raise InvalidArguments("the JSON is nested too deeply") from None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArguments(f"{twice!r} stands twice in one JSON object: only one of its values could be taken")
    return found
