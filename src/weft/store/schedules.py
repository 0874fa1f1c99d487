"""Schedules in Redis: read, write at a revision, tick, drop. One function per script, same verb and noun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from weft.core.schedule import ScheduleSpec
from weft.errors import Broken
from weft.store.keys import TIMER_WAKE
from weft.store.namespace import Namespace
from weft.store.runs import NewRun, start_args, start_call
from weft.store.scripts import Arg

SPEC_DECODER = msgspec.msgpack.Decoder(ScheduleSpec)

#: What a timer of a schedule begins with; its name follows.
MEMBER = "cron:"


@dataclass(slots=True)
class ScheduleRow:
    """A schedule's hash, as read. Its spec is decoded when asked for: one that cannot be is a fault of that schedule only."""

    name: str
    fields: dict[str, bytes] = field(default_factory=dict)

    @property
    def spec(self) -> ScheduleSpec:
        try:
            return SPEC_DECODER.decode(self.fields.get("spec", b""))
        except msgspec.MsgspecError as error:
            raise Broken(
                f"schedule {self.name} cannot be read ({error}): something else wrote its key, or a newer Weft; delete it"
                " and create it anew",
                schedule=self.name,
            ) from error

    @property
    def rev(self) -> str:
        return self.text("rev")

    @property
    def paused(self) -> bool:
        return self.text("paused") == "1"

    @property
    def run(self) -> str:
        return self.text("run")

    def text(self, name: str) -> str:
        return self.fields.get(name, b"").decode()

    def moment(self, name: str) -> int | None:
        """Returns a field that holds ms; None when it is not there."""
        value = self.fields.get(name)
        return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class Move:
    """How a tick changes a schedule. None removes a field; `keeps` names those left as they are."""

    name: str
    rev: str
    next_ms: int | None = None
    timer_ms: int | None = None
    last_ms: int | None = None
    run: str | None = None
    skipped_ms: int | None = None
    waits_ms: int | None = None
    keeps: frozenset[str] = frozenset()

    def line(self) -> str:
        words = {
            "next": self.next_ms,
            "timer": self.timer_ms,
            "last": self.last_ms,
            "run": self.run,
            "skipped": self.skipped_ms,
            "waits": self.waits_ms,
        }
        shown = ("=" if name in self.keeps else "-" if word is None else str(word) for name, word in words.items())
        return " ".join([self.rev, *shown])


async def tick_schedules(ns: Namespace, p: int, moves: Sequence[Move], runs: Sequence[NewRun], *, by: str) -> list[int]:
    """Moves schedules on and starts runs, or changes nothing and returns which moves (from 0) came too late."""
    keys, items = start_call(ns, p, runs)
    reply = await ns.call(
        "tick_schedules",
        p,
        {**keys, "schedule": [ns.keys.schedule(p, move.name) for move in moves]},
        {**start_args(ns, p, by), "moves": "\n".join(move.line() for move in moves)},
        items,
    )
    return [number - 1 for number in reply[1:]] if reply and reply[0] == b"stale" else []


async def put_schedule(
    ns: Namespace,
    p: int,
    name: str,
    *,
    rev: str,
    due_ms: int | None,
    fields: Mapping[str, Arg | None],
    act: bytes = b"",
    by: str = "",
) -> bool:
    """Writes a schedule at the revision it was read at (`0`: there is none yet); False when somebody was quicker.

    `act` is what the audit is told.
    """
    keys = ns.keys
    items: list[tuple[Arg, ...]] = [
        (f"-{name}", "") if value is None else (name, value) for name, value in fields.items()
    ]
    written = await ns.call(
        "put_schedule",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "schedules": keys.schedules(p),
            "schedule": keys.schedule(p, name),
            "wake": [keys.wake(p, TIMER_WAKE)],
        },
        {"rev": rev, "due": "" if due_ms is None else due_ms, "by": by, "act": act},
        items,
    )
    return bool(written)


async def drop_schedule(ns: Namespace, p: int, name: str, *, act: bytes = b"", by: str = "") -> bool:
    """Deletes a schedule; returns whether there was one. `act` is what the audit is told."""
    keys = ns.keys
    dropped = await ns.call(
        "drop_schedule",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "schedules": keys.schedules(p),
            "schedule": keys.schedule(p, name),
        },
        {"by": by, "act": act},
    )
    return bool(dropped)


async def read_schedules(ns: Namespace, p: int, names: Sequence[str]) -> list[ScheduleRow | None]:
    """Reads schedules of one partition in one round trip; None where there is none."""
    replies = await ns.read_many([("HGETALL", ns.keys.schedule(p, name)) for name in names], p=p)
    return [_row(name, reply) for name, reply in zip(names, replies, strict=True)]


def _row(name: str, reply: Any) -> ScheduleRow | None:
    if not reply or isinstance(reply, Exception):
        return None
    return ScheduleRow(name, {key.decode(): value for key, value in zip(reply[::2], reply[1::2], strict=True)})


async def read_names(ns: Namespace, p: int) -> list[str]:
    """Returns the names of all schedules of a partition, in order."""
    return sorted(name.decode() for name in await ns.read("SMEMBERS", ns.keys.schedules(p), p=p))


async def postpone_schedule(ns: Namespace, p: int, name: str, until_ms: int) -> None:
    """Puts off the timer of a schedule that cannot be judged, so that it does not hold up the others."""
    await ns.read("ZADD", ns.keys.timers(p), "XX", "GT", until_ms, f"{MEMBER}{name}", p=p)
