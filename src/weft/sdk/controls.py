"""What an operator may decide while everything runs: pause, limit, strike. Takes effect at the next claim, everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from weft.clock import parse_rate
from weft.codec import decode_plain, encode_stored, json_form
from weft.core.acts import Act
from weft.core.gates import Strike, cost_gate, gate_name, gate_parts, spellings
from weft.engine import gates as verbs
from weft.engine.engine import user_name
from weft.errors import InvalidOption, NotFound, UserError
from weft.ids import check_name
from weft.sdk.gating import MAX_CONCURRENCY

if TYPE_CHECKING:
    from weft.sdk.app import Weft

W = TypeVar("W")

#: First word of a gate's name -> what an operator limits by it, and which limit of it that is.
_WORDS = {
    "queue": ("queue", "concurrency"),
    "queuerate": ("queue", "rate"),
    "task": ("task", "concurrency"),
    "key": ("task", "per_key"),
    "rate": ("task", "rate"),
}


class Controls:
    """`app.controls`: pauses, limits and strikes."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    @property
    def sync(self) -> SyncControls:
        """The same verbs for code without a loop."""
        return SyncControls(self)

    async def pause(self, *, queue: str | None = None, task: str | None = None, reason: str = "") -> bool:
        """Stops a queue or a task: nothing of it is started until it is resumed; what runs goes on.

        Of what is paused already, since when stays, and a new reason takes the place of the old one. False: nothing changed.
        """
        kind, name = _one(queue, task)
        self._check(task)
        value = {"reason": _text(reason), "by": user_name()}
        return any([await self._change(f"pause:{gate_name(kind, n)}", value, []) for n in self._names(kind, name)])

    async def resume(self, *, queue: str | None = None, task: str | None = None) -> bool:
        """Lets a paused queue or task go on. False: it was not paused."""
        kind, name = _one(queue, task)
        if kind == "queue":
            return await self._change(f"pause:{gate_name(kind, name)}", None, [], [name])
        names = self._names(kind, name)
        return any([await self._change(f"pause:{gate_name(kind, n)}", None, [gate_name("pause", n)]) for n in names])

    async def limit(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        concurrency: int | None = None,
        per_key: int | None = None,
        rate: str | None = None,
    ) -> bool:
        """Sets limits of a queue or a task; they overrule what the definition says until they are lifted.

        False: they were so already.
        """
        kind, name = _one(queue, task)
        if concurrency is None and per_key is None and rate is None:
            raise InvalidOption(
                "limit takes concurrency, per_key or rate; to lift what was set use unlimit, or --clear"
            )
        if per_key is not None and kind == "queue":
            raise InvalidOption("per_key belongs to a task: its concurrency_key gives the key", option="per_key")
        self._check(task, keyed=per_key is not None)
        for what, value, _ in _limits(kind, name, concurrency, per_key):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CONCURRENCY:
                raise InvalidOption(
                    f"{what} must be a whole number from 1 to {MAX_CONCURRENCY:,}, not {value!r}", option=what
                )
        if rate is not None:
            parse_rate(rate, what="rate")
        wanted: list[tuple[int | str, str]] = []
        for each in self._names(kind, name):
            wanted += [(value, gate) for _, value, gate in _limits(kind, each, concurrency, per_key)]
            if rate is not None:
                wanted.append((rate, gate_name("queuerate" if kind == "queue" else "rate", each)))
        set_now = [
            await self._change(f"limit:{gate}", {"value": v, "by": user_name()}, _lines(gate)) for v, gate in wanted
        ]
        return any(set_now)

    async def unlimit(self, *, queue: str | None = None, task: str | None = None) -> bool:
        """Lifts the limits an operator set; those of the definition hold again. False: there were none."""
        kind, name = _one(queue, task)
        kinds = ("queue", "queuerate") if kind == "queue" else ("task", "key", "rate")
        gates = [gate_name(word, each) for each in self._names(kind, name) for word in kinds]
        lifted = [await self._change(f"limit:{gate}", None, _lines(gate)) for gate in gates]
        return any(lifted)

    async def strike(self, task: str, where: Mapping[str, Any] | None = None, *, reason: str = "") -> str:
        """Keeps a task, or its calls with these argument values, from being started; returns the strike's id."""
        check_name(task, what="task")
        if not isinstance(where, Mapping | None):
            raise InvalidOption(
                f"a strike takes arguments by name, such as {{'to': 'bob'}}, not {where!r}", option="where"
            )
        values = {str(key): value for key, value in (where or {}).items()}
        self._check(task, values)
        try:
            self._check_values(task, values)
            # As a call's arguments are stored: a moment in UTC, a model as a map.
            values = json_form(decode_plain(encode_stored(values, what="where")))
        except UserError as error:
            raise InvalidOption(f"no call can have what is to be struck: {error.message}", option="where") from error
        task, *also = self._names("task", task)
        digest = hashlib.sha256(msgspec.json.encode([task, sorted((k, str(v)) for k, v in values.items())])).hexdigest()
        strike = Strike(digest[:8], task, values, also)
        entry = {**msgspec.to_builtins(strike), "reason": _text(reason), "by": user_name()}
        if not also:
            del entry["also"]
        await self._change(f"strike:{strike.id}", entry, [])
        return strike.id

    async def unstrike(self, id: str) -> None:
        """Lifts a strike; what it held goes on. Raises NotFound."""
        if not await self._change(f"strike:{id}", None, [gate_name("strike", id)]):
            raise NotFound(f"there is no strike {id!r}: `weft queues controls` lists them")

    async def list(self) -> list[dict[str, Any]]:
        """Everything that is set now: its kind (limit, pause, strike), what it is about ("queue mail"), by whom, and `at_ms`.

        A limit has which `limit` it is (concurrency, per_key, rate) and its `value`; a strike its `id`, `task` and `where`.
        """
        engine = self._app.engine()
        await engine.open()
        found = []
        for name, entry in sorted((await verbs.known_controls(engine.ns)).entries.items()):
            kind, _, what = name.partition(":")
            if kind == "run":
                continue  # a paused run is its own affair, and stands in its own partition
            found.append({"kind": kind, **_about(kind, what, entry), **entry})
        return found

    def _names(self, kind: str, name: str) -> tuple[str, ...]:
        """Returns what a decision is about: a task under all its names, for runs are still queued under older ones."""
        found = self._app.find_task(name) if kind == "task" else None
        return (name,) if found is None else (found.name, *found.aliases)

    def _check(self, task: str | None, where: Mapping[str, Any] | None = None, *, keyed: bool = False) -> None:
        """Refuses a task or an argument that this app does not have: such a decision would do nothing."""
        if task is None or not self._app.tasks:
            return  # without an app's code there is nothing to compare with
        found = self._app.find_task(task)
        if found is None:
            raise NotFound(f"app {self._app.name!r} has no task {task!r}: it has {', '.join(sorted(self._app.tasks))}")
        names = found.signature.names
        unknown = [name for name in where or {} if names is not None and name not in names]
        if unknown:
            raise InvalidOption(f"{found.signature.text} has no parameter {unknown[0]!r}: nothing would be struck")
        if keyed and (found.gating is None or found.gating.concurrency_key is None):
            raise InvalidOption(f"task {task} has no concurrency_key, so there is no key to limit", option="per_key")

    def _check_values(self, task: str, values: Mapping[str, Any]) -> None:
        """Refuses a value that no call of this app's task can have."""
        if (found := self._app.find_task(task)) is None:
            return
        for name, value in values.items():
            if not any(
                found.signature.takes(name, encode_stored(each, what=f"where.{name}")) for each in spellings(value)
            ):
                raise InvalidOption(f"{name}={value!r} does not fit {found.signature.text}", option="where")

    async def _change(
        self, name: str, value: dict[str, Any] | None, affects: Sequence[str], queues: Sequence[str] = ()
    ) -> bool:
        engine = self._app.engine()
        await engine.open()
        kind, _, what = name.partition(":")
        verb = {"pause": ("pause", "resume"), "limit": ("limit", "unlimit"), "strike": ("strike", "unstrike")}[kind]
        said = {} if value is None else {word: value[word] for word in ("value", "task", "where") if word in value}
        act = Act(
            f"control.{verb[value is None]}",
            what.replace("|", " "),
            user_name(),
            engine.id,
            "" if value is None else str(value.get("reason", "")),
            msgspec.to_builtins(said),
        )
        return await verbs.change(engine.ns, name, value, affects=affects, queues=queues, act=act)


