"""Makes connections to Redis or Valkey: standalone, unix socket, TLS, Sentinel and Cluster, by URL.

redis-py's defaults are not ours: it repeats commands by itself, which applied one INCR twice in a measurement.
Every client made here has retries off; whoever calls decides what may be repeated. Blocking readers get
clients of their own, whose socket timeout lies above their block time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
import redis.asyncio as aredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from weft.errors import SettingsError
from weft.store.wire import Command, Wires

#: Seconds a command may take before its outcome is unknown.
COMMAND_TIMEOUT = 5.0
#: Seconds a connection may take to be made.
CONNECT_TIMEOUT = 3.0
#: Connections one client may hold; beyond that a caller waits for one.
MAX_CONNECTIONS = 32

SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")


@dataclass
class Address:
    """Where a store is, as said by a URL."""

    url: str
    kind: str = "standalone"
    hosts: list[tuple[str, int]] = field(default_factory=list)
    service: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Reads a store URL; refuses what it does not know, with the accepted forms."""
        scheme, _, rest = url.partition("://")
        if scheme not in SCHEMES or not rest:
            raise SettingsError(
                f"store URL {mask(url)!r} cannot be used: it must begin with one of "
                + ", ".join(f"{s}://" for s in SCHEMES),
                url=mask(url),
            )
        if "+" not in scheme:
            return cls(url)
        # urlsplit reads one host and port only, and these URLs list several.
        netloc, _, tail = rest.partition("/")
        auth, _, hosts = netloc.rpartition("@")
        parts = urlsplit(f"redis://host/{tail}")
        path = [piece for piece in parts.path.split("/") if piece]
        address = cls(url, scheme.partition("+")[2], [_host(h, url) for h in hosts.split(",")])
        user, _, password = auth.partition(":")
        options: dict[str, Any] = dict(parse_qsl(parts.query))
        if scheme.startswith("rediss"):
            options["ssl"] = True
        if user:
            options["username"] = unquote(user)
        if password:
            options["password"] = unquote(password)
        if address.kind == "sentinel":
            if not path:
                raise SettingsError(
                    f"{mask(url)!r}: a Sentinel URL names the service: redis+sentinel://host:26379/mymaster",
                    url=mask(url),
                )
            address.service = path[0]
            if len(path) > 1:
                options["db"] = int(path[1])
        address.options = options
        return address


def _host(text: str, url: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise SettingsError(f"{mask(url)!r}: each host needs a port, as in host:6379", url=mask(url))
    return host.strip("[]"), int(port)


def mask(url: str) -> str:
    """Returns the URL with its password hidden, fit for logs and `weft doctor`."""
    head, at, tail = url.rpartition("@")
    if not at:
        return url
    scheme, _, auth = head.partition("://")
    user, colon, _ = auth.partition(":")
    return f"{scheme}://{user}{colon}***@{tail}" if colon else url


class Server:
    """One store: knows how to make each kind of client for it."""

    def __init__(self, url: str) -> None:
        self.address = Address.parse(url)
        #: Rises with every new connection, so that whoever cares can verify the server behind it.
        self.generation = 0

    @property
    def clustered(self) -> bool:
        return self.address.kind == "cluster"

    def caller(self, *, timeout: float = COMMAND_TIMEOUT) -> Caller:
        """Returns what commands are sent through; `timeout` lies above the block time for blocking readers."""
        if self.clustered:
            return ClusterCaller(self._cluster(timeout))
        pool = self._client(None).connection_pool
        return Wires(pool.make_connection, timeout=timeout)

    def subscriber(self) -> Any:
        """Returns a client for pub/sub, which waits for messages without end."""
        return self._cluster(None) if self.clustered else self._client(None)

    def _cluster(self, timeout: float | None) -> Any:
        nodes = [aredis.cluster.ClusterNode(host, port) for host, port in self.address.hosts]
        # One retry lets the client follow a moved slot, which it does only after the server refused the command.
        return aredis.RedisCluster(
            startup_nodes=nodes,
            retry=AsyncRetry(NoBackoff(), 1),
            max_connections=MAX_CONNECTIONS,
            socket_timeout=timeout,
            socket_connect_timeout=CONNECT_TIMEOUT,
            protocol=2,
            **self.address.options,
        )

    def _client(self, timeout: float | None) -> Any:
        common: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "protocol": 2,
            "redis_connect_func": self._connected,
            "retry": AsyncRetry(NoBackoff(), 0),
            **self.address.options,
        }
        if self.address.kind == "sentinel":
            sentinel = AsyncSentinel(self.address.hosts, sentinel_kwargs=self._sentinel_options(), **common)
            return sentinel.master_for(self.address.service)
        return aredis.Redis.from_pool(aredis.ConnectionPool.from_url(self.address.url, **common))

    def sync_client(self, *, timeout: float = COMMAND_TIMEOUT) -> Any:
        """Returns a blocking client, for the lease thread."""
        common: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "protocol": 2,
            **self.address.options,
        }
        if self.address.kind == "cluster":
            nodes = [redis.cluster.ClusterNode(host, port) for host, port in self.address.hosts]
            return redis.RedisCluster(startup_nodes=nodes, retry=Retry(NoBackoff(), 1), **common)
        common["retry"] = Retry(NoBackoff(), 0)
        if self.address.kind == "sentinel":
            sentinel = Sentinel(self.address.hosts, sentinel_kwargs=self._sentinel_options(), **common)
            return sentinel.master_for(self.address.service)
        return redis.Redis.from_url(self.address.url, **common)

    def _sentinel_options(self) -> dict[str, Any]:
        return {"socket_timeout": CONNECT_TIMEOUT, "socket_connect_timeout": CONNECT_TIMEOUT}

    async def _connected(self, connection: Any) -> None:
        await connection.on_connect()
        self.generation += 1


#: Commands whose replies are wanted as the server sent them: redis-py would turn stream fields into a dict, and a
#: log entry may tell of one run twice.
RAW_REPLIES = (
    "XRANGE",
    "XREVRANGE",
    "XPENDING",
    "XINFO GROUPS",
    "XINFO STREAM",
    "HGETALL",
    "INFO",
    "CONFIG GET",
    "SCAN",
)


class ClusterCaller:
    """Sends commands to a Cluster: redis-py finds the node of each."""

    def __init__(self, client: Any) -> None:
        for command in RAW_REPLIES:
            client.response_callbacks.pop(command, None)
            client.result_callbacks.pop(command, None)  # merges what several nodes said
        self.client = client

    async def execute_command(self, *command: str | bytes | int | float) -> Any:
        return await self.client.execute_command(*command)

    async def execute_many(self, commands: Sequence[Command]) -> list[Any]:
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    async def on_node_of(self, key: str, *command: str | bytes | int | float) -> Any:
        """Sends a command without a key to the node that holds a key."""
        await self.client.initialize()
        node = self.client.get_node_from_key(key)
        reply = await self.client.execute_command(*command, target_nodes=node)
        return next(iter(reply.values())) if isinstance(reply, dict) and len(reply) == 1 else reply

    async def aclose(self) -> None:
        await self.client.aclose()


Caller = Wires | ClusterCaller


def parse_info(text: bytes) -> dict[str, str]:
    """Reads an INFO reply."""
    lines = (line.partition(":") for line in text.decode().splitlines() if line and not line.startswith("#"))
    return {key: value for key, _, value in lines}


#: Called before each command is sent and after each reply, with `before` or `after` and the command's name. A no-op in
#: production; the crash-point sweep counts these boundaries and dies at one of them.
boundary: Callable[[str, str], None] = lambda when, what: None  # noqa: E731
