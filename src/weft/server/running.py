"""Running the server by itself: on a loopback address, by uvicorn, until it is asked to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable, Iterator

import uvicorn

from weft.errors import InvalidOption, Unavailable
from weft.sdk.app import Weft
from weft.server.app import create_app
from weft.server.health import PATIENCE

#: Seconds that requests under way may take when the server is to stop.
GRACE = 10


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to whoever runs the server, who stops it with exit code 0."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens. Raises InvalidOption where others could reach it, Unavailable for a port that is taken."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidOption(f"--host {host!r} is no address of this machine: {error}", option="host") from error
    # One that is open to others on any of its addresses is open.
    if not all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found):
        raise InvalidOption(
            f"--host {host} could be reached by others, and this server asks nobody who they are: keep 127.0.0.1 and put a"
            " reverse proxy with TLS in front of it. It serves pages of links to approvals, and health, nothing else",
            option="host",
        )
    family, *_, address = found[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = f"port {port} of {host} is taken by another program: stop that, or choose another one with --port"
        else:
            why = f"cannot listen on {host} port {port}: {error.strerror}"
        raise Unavailable(why, host=host, port=port) from error


def url_of(listening: socket.socket) -> str:
    """Returns where a socket is reached."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_proxies(text: str) -> list[str]:
    """Returns the addresses and networks of proxies that are believed; raises InvalidOption for what is none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        try:
            ipaddress.ip_network(name, strict=False)
        except ValueError as error:
            raise InvalidOption(
                f"--forwarded-allow-ips takes addresses and networks of proxies, such as 127.0.0.1,10.0.0.0/8; not {name!r}",
                option="forwarded_allow_ips",
            ) from error
    return names


async def serve(
    app: Weft, listening: socket.socket, *, proxies: list[str], stop: asyncio.Event, ready: Callable[[], None]
) -> None:
    """Serves until `stop` is set; requests under way may finish then. `ready` is called when it answers."""
    config = uvicorn.Config(
        create_app(app),
        lifespan="on",
        log_config=None,
        log_level="warning",
        # Its lines would have the links, and whoever has a link can decide.
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_graceful_shutdown=GRACE,
    )
    # A store that is away may come; on one that loses work nobody is to be served.
    with contextlib.suppress(Unavailable):
        await app.engine().reach(PATIENCE)
    server = _Server(config, ready)

    async def obey() -> None:
        await stop.wait()
        server.should_exit = True

    obeying = asyncio.ensure_future(obey())
    try:
        await server.serve(sockets=[listening])
    finally:
        obeying.cancel()
