"""An opened namespace: its partitions, their epochs, and the one way to call a script on them.

Opening refuses a server that loses work (an evicting memory policy) and warns about one that forgets (no
persistence). Every new connection is followed by a check that the server behind it is the one that was
verified; until that is done nothing is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from redis.exceptions import NoScriptError, RedisError

from weft.core.gates import NO_CONTROLS, Controls
from weft.errors import EpochMissing, PartitionLost, SettingsError, StaleEpoch, StoreRefused, Unavailable
from weft.store import connection
from weft.store.connection import Caller, ClusterCaller, Server
from weft.store.faults import translate
from weft.store.forms import Forms
from weft.store.keys import Keyspace
from weft.store.scripts import Arg, Script, load
from weft.telemetry import get_logger

log = get_logger("weft.store")

#: Version of the key layout; a namespace written by a newer one is refused.
LAYOUT = 1
#: Partitions of a new namespace on a Cluster; 1 elsewhere.
CLUSTER_PARTITIONS = 32
#: The most partitions a namespace may have.
MAX_PARTITIONS = 1024
#: Seconds between two looks at whether a partition is archived by now, which a process that was there before must learn.
LOOK = 2.0
#: Seconds after its start in which a server may not have been looked at by anybody who archives.
YOUNG = 30


class Namespace:
    """One namespace on one store."""

    def __init__(self, server: Server, name: str, *, partitions: int | None = None) -> None:
        self.server = server
        self.keys = Keyspace(name)
        self.caller: Caller = server.caller()
        self.partitions = 0
        self.epochs: list[str] = []
        #: What operators have set, per partition, as last seen.
        self.controls: list[Controls] = []
        #: Priorities that are in use, from high to low, per partition, as last seen.
        self.levels: list[str] = []
        #: Partitions that are known to be archived: an empty one of them is a loss, and waits to be rebuilt.
        self.archived: set[int] = set()
        #: The server process behind each node, as last verified.
        self.incarnations: dict[str, str] = {}
        #: Whether this process came upon a server that was restarted just now, or since anybody looked: it may have gone back.
        self.moved = False
        #: Asks the database which partitions it has, before an empty one is begun as new; set by whoever has a database.
        self.ask_archive: Callable[[], Awaitable[set[int]]] | None = None
        #: Whether it is asked about a store that knows of no archive, too: it may have been begun anew by who cannot ask.
        self.ask_unmarked = False
        self.warnings: list[str] = []
        self.forms = Forms()
        self._wanted = partitions
        self._verified = -1
        self._look_at = 0.0
        self._opening = asyncio.Lock()

    async def open(self, *, only_look: bool = False) -> None:
        """Checks the server, creates the namespace if it is new, and learns the epochs.

        With `only_look` a server that may lose work is opened all the same, for whoever wants to see what stands there.
        """
        async with self._opening:
            if not self.partitions:
                try:
                    self.warnings = [] if only_look else await check_server(self)
                    self.partitions = await self._fixed_partitions()
                except (RedisError, OSError) as error:
                    raise translate(error) from error
            await self._verify()

    async def close(self) -> None:
        await self.caller.aclose()
        await self.server.aclose()

    async def call(
        self,
        name: str,
        p: int,
        keys: Mapping[str, str | Collection[str]],
        args: Mapping[str, Arg] | None = None,
        items: Iterable[Sequence[Arg]] = (),
        *,
        caller: Caller | None = None,
    ) -> Any:
        """Runs one script on one partition. The epoch key and number are filled in here.

        A call the partition refuses because its epoch moved has changed nothing: the epoch is learnt and the call
        made once more. Callers whose right depends on the epoch compare it themselves (see `epoch`).
        """
        script, items = load(name), list(items)
        return await self.send(script, lambda: self.pack(script, p, keys, args, items), caller=caller)

    async def send(self, script: Script, pack: Callable[[], list[Arg]], *, caller: Caller | None = None) -> Any:
        """Runs a script with what `pack` returns; that is asked again when the epoch was another."""
        for again in (False, True):
            await self.ready()
            try:
                return await execute(caller or self.caller, script, pack())
            except (StaleEpoch, EpochMissing):
                if again:
                    raise
                self._verified = -1
        raise AssertionError("unreachable")

    async def ready(self) -> None:
        """Makes sure that the server is the one that was verified, for a caller that sends by itself."""
        if self._verified != self.server.generation:
            await self.open()
        elif len(self.archived) < self.partitions and time.monotonic() >= self._look_at:
            await self._look()

    def pack(
        self,
        script: Script,
        p: int,
        keys: Mapping[str, str | Collection[str]],
        args: Mapping[str, Arg] | None,
        items: Iterable[Sequence[Arg]],
    ) -> list[Arg]:
        """Returns what a call of a script carries: its keys, arguments and records, and the epoch."""
        return script.pack({"epoch": self.keys.epoch(p), **keys}, {"epoch": self.epochs[p], **(args or {})}, items)

    def epoch(self, p: int) -> int:
        """Returns the epoch this process believes in."""
        return int(self.epochs[p])

    async def read(self, *command: Arg, p: int) -> Any:
        """Runs one plain reading command on the partition's node."""
        if self._verified != self.server.generation:
            await self.open()
        connection.boundary("before", str(command[0]))
        # A command without arguments has no key from which a Cluster could tell the node.
        send = self.caller.execute_command if len(command) > 1 else functools.partial(self.on_node, p)
        try:
            reply = await send(*command)
        except (RedisError, OSError) as error:
            raise translate(error) from error
        connection.boundary("after", str(command[0]))
        return reply

    async def read_many(self, commands: Sequence[Sequence[Arg]], *, p: int) -> list[Any]:
        """Runs reading commands of one partition in one round trip.

        An error about one key (of the wrong type, without its group) stands in its place in the list. One that means
        the server answers nobody right now is raised: it must not be taken for a key that is not there.
        """
        if not commands:
            return []
        if self._verified != self.server.generation:
            await self.open()
        replies = await send_many(self.caller, commands)
        for reply in replies:
            if isinstance(reply, Exception) and isinstance(meaning := translate(reply), Unavailable):
                raise meaning from reply
        return replies

    async def _fixed_partitions(self) -> int:
        key = self.keys.namespace_meta()
        if self._wanted is not None and not 1 <= self._wanted <= MAX_PARTITIONS:
            raise SettingsError(f"a namespace has 1 to {MAX_PARTITIONS} partitions, not {self._wanted}")
        partitions, layout = await self._send("HMGET", key, "partitions", "layout")
        if partitions is None or layout is None:
            await self._ask()
            # As many partitions as it had: any that are not opened again would never be rebuilt.
            had = self.partitions or max(self.archived, default=-1) + 1
            wanted = had or self._wanted or (CLUSTER_PARTITIONS if self.server.clustered else 1)
            # Written only when missing: a full server refuses this, and a worker that joins to drain it must not fail.
            await self._send("HSETNX", key, "partitions", wanted)
            await self._send("HSETNX", key, "layout", LAYOUT)
            partitions, layout = await self._send("HMGET", key, "partitions", "layout")
        elif self.ask_unmarked and await self._is_unmarked():
            # It may have been wiped, and begun anew by a producer that knows of no archive and chose another number.
            self.ask_unmarked = False
            await self._ask()
            partitions = await self.raise_partitions(max(self.archived, default=-1) + 1)
        if int(layout) > LAYOUT:
            raise StoreRefused(
                f"namespace {self.keys.namespace!r} was written by a newer Weft (key layout {int(layout)}, this one"
                f" knows {LAYOUT}): upgrade this process"
            )
        if self._wanted and int(partitions) != self._wanted:
            raise SettingsError(
                f"namespace {self.keys.namespace!r} was created with {int(partitions)} partitions; the number is fixed,"
                f" {self._wanted} were asked for: drop WEFT_PARTITIONS or use another namespace"
            )
        return int(partitions)

    async def raise_partitions(self, n: int) -> int:
        """Gives a namespace back the partitions that it had, if it has fewer now; returns how many it has."""
        key = self.keys.namespace_meta()
        try:
            (stored,) = await self._send("HMGET", key, "partitions")
            if stored is None or int(stored) < n:
                await self._send("HSET", key, "partitions", n)
                if stored is not None:
                    log.warning("the namespace has its partitions back", partitions=n, had=int(stored))
                return n
            return int(stored)
        except (RedisError, OSError) as error:
            raise translate(error) from error

    async def _is_unmarked(self) -> bool:
        """Tells whether the store knows of no archive."""
        (entry,) = await self._send("HMGET", self.keys.archived(0), "entry")
        return entry is None

    async def _look(self) -> None:
        """Learns which partitions are archived by now: whoever does not know would begin an empty one as new."""
        self._look_at = time.monotonic() + LOOK
        unknown = [p for p in range(self.partitions) if p not in self.archived]
        with contextlib.suppress(RedisError, OSError):  # the call that comes next says it better
            replies = await self.caller.execute_many([("EXISTS", self.keys.archived(p)) for p in unknown])
            self.archived |= {p for p, reply in zip(unknown, replies, strict=True) if reply == 1}

    async def _send(self, *command: Arg) -> Any:
        with connection.bounded(str(command[0])):
            return await self.caller.execute_command(*command)

    async def _verify(self) -> None:
        """Compares the server behind the connections with the one last seen, until no new connection came between."""
        for _ in range(5):
            generation = self.server.generation
            opened = await self._open_partitions()
            for p, (number, state) in enumerate(opened):
                if self.epochs and number != self.epochs[p]:
                    then = "it was rebuilt from the archive" if p in self.archived else "runs it held are gone from it"
                    log.warning(f"the store lost this partition; {then}", partition=p, epoch=number)
                elif state == "moved":
                    self.moved = True
                    log.info("another server process holds this partition now", partition=p)
            moved = [number for number, _ in opened] != self.epochs or any(state == "new" for _, state in opened)
            if self.epochs and moved:
                await self._found_again()
            self.epochs = [number for number, _ in opened]
            self.controls = self.controls or [NO_CONTROLS] * self.partitions
            self.levels = self.levels or ["5"] * self.partitions
            if generation == self.server.generation:
                break
        self._verified = generation
        self._look_at = time.monotonic() + LOOK

    async def _open_partitions(self, *, ask: bool = True) -> list[tuple[str, str]]:
        """Asks each node who it is, then opens all partitions in one round trip; returns epoch and state of each.

        With `ask` the database, where there is one, is asked before an empty partition is begun as new.
        """
        script = load("open_partition")
        incarnations: dict[str, str] = {}
        calls = []
        for p in range(self.partitions):
            node = await self._node_of(p)
            if node not in incarnations:
                about = await self.info("server", p)
                incarnations[node] = about.get("run_id", "")
                # The first to come is told that it moved; others that come at the same time are not.
                self.moved = self.moved or int(about.get("uptime_in_seconds", YOUNG)) < YOUNG
            keys = {"epoch": self.keys.epoch(p), "archived": self.keys.archived(p)}
            loss = p in self.archived or (ask and self.ask_archive is not None)
            known = {"incarnation": incarnations[node], "known": "1" if loss else ""}
            calls.append((script, script.pack(keys, known)))
        replies = await execute_many(self.caller, calls)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        if ask and any(state == b"lost" and p not in self.archived for p, (_, _, state, _) in enumerate(replies)):
            await self._ask()
            return await self._open_partitions(ask=False)
        for p, (_, _, state, archived) in enumerate(replies):
            if state in (b"lost", b"closed"):
                raise PartitionLost(
                    f"the store lost partition {p}"
                    + (
                        ", which is being rebuilt, see `weft recover`"
                        if state == b"closed"
                        else "; an archiver rebuilds it, see `weft recover`"
                    ),
                    partition=p,
                )
            if archived == b"1":
                self.archived.add(p)
        self.incarnations = incarnations
        return [(number.decode(), state.decode()) for number, _, state, _ in replies]

    async def _ask(self) -> None:
        """Learns from the database what it has of this namespace."""
        if self.ask_archive is not None:
            self.archived |= await self.ask_archive()

    async def _found_again(self) -> None:
        """Notes the number of partitions once more after a wipe, before a newcomer chooses another."""
        try:
            partitions = await self._fixed_partitions()
        except (RedisError, OSError) as error:
            raise translate(error) from error
        if partitions != self.partitions:
            raise StoreRefused(
                f"namespace {self.keys.namespace!r} was wiped and has {partitions} partitions by now, this process"
                f" knows {self.partitions}: start it again"
            )

    async def _node_of(self, p: int) -> str:
        if not isinstance(self.caller, ClusterCaller):
            return ""
        try:
            return await self.caller.node_of(self.keys.epoch(p))
        except (RedisError, OSError) as error:
            raise translate(error) from error

    async def info(self, section: str, p: int = 0) -> dict[str, str]:
        """Reads a section of INFO from the node that holds a partition."""
        try:
            with connection.bounded("INFO"):
                return connection.parse_info(await self.on_node(p, "INFO", section))
        except (RedisError, OSError) as error:
            raise translate(error) from error

    async def on_node(self, p: int, *command: Arg) -> Any:
        """Runs a command without a key on the node that holds a partition."""
        if isinstance(self.caller, ClusterCaller):
            return await self.caller.on_node_of(self.keys.epoch(p), *command)
        return await self.caller.execute_command(*command)


