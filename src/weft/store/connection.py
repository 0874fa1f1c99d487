"""Makes connections to Redis or Valkey: standalone, unix socket, TLS, Sentinel and Cluster, by URL.

redis-py's defaults are not ours: it repeats commands by itself, which applied one INCR twice in a measurement.
Every client made here has retries off; whoever calls decides what may be repeated. Blocking readers get
clients of their own, whose socket timeout lies above their block time.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
import redis.asyncio as aredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisClusterException, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel

from weft.errors import SettingsError, StoreRefused, WeftError
from weft.store.unreached import reason
from weft.store.wire import Command, Ear, NotConnected, Wires

#: Seconds a command may take before its outcome is unknown.
COMMAND_TIMEOUT = 5.0
#: Seconds a connection may take to be made.
CONNECT_TIMEOUT = 3.0
#: Connections one process may hold to a Cluster node: each partition's blocking readers have their own.
MAX_CONNECTIONS = 1024


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text.lower()

    return read


#: What the query of a store URL may say, and how its text is read. Timeouts, retries and the protocol are ours to choose.
OPTIONS: dict[str, Callable[[str], Any]] = {
    "db": int,
    "username": str,
    "password": str,
    "client_name": str,
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_cert_reqs": _one_of("none", "optional", "required"),
    "ssl_check_hostname": lambda text: _one_of("1", "true", "yes", "0", "false", "no")(text) in ("1", "true", "yes"),
    "ssl_ciphers": str,
}
#: Those of them that name files.
FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
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
        if not isinstance(url, str):
            raise SettingsError(f"a store URL is a text, not a {type(url).__name__}: redis://host:6379/0")
        scheme, _, rest = url.partition("://")
        if scheme not in SCHEMES or not rest:
            accepted = ", ".join(f"{s}://" for s in SCHEMES)
            raise _refusal(url, f"it must begin with one of {accepted} and name a place")
        where, _, query = rest.partition("?")
        options = _options(query, url)
        if "+" not in scheme:
            _check_plain(scheme, where, url)
            return cls(url)
        auth, _, place = where.rpartition("@")
        hosts, _, path = place.partition("/")
        pieces = [piece for piece in path.split("/") if piece]
        address = cls(url, scheme.partition("+")[2], [_host_and_port(host, url) for host in hosts.split(",")])
        user, _, password = auth.partition(":")
        if scheme.startswith("rediss"):
            options["ssl"] = True
        if user:
            options["username"] = unquote(user)
        if password:
            options["password"] = unquote(password)
        if address.kind == "sentinel":
            if not pieces:
                raise _refusal(url, "a Sentinel URL names the service: redis+sentinel://host:26379/mymaster")
            address.service, *pieces = pieces
        elif pieces not in ([], ["0"]) or options.pop("db", 0):
            raise _refusal(url, "a Cluster has only database 0")
        if len(pieces) > 1 or (pieces and not pieces[0].isdigit()):
            raise _refusal(url, f"the database is a number, not {pieces[-1]!r}")
        if pieces and address.kind == "sentinel":
            options["db"] = int(pieces[0])
        address.options = options
        return address


def _check_files(url: str) -> None:
    """Refuses a URL with files that cannot be read: the error of a connection would not say which."""
    for name, text in parse_qsl(url.partition("?")[2]):
        if name in FILES and not os.access(text, os.R_OK):
            raise _refusal(url, f"{name} names {text!r}, which is no file that can be read here")


def _options(query: str, url: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            raise _refusal(url, f"there is no option {name!r}; known are {', '.join(OPTIONS)}")
        try:
            options[name] = OPTIONS[name](text)
        except ValueError as error:
            raise _refusal(url, f"{name} is {error if name != 'db' else 'a number'}") from None
    return options


def _check_plain(scheme: str, where: str, url: str) -> None:
    """Refuses a URL of one server that redis-py could not take apart, or would take for another place."""
    if scheme == "unix":
        before, slash, _ = where.partition("/")
        if not slash or (before and not before.endswith("@")):
            raise _refusal(url, "a socket is named by its whole path, with three slashes: unix:///run/redis.sock")
        return
    hosts, _, path = where.rpartition("@")[2].partition("/")
    pieces = [piece for piece in path.split("/") if piece]
    _host(hosts if hosts.endswith("]") or ":" not in hosts else hosts.rpartition(":")[0], hosts, url)
    if len(pieces) > 1 or (pieces and not pieces[0].isdigit()):
        raise _refusal(url, f"the database is a number, not {path!r}")
    try:
        urlsplit(url).port  # noqa: B018 - reading it is what fails
    except ValueError:  # not passed on: it repeats a part of the password
        why = (
            "write / # ? [ ] @ and % in user and password as %2F %23 %3F %5B %5D %40 and %25, an IPv6 host in brackets"
        )
        raise _refusal(url, why) from None


def _host(host: str, text: str, url: str) -> None:
    """Refuses a host without a name, and a port that is none."""
    if not host.strip("[]"):
        raise _refusal(url, "it names no host")
    port = text[len(host) + 1 :]
    if text != host and (not port.isdigit() or not 0 < int(port) < 65536):
        raise _refusal(url, f"{port!r} is no port")


def _host_and_port(text: str, url: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon:
        raise _refusal(url, "each host needs a port, as in host:6379")
    _host(host, text, url)
    return host.strip("[]"), int(port)


def _refusal(url: str, why: str) -> SettingsError:
    return SettingsError(f"store URL {mask(url)!r} cannot be used: {why}", url=mask(url))


def mask(url: str) -> str:
    """Returns the URL with its passwords hidden, fit for logs and `weft doctor`."""
    url = re.sub(r"(?<=[?&])([a-z_]*password)=[^&]*", r"\1=***", url)
    head, at, tail = url.rpartition("@")
    if not at:
        return url
    scheme, _, auth = head.partition("://")
    user, colon, _ = auth.partition(":")
    return f"{scheme}://{user}{colon}***@{tail}" if colon else url


@cache
def _driver() -> DriverInfo:
    """Returns what connections tell the server about redis-py, which would read its own metadata for each of them."""
    return DriverInfo()


class Server:
    """One store: knows how to make each kind of client for it.

    `revive` blocks and starts the server again if it has died; it is called when a connection cannot be made.
    """

    def __init__(self, url: str, *, revive: Callable[[], object] | None = None) -> None:
        self.address = Address.parse(url)
        _check_files(url)
        self._revive = revive
        self._reviving: asyncio.Future[object] | None = None
        #: Rises with every new connection, so that whoever cares can verify the server behind it.
        self.generation = 0
        self._clusters: dict[float | None, Any] = {}
        self._sentinel: Any = None

    @property
    def clustered(self) -> bool:
        return self.address.kind == "cluster"

    def caller(self, *, timeout: float = COMMAND_TIMEOUT) -> Caller:
        """Returns what commands are sent through; `timeout` lies above the block time for blocking readers."""
        if self.clustered:
            return ClusterCaller(self._cluster(timeout), self.address)
        pool = self._client(None).connection_pool
        return Wires(pool.make_connection, timeout=timeout, revive=self._bring_back if self._revive else None)

    async def ear(self, channel: str, on_message: Callable[[bytes], None]) -> Ear:
        """Returns a connection that listens on a channel, which the server has confirmed."""
        if self.clustered:
            client = self._cluster(COMMAND_TIMEOUT)
            with _cluster_errors(self.address):
                await client.initialize()
                node = client.get_node_from_key(channel)
            connection = node.connection_class(**{**node.connection_kwargs, "socket_timeout": None})
        else:
            pool = self._client(
                None
            ).connection_pool  # Sentinel's connections know it only weakly: kept until connected
            connection = pool.make_connection()
        ear = Ear(connection, on_message)
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT):
                await ear.connect()
                await ear.subscribe(channel)
        except BaseException:
            await ear.close(nowait=True)
            raise
        return ear

    async def _bring_back(self) -> None:
        """Sees to a server that cannot be reached; all who find it so at the same time wait for one attempt."""
        assert self._revive is not None
        if self._reviving is None or self._reviving.done():
            self._reviving = asyncio.ensure_future(asyncio.to_thread(self._revive))
        try:
            await asyncio.shield(self._reviving)
        except WeftError as error:
            raise NotConnected(str(error)) from error

    async def aclose(self) -> None:
        """Closes what its callers share."""
        shared, self._clusters = list(self._clusters.values()), {}
        if self._sentinel is not None:
            shared.extend(self._sentinel.sentinels)
        for client in shared:
            await client.aclose()

    def _cluster(self, timeout: float) -> Any:
        """Returns the one Cluster client of that timeout: each asks for all slots and commands when it is made."""
        if timeout not in self._clusters:
            self._clusters[timeout] = self._new_cluster(timeout)
        return self._clusters[timeout]

    def _new_cluster(self, timeout: float | None) -> Any:
        nodes = [aredis.cluster.ClusterNode(host, port) for host, port in self.address.hosts]
        # No retries: moved slots are followed all the same, after the server refused the command. With one, a claim
        # whose reply was lost would be repeated in silence, and what the first one took would be nobody's.
        client = aredis.RedisCluster(
            startup_nodes=nodes,
            retry=AsyncRetry(NoBackoff(), 0),
            max_connections=MAX_CONNECTIONS,
            socket_timeout=timeout,
            socket_connect_timeout=CONNECT_TIMEOUT,
            protocol=2,
            **self.address.options,
        )
        for kwargs in (client.connection_kwargs, *(node.connection_kwargs for node in client.startup_nodes)):
            kwargs["redis_connect_func"] = self._connected
        return client

    def _client(self, timeout: float | None) -> Any:
        common: dict[str, Any] = {
            "socket_timeout": timeout,
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "protocol": 2,
            "driver_info": _driver(),
            "redis_connect_func": self._connected,
            "retry": AsyncRetry(NoBackoff(), 0),
            **self.address.options,
        }
        if self.address.kind == "sentinel":
            if self._sentinel is None:
                own = self._sentinel_options(AsyncRetry(NoBackoff(), 0))
                self._sentinel = Sentinels(self.address.hosts, sentinel_kwargs=own)
            return self._sentinel.master_for(self.address.service, **common)
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
            return SyncCluster(self.address, common)
        common |= {"retry": Retry(NoBackoff(), 0), "driver_info": _driver()}
        if self.address.kind == "sentinel":
            own = self._sentinel_options(Retry(NoBackoff(), 0))
            return Sentinel(self.address.hosts, sentinel_kwargs=own).master_for(self.address.service, **common)
        return redis.Redis.from_url(self.address.url, **common)

    def _sentinel_options(self, retry: AsyncRetry | Retry) -> dict[str, Any]:
        return {"socket_timeout": CONNECT_TIMEOUT, "socket_connect_timeout": CONNECT_TIMEOUT, "retry": retry}

    async def _connected(self, connection: Any) -> None:
        await connection.on_connect()
        self.generation += 1


class Sentinels(AsyncSentinel):
    """The sentinels of one store, shared by all its callers.

    redis-py moves the one that answered to the front, by a place it noted before it waited: two that ask at the same time
    would lose one sentinel for good. So one asks at a time.
    """

    def __init__(self, hosts: Sequence[tuple[str, int]], **options: Any) -> None:
        super().__init__(hosts, **options)
        self._asking = asyncio.Lock()
        self._named = ", ".join(f"{host}:{port}" for host, port in hosts)

    async def discover_master(self, service_name: str) -> Any:
        async with self._asking:
            try:
                return await super().discover_master(service_name)
            except (ResponseError, InvalidResponse) as error:
                if isinstance(error, ResponseError) and "unknown command" not in str(error):
                    raise
                raise StoreRefused(
                    f"not all of {self._named} are sentinels: redis+sentinel:// names their ports, such as 26379; a server"
                    " itself is named by redis://"
                ) from error
            except MasterNotFoundError as error:
                # redis-py's own words are a thousand characters about its connection pools.
                raise NotConnected(
                    f"no sentinel of {self._named} names a master for {service_name!r} that answers"
                ) from error


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
    "ZRANGE",
    "ZSCAN",
)


class ClusterCaller:
    """Sends commands to a Cluster through a client that others share: redis-py finds the node of each."""

    def __init__(self, client: Any, address: Address) -> None:
        self._address = address
        for command in RAW_REPLIES:
            client.response_callbacks.pop(command, None)
            client.result_callbacks.pop(command, None)  # merges what several nodes said
        self.client = client

    async def execute_command(self, *command: str | bytes | int | float) -> Any:
        with _cluster_errors(self._address):
            return await self.client.execute_command(*command)

    async def execute_many(self, commands: Sequence[Command]) -> list[Any]:
        with _cluster_errors(self._address):
            await self.client.initialize()
            pipeline = self.client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
            return replies

    async def node_of(self, key: str) -> str:
        """Returns the name of the node that holds a key."""
        with _cluster_errors(self._address):
            await self.client.initialize()
            return str(self.client.get_node_from_key(key).name)

    async def on_node_of(self, key: str, *command: str | bytes | int | float) -> Any:
        """Sends a command without a key to the node that holds a key."""
        with _cluster_errors(self._address):
            await self.client.initialize()
            node = self.client.get_node_from_key(key)
            reply = await self.client.execute_command(*command, target_nodes=node)
        return next(iter(reply.values())) if isinstance(reply, dict) and len(reply) == 1 else reply

    async def aclose(self) -> None:
        """Does nothing: the server closes what is shared."""


class SyncCluster:
    """A blocking Cluster client, made at first use: redis-py's own connects as soon as it exists."""

    def __init__(self, address: Address, options: dict[str, Any]) -> None:
        self._address, self._options = address, options
        self._client: Any = None

    def execute_command(self, *command: str | bytes | int | float) -> Any:
        with _cluster_errors(self._address):
            if self._client is None:
                nodes = [redis.cluster.ClusterNode(host, port) for host, port in self._address.hosts]
                self._client = redis.RedisCluster(startup_nodes=nodes, retry=Retry(NoBackoff(), 0), **self._options)
            return self._client.execute_command(*command)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


