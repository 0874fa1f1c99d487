"""A partition that is rebuilt: closed, emptied, written anew and opened again. One function per script, same verb and noun."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis.exceptions import RedisError

from weft.core.flow import ID_MS
from weft.core.fold import RunState
from weft.core.gates import NO_CONTROLS
from weft.core.model import RunSpec
from weft.store.definitions import keep_definitions
from weft.store.faults import translate
from weft.store.namespace import Namespace, execute
from weft.store.numbers import Numbers
from weft.store.scripts import Arg, load

#: Keys asked for, and dropped, at once.
PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Hot:
    """What the hot store says of a partition. Nothing: it lost everything, or never had anything."""

    epoch: int
    #: The epoch it is being rebuilt under; 0: it is not.
    recovering: int
    #: The database it believes to be archived to, and up to where. Empty: it knows of none.
    database: str
    marked: str
    #: The archive was given up on purpose.
    retired: bool
    #: Whether its log has the entry that was asked for.
    has_entry: bool
    now_ms: int


class Closed(Namespace):
    """A namespace whose partitions are closed: reads ask nobody's leave, and scripts are called under the next epoch."""

    def __init__(self, ns: Namespace, partitions: int) -> None:
        super().__init__(ns.server, ns.keys.namespace)
        self.caller, self.partitions = ns.caller, partitions
        self.epochs, self.controls = ["0"] * partitions, [NO_CONTROLS] * partitions

    async def open(self, *, only_look: bool = False) -> None:
        self._verified = self.server.generation


async def read_hot(ns: Closed, p: int, entry: str) -> Hot:
    """Reads how a partition stands, whether it is open or not."""
    keys = ns.keys
    home, mark, found, time = await ns.read_many(
        [
            ("HMGET", keys.epoch(p), "number", "recovering", "retired"),
            ("HMGET", keys.archived(p), "database", "entry"),
            ("XRANGE", keys.log(p), entry, entry, "COUNT", 1),
            ("TIME",),
        ],
        p=p,
    )
    number, recovering, retired = (int(word or 0) for word in home)
    database, marked = ((word or b"").decode() for word in mark)
    now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    return Hot(number, recovering, database, marked, bool(retired), bool(found), now_ms)


async def close_partition(ns: Closed, p: int) -> bool:
    """Closes a partition; False when it is at the next epoch already."""
    script = load("close_partition")
    packed = script.pack({"epoch": ns.keys.epoch(p)}, {"epoch": ns.epochs[p]})
    return bool(await execute(ns.caller, script, packed) == b"closed")


async def wipe_partition(ns: Closed, p: int) -> int:
    """Drops everything of a closed partition but its epoch; returns how many keys that were."""
    kept = {ns.keys.epoch(p).encode(), ns.keys.namespace_meta().encode()}
    cursor, dropped = 0, 0
    while True:
        try:
            reply = await ns.on_node(p, "SCAN", cursor, "MATCH", ns.keys.prefix(p) + "*", "COUNT", PAGE)
        except (RedisError, OSError) as error:
            raise translate(error) from error
        cursor, found = int(reply[0]), [key for key in reply[1] if key not in kept]
        if found:
            dropped += int(await ns.read("UNLINK", *found, p=p))
        if not cursor:
            return dropped


async def begin_log(ns: Closed, p: int, entry: str, now_ms: int) -> None:
    """Begins the log of an emptied partition with the entry up to which it is archived: what comes, comes behind it."""
    await ns.read("XADD", ns.keys.log(p), entry, "at", now_ms, "by", "recovery", p=p)


async def restore_runs(
    ns: Closed, p: int, found: Sequence[tuple[RunState, RunSpec, bool]], *, now_ms: int, by: str
) -> list[str]:
    """Writes runs (those that are open) and the records they stand behind; returns a word each."""
    keys, records, uniques, items = ns.keys, Numbers(), Numbers(), list[tuple[Arg, ...]]()
    for state, spec, is_open in found:
        key = unique = 0
        if state.claims_ms > now_ms and spec.key:
            key = records.of(keys.idempotency(p, hashlib.sha256(spec.key.encode()).hexdigest()[:32]))
        # A record of calls that count as one is given back by a run that did not complete.
        # That of a workflow's id is given back by every run.
        elif state.claims_ms > now_ms and (
            is_open or spec.once or (state.status == "completed" and spec.once_ms != ID_MS)
        ):
            unique = uniques.of(keys.unique(p, spec.unique or spec.once))
        items.append(
            (
                state.spec if is_open else b"",
                state.seq,
                state.delivery,
                state.attempt,
                state.due_ms,
                state.created_ms,
                state.deadline_ms,
                state.crashes,
                state.value,
                state.progress,
                int(state.status == "waiting"),
                key,
                state.same,
                unique,
                max(1, state.claims_ms - now_ms),
            )
        )
    reply = await ns.call(
        "restore_runs",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "run": [keys.run(p, state.id) for state, _, _ in found],
            "idempotency": records,
            "unique": uniques,
        },
        {"by": by},
        items,
    )
    return [word.decode() for word in reply]