async def execute(caller: Caller, script: Script, packed: list[Arg]) -> Any:
    """Runs a script by its digest, sending its source only when the server does not know it."""
    connection.boundary("before", script.call)
    try:
        try:
            reply = await caller.execute_command("EVALSHA", script.sha, *packed)
        except NoScriptError:
            reply = await caller.execute_command("EVAL", script.source, *packed)
    except (RedisError, OSError) as error:
        raise translate(error, script) from error
    connection.boundary("after", script.call)
    return reply


async def execute_many(caller: Caller, calls: Sequence[tuple[Script, list[Arg]]]) -> list[Any]:
    """Runs scripts in one round trip; those the server does not know are sent again with their source, in order.

    An error stands in its place in the list, translated.
    """
    replies = await send_many(caller, [("EVALSHA", script.sha, *packed) for script, packed in calls])
    missing = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if missing:
        again = await send_many(caller, [("EVAL", calls[i][0].source, *calls[i][1]) for i in missing])
        for i, reply in zip(missing, again, strict=True):
            replies[i] = reply
    return [translate(reply, calls[i][0]) if isinstance(reply, Exception) else reply for i, reply in enumerate(replies)]


async def send_many(caller: Caller, commands: Sequence[Sequence[Arg]]) -> list[Any]:
    """Sends commands in one round trip; an error stands in its place in the list, as redis-py made it."""
    connection.boundary("before", "pipeline")
    try:
        replies = await caller.execute_many(commands)
    except (RedisError, OSError) as error:
        raise translate(error) from error
    connection.boundary("after", "pipeline")
    return replies


