"""`weft server`: pages of links to approvals, and health, by HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.worker import LogLevel

if TYPE_CHECKING:
    import socket

    from weft.cli.serve import Heard
    from weft.sdk.app import Weft


def server(
    target: targets.Target = None,
    host: Annotated[str, typer.Option(help="Address to listen on; one that only this machine reaches.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 8000,
    forwarded_allow_ips: Annotated[
        str,
        typer.Option(
            metavar="ADDRESSES",
            help="Proxies that are believed when they say who the client is (X-Forwarded-For), comma-separated.",
        ),
    ] = "",
    log_level: LogLevel = None,
    json: output.Json = False,
) -> None:
    """Serve pages of links to approvals, and health, by HTTP.

    Open on loopback only: whoever else is to reach it comes by a reverse proxy in front of it. WEFT_PUBLIC_URL is then the
    address of that one, for links.

    It runs none of the app's code, needs no worker, and also starts while the store is away. SIGTERM or Ctrl-C stops it.
    With --json its address is printed as one document.
    """
    import asyncio

    from weft import telemetry
    from weft.cli.serve import Heard, loop_factory
    from weft.server.running import check_proxies, listen
    from weft.settings import SETTINGS, read_setting

    environ = {"WEFT_LOG_LEVEL": log_level or SETTINGS["WEFT_LOG_LEVEL"].default}
    telemetry.configure(read_setting("WEFT_LOG_LEVEL", environ=environ))
    for name in ("WEFT_SECRET_KEY", "WEFT_PUBLIC_URL"):
        read_setting(name)  # said now, not to the first who opens a link
    proxies = check_proxies(forwarded_allow_ips)
    heard = Heard()
    with heard:
        app = targets.load_app_or_bare(target)
    if heard.asked:
        return
    listening = listen(host, port)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(app, listening, proxies, heard=heard, json=json))
    finally:
        listening.close()
        app.release()


async def _serve(app: Weft, listening: socket.socket, proxies: list[str], *, heard: Heard, json: bool) -> None:
    import asyncio
    import os

    from weft.cli.serve import stop_signals
    from weft.server.running import serve, url_of
    from weft.telemetry import get_logger

    url, stop, loop = url_of(listening), asyncio.Event(), asyncio.get_running_loop()
    log = get_logger("weft.server")
    for number in stop_signals():
        loop.add_signal_handler(number, stop.set)
    if heard.asked:
        stop.set()

    def ready() -> None:
        log.info("ready", url=url, pid=os.getpid())
        if json:
            output.print_json({"url": url, "pid": os.getpid()})

    await serve(app, listening, proxies=proxies, stop=stop, ready=ready)
    log.info("stopped", pid=os.getpid())