async def restore_graph(
    ns: Closed,
    p: int,
    state: RunState,
    *,
    fields: Mapping[str, Arg],
    error: bytes,
    keep_ms: int,
    by: str,
) -> str:
    """Writes a graph run, behind all that it has; or its end. Returns a word."""
    keys = ns.keys
    reply = await ns.call(
        "restore_graph",
        p,
        {
            "log": keys.log(p),
            "timers": keys.timers(p),
            "run": keys.run(p, state.id),
            "context": keys.context(p, state.id),
        },
        {
            "by": by,
            "spec": state.spec,
            "seq": state.seq,
            "born": state.created_ms,
            "deadline_ms": state.deadline_ms,
            "error": error,
            "keep_ms": keep_ms,
        },
        list(fields.items()),
    )
    return str(reply.decode())


async def write_plain(ns: Closed, p: int, commands: Sequence[tuple[Arg, ...]]) -> None:
    """Writes what a run has besides its own hash, by plain commands: the partition is closed, and one process rebuilds it."""
    for at in range(0, len(commands), PAGE):
        for reply in await ns.read_many(commands[at : at + PAGE], p=p):
            if isinstance(reply, Exception):
                raise reply


async def restore_letter(
    ns: Closed, p: int, run: str, fields: Mapping[str, bytes], *, failed_ms: int, keep_ms: int
) -> None:
    """Writes a dead letter: the run, for as long as it is still kept, and its place in the index."""
    await restore_ended(ns, p, run, fields, keep_ms=keep_ms)
    await ns.read("ZADD", ns.keys.dlq(p), failed_ms, run, p=p)


async def restore_ended(
    ns: Closed,
    p: int,
    run: str,
    fields: Mapping[str, bytes],
    *,
    keep_ms: int,
    blobs: Sequence[str] = (),
    timer: tuple[str, int] | None = None,
) -> None:
    """Writes a run that has ended, for as long as it is still kept. `timer`: a member that is due, and when."""
    key, flat = ns.keys.run(p, run), [part for pair in fields.items() for part in pair]
    commands: list[tuple[Arg, ...]] = [("HSET", key, *flat)]
    if keep_ms:
        commands += [("PEXPIRE", one, keep_ms) for one in (key, *(ns.keys.blob(p, run, b) for b in blobs if b))]
    if timer is not None:
        commands.append(("ZADD", ns.keys.timers(p), timer[1], timer[0]))
    await write_plain(ns, p, commands)


async def restore_definition(ns: Closed, p: int, digest: str, data: bytes) -> None:
    """Writes a definition of graphs."""
    await keep_definitions(ns, p, {digest: data})


async def restore_blob(ns: Closed, p: int, run: str, digest: str, data: bytes, *, of_graph: bool = False) -> None:
    """Writes a large value of a run."""
    await ns.read("SET", ns.keys.blob(p, run, digest), data, p=p)
    if of_graph:
        await ns.read("SADD", ns.keys.belongings(p, run), f"blob {digest}", p=p)


async def restore_settings(
    ns: Closed, p: int, controls: Mapping[str, bytes], schedules: Mapping[str, Mapping[str, bytes]]
) -> None:
    """Writes what operators had set, and schedules."""
    places, items = Numbers(), list[tuple[Arg, ...]]()
    items += [("control", 0, name, value) for name, value in controls.items()]
    for name, fields in schedules.items():
        place = places.of(ns.keys.schedule(p, name))
        items += [("field", place, field, value) for field, value in fields.items()]
        ticks = b"" if fields.get("paused") == b"1" else fields.get("next", b"")
        items.append(("schedule", 0, name, ticks))
    keys = ns.keys
    await ns.call(
        "restore_settings",
        p,
        {
            "controls": keys.controls(p),
            "schedules": keys.schedules(p),
            "timers": keys.timers(p),
            "schedule": places,
        },
        {},
        items,
    )


async def restore_mark(ns: Closed, p: int, database: str, name: str, entry: str, now_ms: int) -> None:
    """Notes to which database a partition is archived, and up to where. The store has nothing that is not from there."""
    mark = ("database", database, "name", name, "entry", entry, "indexed", entry, "passed", 0, "at", now_ms, "whole", 1)
    await write_plain(ns, p, [("HSET", ns.keys.archived(p), *mark)])


async def reopen_partition(ns: Closed, p: int) -> None:
    """Opens a partition that was rebuilt."""
    await ns.call("reopen_partition", p, {}, {})


async def read_settings(ns: Namespace, p: int) -> dict[tuple[str, str], dict[str, bytes]]:
    """Reads what operators have set, and schedules, by kind and name: fields each."""
    controls, names = await ns.read_many([("HGETALL", ns.keys.controls(p)), ("SMEMBERS", ns.keys.schedules(p))], p=p)
    found = {("control", name): {"value": value} for name, value in _pairs(controls).items()}
    listed = sorted(name.decode() for name in names)
    for at in range(0, len(listed), PAGE):
        some = listed[at : at + PAGE]
        replies = await ns.read_many([("HGETALL", ns.keys.schedule(p, name)) for name in some], p=p)
        found |= {("schedule", name): _pairs(reply) for name, reply in zip(some, replies, strict=True) if reply}
    return found


def _pairs(reply: Sequence[bytes]) -> dict[str, bytes]:
    return {key.decode(): value for key, value in zip(reply[::2], reply[1::2], strict=True)}
