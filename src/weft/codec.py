"""Values to bytes and back: strict msgpack, by the annotation, with nothing guessed and nothing pickled.

A value is accepted only if what comes back out of the bytes is the value that went in: `encode` decodes what
it wrote with the decoder the reader will use and compares. So a wrong type, a field that is not stored, a
secret that prints as asterisks or a subclass cut down to its parent is refused where it is made, not noticed
where it is read. Without an annotation only plain data goes. Refused are NaN and infinities, text that is not
Unicode, integers beyond 64 bits, cycles and whatever is too large. Messages name places and types, never
values: a payload may hold secrets.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import re
import typing
from collections import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args, get_origin

import msgspec
from msgspec import Raw
from msgspec import inspect as shapes

from weft.differences import SHOWN_CHARS, difference, field_names, spell, step_text
from weft.errors import DefinitionError, PayloadRefused, PayloadTooLarge

#: Largest encoded value accepted, in bytes.
MAX_PAYLOAD = 16 * 1024 * 1024

#: Deepest nesting of lists and dicts accepted without an annotation; far below any reader's recursion limit.
MAX_DEPTH = 200

#: First bytes of a float that is NaN or infinite. Text may hold the same bytes, so a hit is looked at closely.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]|\xca[\x7f\xff][\x80-\xff]")

#: Types that carry themselves.
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})

#: Those among them in which there is no float: nothing to look for in their bytes.
_EXACT = _ATOMS - {float}

#: Annotations that say nothing about the value; the last stands for what comes out of the store, whatever msgpack holds.
_STORED: Any = object()
_SILENT = (None, inspect.Parameter.empty, Any, object, typing.Never, typing.NoReturn, _STORED)

#: Things that live in one process only; their items or calls cannot be stored.
_LIVE: tuple[Any, ...] = (abc.Callable, type, abc.Iterator, abc.Generator, abc.Awaitable, abc.Coroutine)
_LIVE += (abc.AsyncIterable, abc.AsyncIterator, abc.AsyncGenerator)

#: What msgspec, its hooks and pydantic raise for a value they cannot write or bytes they cannot read.
_FAILURES = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)

_GOT = re.compile(r", got `[^`]*`$")
_VALUE = re.compile(r"(?<=enum value) .*?(?= - at `|$)", re.DOTALL)
ADVICE = "annotate it with its type and Weft carries it (a dataclass, pydantic model, datetime, UUID, Decimal, set, …)"
_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels, or contains itself"


class DoesNotFit(PayloadRefused):
    """A value does not fit its annotation."""


class TypeCodec:
    """Encodes and decodes the values of one annotation.

    `what` begins every error message and `root` every path in it. Raises `DefinitionError` at once for an
    annotation that nothing can carry. A codec holds no state and is safe to share between threads.
    """

    __slots__ = ("_adapter", "_decoder", "_plain", "annotation", "max_bytes", "root", "trusted", "what", "wire_type")

    def __init__(
        self, annotation: Any = None, *, what: str = "value", root: str = "value", max_bytes: int = MAX_PAYLOAD
    ) -> None:
        self.annotation = annotation
        self.what, self.root, self.max_bytes = what, root, max_bytes
        #: Exact types that need no decoding to be sure of; a float among them may still be NaN.
        self.trusted = _ATOMS
        #: What a decoder of a larger whole declares for this value; `Raw` when only `decode` can read it.
        self.wire_type: Any = Any
        # The containers whose inside must be plain data; none when the inside is annotated.
        self._plain: tuple[type, ...] = (object,)
        self._adapter: Any = None
        self._decoder: msgspec.msgpack.Decoder[Any] = _plain_decoder
        if not any(annotation is silent for silent in _SILENT):
            self._choose(_concrete(annotation))

    def encode(self, value: Any) -> bytes:
        """Return `value` as msgpack. Raises `DoesNotFit` or another `PayloadRefused` that names the place."""
        try:
            data = self._write(value)
        except _FAILURES as error:
            raise self._unwritable(value, error) from error
        if len(data) > self.max_bytes:
            check_size(data, self.max_bytes, self.what)
        return data

    def decode(self, data: bytes) -> Any:
        """Return the value in `data`. Raises `PayloadRefused` that names the annotation and the place."""
        try:
            return self._read(data)
        except _FAILURES as error:
            problem = explain(error, self.root)
            raise PayloadRefused(f"{self.what}: the stored value does not fit `{self}`: {problem}") from error

    def __str__(self) -> str:
        return spell(self.annotation)

    def _choose(self, annotation: Any) -> None:
        """Decide who carries the annotation: msgspec if it knows every part of it, else pydantic."""
        try:
            decoder = msgspec.msgpack.Decoder(annotation, dec_hook=load_model)
            info = shapes.type_info(annotation)
            problem = _beyond_msgspec(annotation, info)
        except TypeError as error:
            problem = str(error)
        if problem:
            self.trusted, self._plain, self.wire_type = frozenset(), (), Raw
            self._adapter = _pydantic_adapter(annotation, problem, self.what)
            return
        choices = info.types if isinstance(info, shapes.UnionType) else (info,)
        if not any(isinstance(choice, shapes.AnyType) for choice in choices):
            self._decoder, self.wire_type = decoder, annotation
            self.trusted, self._plain = _trusted_types(choices), _plain_containers(choices)

    def _write(self, value: Any) -> bytes:
        kind = type(value)
        if kind in self.trusted:
            return _encoder.encode(value) if kind in _EXACT else self._pack(_encoder, value)
        if not self._plain:
            return self._write_by_pydantic(value) if self._adapter else self._write_and_compare(value)
        if not isinstance(value, self._plain):
            raise self._misfit("", _expected(str(self), value))
        if not _is_plain(value):
            stored = self.annotation is _STORED
            found = _first(value, (lambda _: "") if stored else _unplain)
            if found or not stored:
                raise self._refusal(*(found or ("", _TOO_DEEP)))
        return self._pack(_encoder, value)

    def _write_and_compare(self, value: Any) -> bytes:
        data = self._pack(_encoder, value)
        try:
            back = self._decoder.decode(data)
        except _FAILURES as error:
            problem = explain(error, self.root)
            if " at `" not in problem:
                # At the top the Python type says more than the written one: a UUID is not just a `str`.
                problem = f"{_GOT.sub('', problem)}, got `{spell(type(value))}`"
            raise self._misfit("", problem) from error
        if found := difference(value, back):
            wrong_at_top = not found[0] and not isinstance(value, type(back))
            raise self._misfit("", _expected(str(self), value)) if wrong_at_top else self._misfit(*found)
        return data

    def _write_by_pydantic(self, value: Any) -> bytes:
        try:
            self._adapter.validate_python(value, strict=True)
        except ValueError as error:
            raise self._misfit("", explain(error, self.root)) from error
        found: tuple[str, str] | None = None
        for mode in ("python", "json"):
            try:
                data = self._pack(_bare_encoder, self._adapter.dump_python(value, mode=mode, **_DUMP))
                changed = difference(value, self._read(data))
            except _FAILURES as error:
                changed = ("", f"it cannot be stored: {explain(error, self.root)}")
            if changed is None:
                return data
            found = found or changed
        raise self._misfit(*(found or ("", "it cannot be stored")))

    def _pack(self, encoder: msgspec.msgpack.Encoder, value: Any) -> bytes:
        data = encoder.encode(value)
        # Most values hold neither byte, and looking for one is a hundred times as fast as the pattern: 0.03 ms for a megabyte.
        suspicious = (b"\xcb" in data or b"\xca" in data) and _NOT_FINITE.search(data)
        if suspicious and (found := _first(_plain_decoder.decode(data), _unfinite)):
            raise self._refusal(*found)
        return data

    def _read(self, data: bytes) -> Any:
        value = self._decoder.decode(data)
        return value if self._adapter is None else _validate(self._adapter.validate_python, value)

    def _unwritable(self, value: Any, error: Exception) -> PayloadRefused:
        if isinstance(error, RecursionError):
            return self._refusal("", _TOO_DEEP)
        culprit = functools.partial(_unwritable_leaf, kind=type(error))
        place, why = _first(value, culprit) or ("", f"is refused: {explain(error, self.root)}")
        if isinstance(error, TypeError):
            # A type that cannot be written at all fits no annotation.
            return self._misfit("", f"`{self._path(place)}` {why}" if place else _expected(str(self), value))
        return self._refusal(place, why)

    def _path(self, place: str) -> str:
        return self.root + (place if len(place) <= SHOWN_CHARS else place[:SHOWN_CHARS] + "…")

    def _refusal(self, place: str, why: str) -> PayloadRefused:
        path = self._path(place)
        return PayloadRefused(f"{self.what} cannot be stored: `{path}` {why}", path=path)

    def _misfit(self, place: str, why: str) -> DoesNotFit:
        path = self._path(place)
        return DoesNotFit(f"{self.what} does not fit `{self}`: {why}" + (f" at `{path}`" if place else ""), path=path)


def encode_plain(value: Any, *, what: str = "value", max_bytes: int = MAX_PAYLOAD) -> bytes:
    """Return a value without an annotation as msgpack: None, bool, int, float, str, bytes, lists and dicts of them.

    A tuple is stored as a list. Raises `PayloadRefused` for anything else.
    """
    return _plain_codec(what, max_bytes).encode(value)


def encode_stored(value: Any, *, what: str = "value", max_bytes: int = MAX_PAYLOAD) -> bytes:
    """Return what was put together from stored values: whatever msgpack holds, such as moments and keys that are no text."""
    return _plain_codec(what, max_bytes, _STORED).encode(value)


def decode_plain(data: bytes, *, what: str = "value") -> Any:
    """Return the value in `data` as msgpack gives it, whatever wrote it; raise `PayloadRefused` if it is no msgpack."""
    return _plain_codec(what, MAX_PAYLOAD).decode(data)


def join_packed(parts: Sequence[bytes], *, what: str = "value", max_bytes: int = MAX_PAYLOAD) -> bytes:
    """Return the list of values that are packed already, without reading them. Raises `PayloadTooLarge`."""
    n = len(parts)
    long = b"\xdc" + n.to_bytes(2, "big") if n < 65536 else b"\xdd" + n.to_bytes(4, "big")
    data = b"".join((bytes([0x90 | n]) if n < 16 else long, *parts))
    check_size(data, max_bytes, what)
    return data


@functools.lru_cache(maxsize=1024)
def _plain_codec(what: str, max_bytes: int, annotation: Any = None) -> TypeCodec:
    return TypeCodec(annotation, what=what, max_bytes=max_bytes)


def json_form(value: Any) -> Any:
    """Return a value as JSON would hold it: models as dicts, datetime, Decimal, UUID and bytes (base64) as text.

    Raises `PayloadRefused` that names the type of what has no such form.
    """
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_dump_json)
    except _FAILURES as error:
        problem = _TOO_DEEP if isinstance(error, RecursionError) else "has no JSON form"
        raise PayloadRefused(f"a value of type {spell(type(value))} {problem}") from error


def check_size(data: bytes, max_bytes: int, what: str) -> None:
    """Raise `PayloadTooLarge`, with both numbers, if `data` is larger than the limit."""
    if len(data) > max_bytes:
        raise PayloadTooLarge(
            f"{what} takes {len(data):,} bytes, the limit is {max_bytes:,}; store it elsewhere and pass its address",
            size=len(data),
            limit=max_bytes,
        )


def explain(error: Exception, root: str) -> str:
    """Return msgspec's or pydantic's complaint in one line, its paths beginning at `root`, without the values."""
    if isinstance(error, RecursionError):
        return f"`{root}` {_TOO_DEEP}"
    if callable(details := getattr(error, "errors", None)):
        listed = details(include_url=False, include_input=False, include_context=False)[:5]
        return "; ".join(f"{item['msg']} at `{root}{''.join(map(step_text, item['loc']))}`" for item in listed)
    text = _VALUE.sub("", str(error)).replace("`null`", "`None`").replace("`$", f"`{root}").replace(" - at `", " at `")
    return text if text.startswith("MessagePack") else text[:1].lower() + text[1:]


# --- who carries what -----------------------------------------------------------------------------


def _concrete(annotation: Any) -> Any:
    """Return `Iterable[X]` as `list[X]`: of all collections it is the only one whose items msgspec does not check."""
    return list[get_args(annotation)] if get_origin(annotation) is abc.Iterable else annotation  # type: ignore[misc]


def _beyond_msgspec(annotation: Any, info: shapes.Type) -> str:
    """Return why msgspec alone would carry the annotation wrongly; an empty text if it would not."""
    for part in _mentioned(annotation):
        if type(part).__module__.partition(".")[0] in ("annotated_types", "pydantic") and not isinstance(part, type):
            return f"msgspec does not know the constraint {type(part).__name__}"
    for shape in _inner_shapes(info):
        if isinstance(shape, shapes.CustomType) and not hasattr(shape.cls, "model_validate"):
            return f"msgspec does not know {spell(shape.cls)}"
        if isinstance(shape, shapes.DataclassType) and hasattr(shape.cls, "__pydantic_validator__"):
            return f"{spell(shape.cls)} is a pydantic dataclass"
    return ""


def _pydantic_adapter(annotation: Any, problem: str, what: str) -> Any:
    refused = f"{what}: `{spell(annotation)}` cannot be stored: {problem}"
    if isinstance(annotation, str):
        # pydantic would look the name up among the names of this module.
        raise DefinitionError(refused)
    if any(part is live for part in _mentioned(annotation) for live in _LIVE):
        raise DefinitionError(f"{refused}; functions, classes and iterators live in one process only")
    try:
        pydantic = importlib.import_module("pydantic")
    except ImportError as error:
        raise DefinitionError(f"{refused}; with pydantic installed more types can be") from error
    try:
        return pydantic.TypeAdapter(annotation)
    except (pydantic.errors.PydanticUserError, TypeError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise DefinitionError(f"{refused}, and pydantic: {reason}; use a dataclass or a pydantic model") from error


def _mentioned(annotation: Any) -> Iterator[Any]:
    """Yield the annotation and everything in its brackets, metadata included."""
    yield annotation
    yield get_origin(annotation)
    for part in get_args(annotation):
        yield from _mentioned(part)


def _inner_shapes(info: shapes.Type) -> Iterator[shapes.Type]:
    """Yield `info` and every shape inside it once, through fields and items, also of types that contain themselves."""
    waiting: list[Any] = [info]
    seen: set[int] = set()
    while waiting:
        shape = waiting.pop()
        if id(shape) in seen or not isinstance(shape, shapes.Type | shapes.Field):
            continue
        seen.add(id(shape))
        if isinstance(shape, shapes.Type):
            yield shape
        for name in shape.__struct_fields__:
            inner = getattr(shape, name)
            waiting.extend(inner if isinstance(inner, tuple) else (inner,))


def _trusted_types(choices: tuple[shapes.Type, ...]) -> frozenset[type]:
    """Return the exact types that an unconstrained scalar among the choices is sure to accept."""
    table: list[tuple[shapes.Type, tuple[type, ...]]] = [
        (shapes.NoneType(), (type(None),)),
        (shapes.BoolType(), (bool,)),
        (shapes.IntType(), (int,)),
        (shapes.FloatType(), (float, int)),
        (shapes.StrType(), (str,)),
        (shapes.BytesType(), (bytes,)),
    ]
    return frozenset(kind for shape, kinds in table if shape in choices for kind in kinds)


def _plain_containers(choices: tuple[shapes.Type, ...]) -> tuple[type, ...]:
    """Return dict and list if they are among the choices and nothing is said about their inside."""
    anything = shapes.AnyType()
    table: list[tuple[shapes.Type, tuple[type, ...]]] = [
        (shapes.DictType(anything, anything), (dict,)),
        (shapes.DictType(shapes.StrType(), anything), (dict,)),
        (shapes.ListType(anything), (list, tuple)),
    ]
    kinds = tuple(kind for shape, kinds in table if shape in choices for kind in kinds)
    scalars = [choice for choice in choices if _trusted_types((choice,))]
    inner = [choice for choice in choices if any(choice == shape for shape, _ in table)]
    return kinds if len(scalars) + len(inner) == len(choices) else ()


# --- pydantic models, met by their methods --------------------------------------------------------


#: How models are dumped: by field name, without what is computed, and ready to be read back.
_DUMP = {"by_alias": False, "round_trip": True, "warnings": False}


def _dump_model(value: Any) -> Any:
    """Return a model as plain data, with fields in JSON form if they hold a type that msgspec does not know."""
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise TypeError(f"objects of type {type(value).__name__} cannot be stored")
    data = dump(mode="python", **_DUMP)
    try:
        return Raw(_bare_encoder.encode(data))
    except TypeError:
        if not isinstance(data, dict):
            return dump(mode="json", **_DUMP)
    return {**data, **dump(mode="json", include={name for name in data if _is_strange(data[name])}, **_DUMP)}


def _dump_json(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise TypeError(f"objects of type {type(value).__name__} have no JSON form")
    return dump(mode="json", **_DUMP)


def _is_strange(value: Any) -> bool:
    try:
        _bare_encoder.encode(value)
    except TypeError:
        return True
    return False


def load_model(cls: Any, value: Any) -> Any:
    """Return a model of class `cls` from plain data: the `dec_hook` of every decoder that may meet models."""
    try:
        return _validate(cls.model_validate, value)
    except ValueError as error:
        # msgspec adds the path to the model; this text must hold the path inside it, and no values.
        raise ValueError(explain(error, spell(cls))) from error


def _validate(validate: Callable[..., Any], value: Any) -> Any:
    return validate(value, **_options_of(getattr(validate, "__func__", validate)))


@functools.cache
def _options_of(validate: Callable[..., Any]) -> dict[str, bool]:
    # Field names are stored, not aliases, and msgpack has no sets or UUIDs: a strict model must still read its own.
    wanted = {"strict": False, "by_alias": True, "by_name": True}
    known = inspect.signature(validate).parameters
    return {name: value for name, value in wanted.items() if name in known}


_encoder = msgspec.msgpack.Encoder(enc_hook=_dump_model)
_bare_encoder = msgspec.msgpack.Encoder()
_plain_decoder = msgspec.msgpack.Decoder()


# --- looking closely: only once something is known or suspected to be wrong -----------------------


def _is_plain(value: Any, depth: int = 0) -> bool:
    if type(value) in _ATOMS:
        return True
    if depth >= MAX_DEPTH or _unplain(value):
        return False
    for item in value.values() if isinstance(value, dict) else value:
        if type(item) not in _ATOMS and not _is_plain(item, depth + 1):
            return False
    return True


def _first(value: Any, complaint: Callable[[Any], str], depth: int = 0) -> tuple[str, str] | None:
    """Return the place and the complaint of the first part of `value` that has one; None if none has."""
    if why := complaint(value):
        return "", why
    if depth > MAX_DEPTH:
        return "", _TOO_DEEP
    for step, part in _parts(value):
        if found := _first(part, complaint, depth + 1):
            return step_text(step) + found[0], found[1]
    return None


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, abc.Mapping):
        for key, item in value.items():
            # First the key itself, then what it leads to; both are found under the key's name.
            yield key, key
            yield key, item
    elif isinstance(value, list | tuple | set | frozenset):
        yield from enumerate(value)
    else:
        yield from ((name, getattr(value, name, None)) for name in field_names(type(value)))


def _unplain(value: Any) -> str:
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                return f"has a key of type {spell(type(key))}, plain data has only text keys; {ADVICE}"
        return ""
    if type(value) in _ATOMS or type(value) in (list, tuple):
        return ""
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return ""
    return f"is of type {spell(type(value))}, which is not plain data; {ADVICE}"


def _unfinite(value: Any) -> str:
    return "is not a finite number" if isinstance(value, float) and not math.isfinite(value) else ""


def _unwritable_leaf(value: Any, kind: type[Exception]) -> str:
    """Return why writing a value that has no parts fails with `kind`; containers are left to their parts."""
    if isinstance(value, abc.Mapping | list | tuple | set | frozenset) or field_names(type(value)):
        return ""
    try:
        _encoder.encode(value)
    except kind as error:
        if isinstance(error, UnicodeEncodeError):
            return "holds a lone surrogate, which is not valid text"
        if isinstance(error, OverflowError):
            return "is an integer beyond 64 bits"
        return f"is of type {spell(type(value))}, which Weft does not carry"
    except _FAILURES:
        pass
    return ""


def _expected(annotation: str, value: Any) -> str:
    return f"expected `{annotation}`, got `{spell(type(value))}`"