@contextmanager
def _cluster_errors(address: Address) -> Iterator[None]:
    """Gives redis-py's Cluster errors a place among its others: they say that no node could be asked."""
    try:
        yield
    except RedisClusterException as error:
        text, cause = str(error), error.__cause__
        if cause is not None and "cannot be connected" in text:
            place = ", ".join(f"{host}:{port}" for host, port in address.hosts)
            tls = bool(address.options.get("ssl"))
            why = reason(cause, place=place, tls=tls, seconds=CONNECT_TIMEOUT)
            text = text if why == str(cause) else why
        raise RedisConnectionError(text) from error


Caller = Wires | ClusterCaller


def parse_info(text: bytes) -> dict[str, str]:
    """Reads an INFO reply."""
    lines = (line.partition(":") for line in text.decode().splitlines() if line and not line.startswith("#"))
    return {key: value for key, _, value in lines}


#: Called before each command is sent and after each reply, with `before` or `after` and the command's name. A no-op in
#: production; the crash-point sweep counts these boundaries and dies at one of them.
boundary: Callable[[str, str], None] = lambda when, what: None  # noqa: E731


@contextmanager
def bounded(what: str) -> Iterator[None]:
    """Marks both boundaries of a call that is made once per connection or less, where a `with` costs nothing."""
    boundary("before", what)
    yield
    boundary("after", what)