async def check_server(ns: Namespace) -> list[str]:
    """Refuses a server on which promises cannot be kept; returns warnings about one that may forget."""
    info = await ns.info("server")
    version = info.get("valkey_version") or info.get("redis_version", "0")
    if int(version.split(".", maxsplit=1)[0]) < 7:
        raise StoreRefused(f"the store is version {version}; Weft needs Redis >= 7.0 or Valkey >= 7.2")
    settings = await _config(ns)
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        raise StoreRefused(
            f"the store's maxmemory-policy is {policy}: it may throw queued work away. Set it to noeviction"
            " (CONFIG SET maxmemory-policy noeviction, and in the server's configuration file)",
            policy=policy,
        )
    if settings.get("appendonly") == "no":
        return [
            "the store does not persist (appendonly no): accepted runs are lost when it restarts. Set `appendonly yes`"
            " and `appendfsync everysec` (CONFIG SET appendonly yes, and in the server's configuration file)"
        ]
    return []


async def _config(ns: Namespace) -> dict[str, str]:
    """Reads the settings that matter; hosted servers forbid CONFIG, and INFO tells the policy there."""
    try:
        with connection.bounded("CONFIG"):
            reply = await ns.on_node(0, "CONFIG", "GET", "maxmemory-policy", "appendonly")
    except RedisError:
        return {"maxmemory-policy": (await ns.info("memory")).get("maxmemory_policy", "noeviction")}
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(key): _text(value) for key, value in pairs}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
