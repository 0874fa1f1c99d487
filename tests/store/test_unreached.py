"""URLs that lead to a port which speaks something else: the error names the place, the cause and the remedy."""

from __future__ import annotations

import asyncio
import http.server
import shutil
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from servers import ServerProcess, free_ports
from weft import StoreRefused, Unavailable, Weft


@pytest.fixture
def plain(launch: Callable[..., ServerProcess]) -> str:
    """A server without TLS."""
    (port,) = free_ports(1)
    launch(config={"port": str(port)})
    return f"127.0.0.1:{port}"


@pytest.fixture
def website() -> Iterator[str]:
    """Something that speaks HTTP."""

    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *words: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
async def sealed(tmp_path: Path) -> AsyncIterator[str]:
    """Something that speaks only TLS."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate with")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {cert} -days 2 -subj /CN=localhost"
    subprocess.run(make.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """Something that takes connections and says nothing."""
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: taken.append(writer), "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for writer in taken:
            writer.close()


async def refusal(url: str) -> Unavailable | StoreRefused:
    app = Weft("unreached", redis_url=url)
    try:
        with pytest.raises((Unavailable, StoreRefused)) as caught:
            await app.open()
    finally:
        await app.close()
    return caught.value


@pytest.mark.parametrize("kind", ["rediss", "rediss+cluster"])
async def test_tls_asked_of_a_plain_port(kind: str, plain: str):
    said = str(await refusal(f"{kind}://{plain}"))
    assert (
        f"{plain} did not answer a TLS handshake within 3 s" in said and "begin the URL with redis, not rediss" in said
    )


@pytest.mark.parametrize("kind", ["rediss", "rediss+cluster"])
async def test_tls_asked_of_another_servers_port(kind: str, website: str):
    said = str(await refusal(f"{kind}://{website}"))
    assert f"{website} does not speak TLS" in said and "begin the URL with redis, not rediss" in said


async def test_plain_words_said_to_a_tls_port(sealed: str):
    said = str(await refusal(f"redis://{sealed}"))
    assert said.startswith(f"the store cannot be reached: {sealed} ") and "begin the URL with rediss, not redis" in said


async def test_a_certificate_nobody_vouches_for_is_still_what_is_said(sealed: str):
    assert "certificate" in str(await refusal(f"rediss://{sealed}")).lower()


@pytest.mark.parametrize("kind", ["redis", "redis+cluster"])
async def test_another_kind_of_server(kind: str, website: str):
    said = str(await refusal(f"{kind}://{website}"))
    assert (
        f"{website} is no Redis or Valkey server" in said and "see whether host and port are those of the store" in said
    )


async def test_another_kind_of_server_in_place_of_a_sentinel(website: str):
    assert f"not all of {website} are sentinels" in str(await refusal(f"redis+sentinel://{website}/main"))


async def test_a_port_that_never_answers_is_named(silent: str):
    assert f"{silent} did not answer within 5 s" in str(await refusal(f"redis://{silent}"))