class SyncControls:
    """`app.controls.sync`."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def pause(self, **what: Any) -> bool:
        return self._wait(self._controls.pause(**what))

    def resume(self, **what: Any) -> bool:
        return self._wait(self._controls.resume(**what))

    def limit(self, **what: Any) -> bool:
        return self._wait(self._controls.limit(**what))

    def unlimit(self, **what: Any) -> bool:
        return self._wait(self._controls.unlimit(**what))

    def strike(self, task: str, where: Mapping[str, Any] | None = None, *, reason: str = "") -> str:
        return self._wait(self._controls.strike(task, where, reason=reason))

    def unstrike(self, id: str) -> None:
        self._wait(self._controls.unstrike(id))

    def list(self) -> list[dict[str, Any]]:
        return self._wait(self._controls.list())

    def _wait(self, work: Coroutine[Any, Any, W]) -> W:
        return self._controls._app.portal.call(work)


def _about(kind: str, what: str, entry: Mapping[str, Any]) -> dict[str, str]:
    """Returns what a control is about, in the words in which it was asked for."""
    if kind == "strike":
        return {"what": f"task {entry['task']}"}
    word, *names = gate_parts(what)
    of, limit = _WORDS.get(word, (word, ""))
    return {"what": " ".join([of, *names])} | ({"limit": limit} if kind == "limit" else {})


def _limits(kind: str, name: str, concurrency: int | None, per_key: int | None) -> list[tuple[str, int, str]]:
    found = []
    if concurrency is not None:
        found.append(("concurrency", concurrency, gate_name(kind, name)))
    if per_key is not None:
        found.append(("per_key", per_key, gate_name("key", name)))
    return found


def _lines(gate: str) -> list[str]:
    """Returns whose lines look again when a limit changes."""
    kind, *names = gate_parts(gate)
    return [gate, cost_gate(names[0])] if kind == "rate" else [gate]


def _one(queue: str | None, task: str | None) -> tuple[str, str]:
    if (queue is None) == (task is None):
        raise InvalidOption("name one thing: queue=… or task=…")
    if queue is not None:
        return "queue", check_name(queue, what="queue")
    return "task", check_name(task or "", what="task")


def _text(reason: str) -> str:
    if not isinstance(reason, str):
        raise InvalidOption(f"reason must be a text, not a {type(reason).__name__}", option="reason")
    return reason[:500].encode("utf-8", "replace").decode()
