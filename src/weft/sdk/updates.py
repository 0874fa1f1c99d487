"""Updates of a workflow: questions from outside that its code answers, each once, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from weft.codec import decode_plain
from weft.core.flow import Entry
from weft.core.model import ErrorRecord, Value
from weft.core.waits import MAX_ASKED
from weft.engine import steps
from weft.errors import DefinitionError, InvalidArguments, PayloadTooLarge, StepFailed
from weft.sdk.remembering import Remembered
from weft.sdk.signature import Signature

if TYPE_CHECKING:
    from weft.sdk.program import Program

_pack = msgspec.msgpack.Encoder().encode
_signatures: Remembered[Signature] = Remembered()


class Handler:
    """A function that answers the updates of one name."""

    __slots__ = ("_fn", "_name", "_signature", "_validate")

    def __init__(self, name: str, fn: Callable[..., Any], validate: Callable[[Any], Any] | None) -> None:
        for one in (fn, validate):
            if one is not None and not callable(one):
                raise InvalidArguments(f"ctx.on_update({name!r}, …) takes functions, not {one!r}")
        if inspect.iscoroutinefunction(validate):
            raise InvalidArguments(
                f"ctx.on_update({name!r}, …): validate must be a plain function, which waits for nothing"
            )
        self._name, self._fn, self._validate, self._signature = name, fn, validate, _signature_of(name, fn)

    def check(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of the function. Raises what is wrong with what came."""
        names = self._signature.by_name
        if names:
            args, kwargs = self._signature.decode(_pack({names[0]: msgspec.Raw(payload)}))
        elif decode_plain(payload) is not None:
            raise InvalidArguments(f"update {self._name} takes no value")
        else:
            args, kwargs = (), {}
        if self._validate is not None:
            self._validate(*args, *kwargs.values())
        return args, kwargs

    async def answer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        result = self._fn(*args, **kwargs)
        if inspect.isawaitable(result):
            result = await result
        data = self._signature.returns.encode(result)
        if len(data) > MAX_ASKED:
            raise PayloadTooLarge(
                f"the answer to update {self._name} takes {len(data)} bytes, at most {MAX_ASKED} go with one"
            )
        return data


class Updates:
    """All updates of one execution of a workflow's code: those that wait for a handler, and those that one works on."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._handlers: dict[str, Handler] = {}
        #: Those that came before their handler, each with its place in the journal.
        self.waiting: list[tuple[int, Entry]] = []
        #: Those that a handler works on, by id.
        self.running: dict[str, asyncio.Task[None]] = {}
        #: Ids of those whose answer is in the journal, and answers that are not.
        self.answered: set[str] = set()
        self.answers: list[tuple[Entry, bytes]] = []
        self._idle: list[asyncio.Future[None]] = []

    def add(self, name: str, fn: Callable[..., Any], validate: Callable[[Any], Any] | None) -> None:
        """Has a function answer the updates of a name, from those on that came before."""
        if name in self._handlers:
            raise InvalidArguments(f"update {name} has a handler already")
        self._handlers[name] = Handler(name, fn, validate)
        early = [entry for _, entry in self.waiting if entry.key == name]
        self.waiting = [pair for pair in self.waiting if pair[1].key != name]
        for entry in early:
            self._begin(entry)

    def receive(self, place: int, entry: Entry) -> None:
        """Takes an update: its handler begins, or it waits for one."""
        if entry.key in self._handlers and not self._ends:
            self._begin(entry)
        else:
            self.waiting.append((place, entry))

    @property
    def names(self) -> list[str]:
        """The names that have a handler."""
        return sorted(self._handlers)

    @property
    def may_come(self) -> bool:
        """Whether an update may come that wakes the code: it has handlers, and does not end."""
        return bool(self._handlers) and not self._ends

    def refuse_unknown(self) -> None:
        """Refuses what no handler answers, once the code has any: it came to a slip of the pen."""
        if not self._handlers or self._ends:
            return
        unknown, self.waiting = self.waiting, []
        for _, entry in unknown:
            known = ", ".join(sorted(self._handlers))
            text = f"workflow {self._program.name} has no update {entry.key}; it has {known}"
            self._tell(entry, b"!" + _pack(ErrorRecord("InvalidArguments", text, code="invalid_arguments")))

    def _begin(self, entry: Entry) -> None:
        self.running[entry.more] = self._program.loop.create_task(self._work(entry, self._handlers[entry.key]))

    @property
    def _ends(self) -> bool:
        """Whether the code is on its way out: what comes now is for the next life, or is told by the end of the run."""
        program = self._program
        return program.ending or program.cancel_reason is not None or (program.main is not None and program.main.done())

    @property
    def _fails(self) -> bool:
        """Whether the code has failed, and waits until what it left running has tidied up."""
        program = self._program
        return program.ending and program.main is not None and not program.main.done()

    async def _work(self, entry: Entry, handler: Handler) -> None:
        refuses = True
        try:
            given = handler.check(entry.payload)
            refuses = False
            answer = b"+" + _pack(Value(await handler.answer(*given)))
        except GeneratorExit:
            raise  # the code is let go
        except BaseException as error:
            if self._program.closed:
                raise
            # One that is cancelled because the run fails has no answer: that the run has ended is what its caller is told.
            gone = self._fails and isinstance(error, asyncio.CancelledError)
            answer = b"" if gone else (b"!" if refuses else b"-") + _pack(record_of(error))
        self.running.pop(entry.more, None)
        if answer:
            self._tell(entry, answer)
        if not self.running:
            waiting, self._idle = self._idle, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def done(self) -> asyncio.Future[None]:
        """Returns what is set when no handler is at work."""
        future: asyncio.Future[None] = self._program.loop.create_future()
        if self.running:
            self._idle.append(future)
        else:
            future.set_result(None)
        return future

    def _tell(self, entry: Entry, answer: bytes) -> None:
        if entry.more not in self.answered:
            self.answers.append((entry, answer))


def record_of(error: BaseException) -> ErrorRecord:
    """Returns what is stored of an error that a workflow's code raised: of a step's, what that step failed with."""
    if isinstance(error, StepFailed) and isinstance(record := error.facts.get("record"), ErrorRecord):
        return record
    return steps.record_of(error)


def _signature_of(name: str, fn: Callable[..., Any]) -> Signature:
    """Returns the signature of a handler: code that runs again and again is looked at once."""
    found = _signatures.get(fn)
    if found is None:
        found = Signature(fn, name=getattr(fn, "__name__", name))
        if found.names is None or len(found.names) > 1:
            raise DefinitionError(f"the handler of update {name} takes one value, or none: {found.text}")
        _signatures.keep(fn, found)
    return found
