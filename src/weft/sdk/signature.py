"""A function's signature as the contract between whoever enqueues a call and the worker that makes it.

Arguments travel as a msgpack map of parameter name to value, so code may reorder parameters and add new ones
with defaults while calls wait in a queue. They are bound and checked when they are enqueued, with the codecs
the worker reads them with. Omitted arguments are not stored: the function's own default applies where it
runs. What does not fit is refused with `InvalidArguments`, never a bare TypeError, and the message always
spells out the signature.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw

from weft.codec import MAX_PAYLOAD, DoesNotFit, TypeCodec, check_size, explain, load_model
from weft.differences import spell
from weft.errors import DefinitionError, InvalidArguments, PayloadRefused, UserError
from weft.sameness import one_spelling

#: Longest default value that a signature's text repeats, in characters; longer ones read `...`.
SHOWN_DEFAULT_CHARS = 24

#: What reading stored bytes can raise.
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

#: Types whose values need no codec where their exact type is trusted; a float may be NaN.
_SURE = frozenset({type(None), bool, int, str, bytes})

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_encoder = msgspec.msgpack.Encoder()
_raw_decoder = msgspec.msgpack.Decoder(dict[str, Raw])

#: How calls without arguments are packed: those of tasks, and of nodes.
_NOTHING = (b"", b"\x80")


class Signature:
    """Binds, checks, encodes and decodes the arguments of one function, and knows the type of what it returns.

    `skip` names parameters that whoever calls the function supplies; they are neither bound nor stored.
    `namespace` helps to resolve annotations written as text, such as the locals of the decorating frame.
    Annotations that name something not defined yet are resolved at first use. Raises `DefinitionError` for a
    function whose parameters cannot be read or whose annotations nothing can carry.
    """

    __slots__ = (
        *("_defaults", "_fn", "_max_bytes", "_namespace", "_needs_nothing", "_plan", "_whole", "name", "skip", "text"),
    )

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str,
        skip: frozenset[str] = frozenset(),
        namespace: Mapping[str, Any] | None = None,
        max_bytes: int = MAX_PAYLOAD,
    ) -> None:
        try:
            self._whole = inspect.signature(fn)
        except (TypeError, ValueError) as error:
            raise DefinitionError(f"{name}: its parameters cannot be read: {error}") from error
        self._fn, self._namespace, self._max_bytes = fn, namespace, max_bytes
        self.name, self.skip = name, skip
        kept = [parameter for parameter in self._whole.parameters.values() if parameter.name not in skip]
        #: The signature as its author wrote it: "add(a: int, b: int) -> int".
        self.text = name + _spell_signature(self._whole.replace(parameters=kept))
        self._needs_nothing = not any(map(_is_required, kept))
        self._plan: _Plan | None = None
        #: Parameter -> the bytes its default may be written as; None until somebody compares calls.
        self._defaults: dict[str, frozenset[bytes]] | None = None
        try:
            self._plan = self._build()
        except NameError:
            # A name that is not defined yet, such as a class further down the module: first use tries again.
            return
        self._namespace = None

    @property
    def names(self) -> frozenset[str] | None:
        """Names an argument may have; None when it takes any."""
        parameters = [p for p in self._whole.parameters.values() if p.name not in self.skip]
        if any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
            return None
        return frozenset(p.name for p in parameters)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that a call gives, in order."""
        return tuple(p for p in self._whole.parameters.values() if p.name not in self.skip)

    @property
    def by_name(self) -> tuple[str, ...]:
        """Names of the parameters that stand for one argument each."""
        several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        return tuple(
            p.name for p in self._whole.parameters.values() if p.name not in self.skip and p.kind not in several
        )

    @property
    def required(self) -> frozenset[str]:
        """Names of the parameters without which there is no call."""
        parameters = self._whole.parameters.values()
        return frozenset(p.name for p in parameters if p.name not in self.skip and _is_required(p))

    @property
    def returns(self) -> TypeCodec:
        """The codec of what the function returns, or of what awaiting it gives; plain data if it does not say."""
        return (self._plan or self._built()).returns

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the arguments of a call as a msgpack map by parameter name; `b""` if there is nothing to carry.

        Raises `InvalidArguments` if they do not fit the signature, `PayloadRefused` if a value that fits
        cannot be stored.
        """
        if not args and not kwargs and self._needs_nothing:
            return b""
        plan = self._plan or self._built()
        if kwargs or not plan.n_required <= len(args) <= plan.n_positional:
            data = self._encode_bound(plan, self._bind(plan, args, kwargs))
        elif _all_trusted(args, plan.trusted):
            try:
                data = _encoder.encode(plan.struct(*args))
            except (OverflowError, UnicodeEncodeError):
                data = self._encode_bound(plan, dict(zip(plan.positional, args, strict=False)))
        else:
            data = self._encode_bound(plan, dict(zip(plan.positional, args, strict=False)))
        if len(data) > self._max_bytes:
            check_size(data, self._max_bytes, f"all arguments of {self.text} together")
        return data

    def decode(self, data: bytes, *, formed: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return stored arguments ready for `fn(*args, **kwargs)`.

        `formed` arguments may have gone through expressions, which know JSON only: then bytes may be Base64, and keys that are
        numbers text. A parameter added since, with a default, is left to its default. Raises `InvalidArguments` for an
        unknown or missing one, with the stored names and the signature as it is now, and for a value that
        no longer fits; `PayloadRefused` for bytes that are no msgpack.
        """
        if self._needs_nothing and data in _NOTHING:
            return (), {}
        plan = self._plan or self._built()
        try:
            values = msgspec.structs.astuple(plan.decoder.decode(data or b"\x80"))
        except Exception as error:  # also what a class of the user's own says when it is made
            unformed = self._unformed(plan, data) if formed else None
            if unformed is None:
                raise self._unfit(data, error) from error
            values = msgspec.structs.astuple(plan.decoder.decode(unformed))
        if plan.is_simple:
            if UNSET not in values:
                return values, {}
            n_given = values.index(UNSET)
            if n_given >= plan.n_required and all(value is UNSET for value in values[n_given:]):
                return values[:n_given], {}
        return self._call(plan, dict(zip(plan.codecs, values, strict=True)), data)

    def takes(self, name: str, value: bytes) -> bool:
        """Tell whether a parameter may have this value, encoded as calls store it or in JSON form."""
        plan = self._plan or self._built()
        if name not in plan.codecs:
            return bool(plan.var_keyword)
        data = _encoder.encode({name: Raw(value)})
        try:
            found = msgspec.structs.astuple(plan.decoder.decode(data))[list(plan.codecs).index(name)]
            if isinstance(found, Raw):
                plan.codecs[name].decode(bytes(found))
            return True
        except Exception:  # noqa: BLE001 - also what a class of the user's own says when it is made
            return self._unformed(plan, data) is not None

    def without_defaults(self, data: bytes) -> bytes:
        """Return arguments as they are compared, without those that only repeat a default: equal calls in equal bytes.

        Left out, not filled in: a call keeps its bytes when a later version adds a parameter with a default.
        """
        if not data:
            return data
        codecs, defaults = (self._plan or self._built()).codecs, self._defaults
        if defaults is None:
            empty = Parameter.empty
            given = {name: p.default for name, p in self._whole.parameters.items() if p.default is not empty}
            defaults = {name: _spellings(codecs[name], value) for name, value in given.items() if name in codecs}
            self._defaults = defaults
        stored = {name: one_spelling(codecs[name], bytes(value)) for name, value in _raw_decoder.decode(data).items()}
        told = {name: Raw(value) for name, value in stored.items() if value not in defaults.get(name, ())}
        # Without arguments there are no bytes, where the function needs none (see `encode`).
        return _encoder.encode(told) if told else b""

    # --- encoding ---------------------------------------------------------------------------------

    def _encode_bound(self, plan: _Plan, bound: dict[str, Any]) -> bytes:
        packed: dict[str, Any] = {}
        # In the order of the parameters, however they were given: equal calls must give equal bytes.
        for name, codec in plan.codecs.items():
            if name in bound:
                value = bound[name]
                sure = type(value) in _SURE and type(value) in codec.trusted
                packed[name] = value if sure else self._encode_alone(codec, value)
        try:
            return _encoder.encode(packed)
        except (OverflowError, UnicodeEncodeError):
            # A value of a trusted type that does not fit the wire after all: its own codec says which and why.
            return _encoder.encode({name: self._encode_alone(plan.codecs[name], bound[name]) for name in packed})

    def _encode_alone(self, codec: TypeCodec, value: Any) -> Raw:
        try:
            return Raw(codec.encode(value))
        except DoesNotFit as error:
            raise InvalidArguments(error.message, argument=codec.root, signature=self.text) from error

    def _bind(self, plan: _Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by parameter name, with what `*args` and `**kwargs` take under those names."""
        bound: dict[str, Any] = dict(zip(plan.positional, args, strict=False))
        others: dict[str, Any] = {}
        clashes = False
        for name, value in kwargs.items():
            if name in self.skip:
                raise self._unbound(args, kwargs)
            if name in plan.keywords:
                clashes = clashes or name in bound
                bound[name] = value
            else:
                others[name] = value
        if extra := args[plan.n_positional :]:
            bound[plan.var_positional] = extra
        if others:
            bound[plan.var_keyword] = others
        # The empty name stands for a `*args` or `**kwargs` that the function does not have.
        if clashes or "" in bound or not plan.required <= bound.keys():
            raise self._unbound(args, kwargs)
        return bound

    def _unbound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InvalidArguments:
        """Return the error for a call that does not bind, in Python's own words."""
        parameters = [value for name, value in self._whole.parameters.items() if name not in self.skip]
        why = "the arguments do not bind"
        try:
            inspect.Signature(parameters).bind(*args, **kwargs)
        except TypeError as error:
            why = str(error)
        if supplied := [name for name in kwargs if name in self.skip]:
            why = f"got an unexpected keyword argument {supplied[0]!r}: whoever runs it supplies that"
        if why == "too many positional arguments":
            why += f", {len(args)} given"
        return InvalidArguments(f"the arguments do not fit {self.text}: {why}", signature=self.text)

    # --- decoding ---------------------------------------------------------------------------------

    def _call(self, plan: _Plan, values: dict[str, Any], data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        stored = {name: value for name, value in values.items() if value is not UNSET}
        if not plan.required <= stored.keys():
            raise self._unfit(data, None)
        for name, value in stored.items():
            if isinstance(value, Raw):
                stored[name] = self._decode_alone(plan.codecs[name], value)
        extra = stored.pop(plan.var_positional, ())
        others = stored.pop(plan.var_keyword, {})
        # All before the last one given by position go by position too, with their own defaults where omitted.
        given = [place for place, name in enumerate(plan.by_position, 1) if extra or name in stored]
        ordered = plan.by_position[: max(given, default=0)]
        args = [stored.pop(name) if name in stored else self._whole.parameters[name].default for name in ordered]
        return (*args, *extra), {**stored, **others}

    def _unformed(self, plan: _Plan, data: bytes) -> bytes | None:
        """Return arguments in the form of their annotations that are in JSON form; None if they fit neither way."""
        try:
            stored: dict[str, Any] = _raw_decoder.decode(data)
            for name, value in stored.items():
                codec = plan.codecs[name]
                if codec.wire_type is not Raw:
                    read = msgspec.msgpack.decode(value)
                    fit = msgspec.convert(read, codec.wire_type, str_keys=True, dec_hook=load_model)
                    stored[name] = Raw(codec.encode(fit))
            unformed = _encoder.encode(stored)
            plan.decoder.decode(unformed)
        except (*_UNREADABLE, KeyError, UserError):
            return None
        return unformed

    def _decode_alone(self, codec: TypeCodec, value: Raw) -> Any:
        try:
            return codec.decode(bytes(value))
        except PayloadRefused as error:
            raise InvalidArguments(error.message, argument=codec.root, signature=self.text) from error

    def _unfit(self, data: bytes, error: Exception | None) -> UserError:
        """Return the error for stored arguments that the function, as it is now, does not take."""
        try:
            stored = msgspec.msgpack.decode(data or b"\x80")
        except _UNREADABLE as damage:
            return PayloadRefused(f"the stored arguments of {self.text} are damaged: {damage}")
        names = [str(name) for name in stored] if isinstance(stored, dict) else []
        known = {name: value for name, value in self._whole.parameters.items() if name not in self.skip}
        unknown = [name for name in names if name not in known]
        missing = [name for name, parameter in known.items() if _is_required(parameter) and name not in names]
        why = [f"{kind} {', '.join(listed)}" for kind, listed in (("unknown", unknown), ("missing", missing)) if listed]
        if error is not None and not why:
            known_error = isinstance(error, _UNREADABLE)
            why = [explain(error, "$").replace("`$.", "`") if known_error else f"{type(error).__name__}: {error}"]
        return InvalidArguments(
            f"the stored arguments ({', '.join(names) or 'none'}) do not fit {self.text}: {'; '.join(why)}",
            stored=names,
            signature=self.text,
        )

    # --- building ---------------------------------------------------------------------------------

    def _built(self) -> _Plan:
        try:
            self._plan = self._build()
        except NameError as error:
            raise DefinitionError(
                f"{self.text}: an annotation cannot be resolved: {error}; define or import it at the top of the "
                "module, and not only under TYPE_CHECKING",
                signature=self.text,
            ) from error
        self._namespace = None
        return self._plan

    def _build(self) -> _Plan:
        codecs = {}
        for name, parameter in self._whole.parameters.items():
            if name not in self.skip:
                hint = _hint_of(parameter, self._resolve(name, parameter.annotation))
                if getattr(hint, "_weft_context", False):
                    raise DefinitionError(
                        f"{self.text}: only the first parameter of a function under @app.workflow is a context, {name} is none"
                    )
                codecs[name] = TypeCodec(
                    hint, what=f"argument {name} of {self.text}", root=name, max_bytes=self._max_bytes
                )
        hint = _awaited(self._resolve("return", self._whole.return_annotation))
        returns = TypeCodec(hint, what=f"result of {self.text}", root="result", max_bytes=self._max_bytes)
        return _Plan(self.name, self._whole, codecs, returns)

    def _resolve(self, name: str, annotation: Any) -> Any:
        """Return an annotation with the names in it looked up. Raises NameError for one that is not defined (yet)."""
        if annotation is Parameter.empty:
            return annotation
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            return typing.get_type_hints(holder, _globals_of(self._fn), self._namespace, include_extras=True)[name]
        except AttributeError as error:
            raise NameError(str(error)) from error
        except (TypeError, SyntaxError) as error:
            raise DefinitionError(f"{self.text}: the annotation of {name} is not a type: {error}") from error


class _Plan:
    """Everything about a signature that encoding and decoding look up, worked out once."""

    __slots__ = (
        *("by_position", "codecs", "decoder", "is_simple", "keywords", "n_positional", "n_required", "positional"),
        *("required", "returns", "struct", "trusted", "var_keyword", "var_positional"),
    )

    def __init__(self, name: str, whole: inspect.Signature, codecs: dict[str, TypeCodec], returns: TypeCodec) -> None:
        kept = [parameter for parameter in whole.parameters.values() if parameter.name in codecs]
        self.codecs, self.returns = codecs, returns
        #: Names by the way an argument may be given, and the names of `*args` and `**kwargs` (empty: there is none).
        self.positional = tuple(p.name for p in kept if p.kind in _POSITIONAL)
        self.keywords = frozenset(p.name for p in kept if p.kind in (_POSITIONAL[1], Parameter.KEYWORD_ONLY))
        self.var_positional = next((p.name for p in kept if p.kind is Parameter.VAR_POSITIONAL), "")
        self.var_keyword = next((p.name for p in kept if p.kind is Parameter.VAR_KEYWORD), "")
        #: Names without which there is no call; and how many arguments a call by position alone needs and takes.
        self.required = frozenset(p.name for p in kept if _is_required(p))
        self.n_required = len(self.required)
        self.n_positional = len(self.positional)
        self.trusted = tuple(codecs[p].trusted for p in self.positional)
        #: Names that a worker may pass by position: those before the first skipped one.
        self.by_position = _before_skipped(name, whole, codecs)
        self.struct = _struct_of(codecs)
        self.decoder = msgspec.msgpack.Decoder(self.struct, dec_hook=load_model)
        # Simple: the decoded fields, in order, are the arguments.
        self.is_simple = len(self.by_position) == len(codecs) and all(c.wire_type is not Raw for c in codecs.values())
        if self.required - set(self.positional):
            # A required keyword-only parameter rules out calls by position alone.
            self.n_required = self.n_positional + 1


def _spellings(codec: TypeCodec, default: Any) -> frozenset[bytes]:
    """Return the bytes a default may be compared as; none for one that cannot be given, such as a marker object."""
    values = [default]
    if type(default) in (int, float) and codec.wire_type is not Any and {int, float} <= codec.trusted:
        # A whole number may be given where a float is declared: 2 is 2.0.
        values += [kind(default) for kind in (int, float) if math.isfinite(default) and kind(default) == default]
    found = set()
    for value in values:
        try:
            found.add(one_spelling(codec, codec.encode(value)))
        except Exception:  # noqa: BLE001 - what cannot be written, for whatever reason, cannot be given either
            continue
    return frozenset(found)


def _struct_of(codecs: dict[str, TypeCodec]) -> type[msgspec.Struct]:
    """Return a Struct with a field per parameter, all optional, that refuses names it does not know.

    The fields have names of their own, so that no parameter name can clash with an attribute of Struct.
    """
    fields = [(f"p{place}", codec.wire_type, UNSET) for place, codec in enumerate(codecs.values())]
    names = {f"p{place}": name for place, name in enumerate(codecs)}
    return msgspec.defstruct("Arguments", fields, rename=names, forbid_unknown_fields=True)


def _before_skipped(name: str, whole: inspect.Signature, codecs: dict[str, TypeCodec]) -> tuple[str, ...]:
    names: list[str] = []
    skipped = ""
    for parameter in whole.parameters.values():
        if parameter.name not in codecs:
            skipped = skipped or parameter.name
        elif skipped and parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL):
            raise DefinitionError(f"{name}: {parameter.name} can only be given by position, but follows {skipped}")
        elif not skipped and parameter.kind in _POSITIONAL:
            names.append(parameter.name)
    return tuple(names)


def _all_trusted(args: tuple[Any, ...], trusted: tuple[frozenset[type], ...]) -> bool:
    for value, kinds in zip(args, trusted, strict=False):
        kind = type(value)
        if kind not in kinds or (kind is float and not math.isfinite(value)):
            return False
    return True


def _is_required(parameter: Parameter) -> bool:
    optional = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return parameter.default is Parameter.empty and parameter.kind not in optional


def _globals_of(fn: Any) -> dict[str, Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    return getattr(fn if hasattr(fn, "__globals__") else type(fn).__call__, "__globals__", {})


def _hint_of(parameter: Parameter, hint: Any) -> Any:
    """Return the annotation of the value stored under a parameter's name."""
    if get_origin(hint) is typing.Unpack:
        return get_args(hint)[0]
    says_nothing = hint is Parameter.empty or hint is Any
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return list if says_nothing else tuple[hint, ...]
    if parameter.kind is Parameter.VAR_KEYWORD:
        return dict[str, Any] if says_nothing else dict[str, hint]
    # `a: int = None` says by its default that None fits.
    return typing.Optional[hint] if parameter.default is None and not says_nothing else hint  # noqa: UP045


def _awaited(hint: Any) -> Any:
    return get_args(hint)[-1] if get_origin(hint) in (abc.Awaitable, abc.Coroutine) else hint


class _Shown:
    """Makes `inspect.Signature` print a text as it stands, where it would print a `repr` with module names."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _spell_signature(signature: inspect.Signature) -> str:
    empty = Parameter.empty
    shown = [
        parameter.replace(
            annotation=empty if parameter.annotation is empty else _Shown(spell(parameter.annotation)),
            default=empty if parameter.default is empty else _Shown(_spell_default(parameter.default)),
        )
        for parameter in signature.parameters.values()
    ]
    returns = signature.return_annotation
    return str(inspect.Signature(shown, return_annotation=returns if returns is empty else _Shown(spell(returns))))


def _spell_default(default: Any) -> str:
    # Only values whose `repr` is short and cannot hold what nobody expects in an error message.
    if not isinstance(default, int | float | str | bytes | None):
        return "..."
    text = repr(default)
    return text if len(text) <= SHOWN_DEFAULT_CHARS else "..."
