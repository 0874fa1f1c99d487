"""Connections go to the judged address and nowhere else; an exchange ends at its caps."""

from __future__ import annotations

import asyncio
import gzip
import random
import ssl
import zlib
from pathlib import Path

import httpcore2
import pytest
from sites import Received, names, respond, serve

from weft.errors import EgressDenied, HttpBadResponse, HttpTimeout, HttpUnreachable
from weft.nodes.addresses import Policy
from weft.nodes.egress import Caps, Egress, Outgoing, show

LOCAL = Policy.read(allow=["127.0.0.1"])


def get(url: str, **headers: str) -> Outgoing:
    return Outgoing("GET", url, tuple(headers.items()))


async def test_the_name_stays_in_the_host_header_and_the_connection_goes_to_the_judged_address() -> None:
    async with serve(respond(body=b"hi")) as site, Egress(LOCAL, resolver=names(good_test="127.0.0.1")) as egress:
        answer = await egress.exchange(get(f"http://good.test.:{site.port}/a?b=c#d"))
        assert (answer.status, answer.content) == (200, b"hi")
        assert site.received[0].line == "GET /a?b=c HTTP/1.1"
        assert site.received[0].headers["host"] == f"good.test:{site.port}"


async def test_a_name_that_is_rebound_between_two_looks_gets_only_one() -> None:
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    async with serve(respond(body=b"hi", connection="close")) as site, Egress(LOCAL, resolver=rebinding) as egress:
        assert (await egress.exchange(get(f"http://rebind.test:{site.port}/"))).content == b"hi"
        assert asked == ["rebind.test"], "the connection must use the answer that was judged"
        # The next connection asks and judges anew.
        with pytest.raises(EgressDenied, match="metadata"):
            await egress.exchange(get(f"http://rebind.test:{site.port}/"))
        assert site.connections == 1


@pytest.mark.parametrize(
    "found", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "0.0.0.0", "fe80::1%1", "nonsense"]
)
async def test_a_name_that_leads_inside_is_refused_before_a_connection(found: str) -> None:
    async with serve(respond()) as site, Egress(Policy(), resolver=names(evil_test=found)) as egress:
        with pytest.raises(EgressDenied):
            await egress.exchange(get(f"http://evil.test:{site.port}/"))
        assert site.connections == 0


async def test_a_mixed_answer_is_refused_even_when_its_first_address_is_fine() -> None:
    resolver = names(mixed_test=["127.0.0.1", "10.0.0.1"])
    async with serve(respond()) as site, Egress(LOCAL, resolver=resolver) as egress:
        with pytest.raises(EgressDenied, match=r"10\.0\.0\.1"):
            await egress.exchange(get(f"http://mixed.test:{site.port}/"))
        assert site.connections == 0


async def test_the_next_address_is_tried_when_one_refuses_the_connection() -> None:
    policy = Policy.read(allow=["127.0.0.0/8"])
    async with (
        serve(respond(body=b"hi")) as site,
        Egress(policy, resolver=names(two_test=["127.9.9.9", "127.0.0.1"])) as egress,
    ):
        assert (await egress.exchange(get(f"http://two.test:{site.port}/"))).content == b"hi"


async def test_a_connection_that_ends_elsewhere_than_judged_is_closed_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = httpcore2.AnyIOBackend.connect_tcp

    async def hijacked(self: httpcore2.AnyIOBackend, host: str, *rest: object) -> object:
        return await connect(self, "127.0.0.1", *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", hijacked)
    async with serve(respond()) as site, Egress(Policy.read(allow=["127.0.0.0/8"])) as egress:
        with pytest.raises(EgressDenied, match=r"judged for 127\.0\.0\.9 but leads to 127\.0\.0\.1"):
            await egress.exchange(get(f"http://127.0.0.9:{site.port}/"))
        assert site.received == []


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(respond(body=b"proxy")) as proxy, serve(respond(body=b"site")) as site:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv(name.lower(), f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with Egress(LOCAL) as egress:
            assert (await egress.exchange(get(f"http://127.0.0.1:{site.port}/"))).content == b"site"
        assert proxy.connections == 0


async def test_a_server_that_is_not_there_or_breaks_off_is_unreachable() -> None:
    async def broken(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    async with serve(broken) as site, Egress(LOCAL) as egress:
        with pytest.raises(HttpUnreachable, match="without sending complete message body"):
            await egress.exchange(get(f"http://127.0.0.1:{site.port}/"))
    async with Egress(LOCAL) as egress:
        with pytest.raises(HttpUnreachable, match=r"no connection to 127\.0\.0\.1"):
            await egress.exchange(get(f"http://127.0.0.1:{site.port}/"))

    async def unknown(host: str, port: int) -> list[str]:
        raise OSError("Name or service not known")

    async with Egress(LOCAL, resolver=unknown) as egress:
        with pytest.raises(HttpUnreachable, match=r"the name nowhere\.test cannot be resolved"):
            await egress.exchange(get("http://nowhere.test/"))


# --- redirects ------------------------------------------------------------------------------------


async def test_redirects_are_not_followed_unless_asked_for() -> None:
    async with serve(respond(302, location="/b")) as site, Egress(LOCAL) as egress:
        answer = await egress.exchange(get(f"http://127.0.0.1:{site.port}/a"))
        assert answer.status == 302
        assert len(site.received) == 1


async def test_each_hop_is_judged() -> None:
    for place in (
        "http://10.0.0.1/",
        "http://evil.test/",
        "//169.254.169.254/latest",
        "http://2130706433/",
        "file:///etc",
    ):
        resolver = names(evil_test="192.168.0.1")
        async with serve(respond(302, location=place)) as site, Egress(LOCAL, resolver=resolver) as egress:
            with pytest.raises(EgressDenied):
                await egress.exchange(get(f"http://127.0.0.1:{site.port}/"), Caps(max_redirects=3))


async def test_a_redirect_within_an_origin_keeps_headers_and_to_another_drops_them() -> None:
    async with serve(respond(body=b"end")) as other:

        async def hops(request: Received, writer: asyncio.StreamWriter) -> None:
            place = "/second" if request.line.startswith("GET /first") else f"http://127.0.0.1:{other.port}/third"
            await respond(302, location=place)(request, writer)

        async with serve(hops) as site, Egress(LOCAL) as egress:
            sent = get(
                f"http://127.0.0.1:{site.port}/first", Authorization="Bearer x", Cookie="a=b", X_Key="k", Accept="a/b"
            )
            answer = await egress.exchange(sent, Caps(max_redirects=2))
        assert answer.content == b"end"
        assert answer.url == f"http://127.0.0.1:{other.port}/third"
        assert site.received[1].headers["authorization"] == "Bearer x"
        assert other.received[0].headers == {"host": f"127.0.0.1:{other.port}", "accept": "a/b"}


async def test_a_body_is_sent_again_within_its_origin_only() -> None:
    async with serve(respond()) as other, serve(respond(307, location=f"http://127.0.0.1:{other.port}/")) as site:
        async with Egress(LOCAL) as egress:
            with pytest.raises(EgressDenied, match="another origin"):
                await egress.exchange(
                    Outgoing("POST", f"http://127.0.0.1:{site.port}/", (), b"data"), Caps(max_redirects=1)
                )
        assert other.received == []

    async def see_other(request: Received, writer: asyncio.StreamWriter) -> None:
        await (respond(303, location="/done") if request.line.startswith("POST") else respond(body=b"ok"))(
            request, writer
        )

    async with serve(see_other) as site, Egress(LOCAL) as egress:
        sent = Outgoing("POST", f"http://127.0.0.1:{site.port}/", (("Content-Type", "text/plain"),), b"data")
        assert (await egress.exchange(sent, Caps(max_redirects=1))).content == b"ok"
        assert site.received[1].line == "GET /done HTTP/1.1"
        assert "content-type" not in site.received[1].headers


async def test_a_circle_of_redirects_ends_with_the_last_answer() -> None:
    async with serve(respond(302, location="/")) as site, Egress(LOCAL) as egress:
        answer = await egress.exchange(get(f"http://127.0.0.1:{site.port}/"), Caps(max_redirects=4))
        assert answer.status == 302
        assert len(site.received) == 5


#: Of deflate there are two: with the header of zlib, as the standard says, and without.
CODED = {"gzip": gzip.compress, "deflate": zlib.compress, "deflate raw": lambda data: zlib.compress(data, wbits=-15)}
CODINGS = pytest.mark.parametrize("coding", list(CODED))


# --- caps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_bomb_is_put_down_while_it_unfolds(coding: str) -> None:
    zeros = bytes(64 * 1024 * 1024)
    bomb = gzip.compress(zeros, 9) if coding == "gzip" else zlib.compress(zeros, 9)
    assert len(bomb) < 100_000
    async with serve(respond(body=bomb, content_encoding=coding)) as site, Egress(LOCAL) as egress:
        with pytest.raises(HttpBadResponse, match="more than 100000 bytes"):
            await egress.exchange(get(f"http://127.0.0.1:{site.port}/"), Caps(max_bytes=100_000))


async def test_an_endless_body_is_cut_off() -> None:
    async def endless(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + bytes(4096) + b"\r\n")
            await writer.drain()

    async with serve(endless) as site, Egress(LOCAL) as egress:
        with pytest.raises(HttpBadResponse, match="more than 50000 bytes"):
            await egress.exchange(get(f"http://127.0.0.1:{site.port}/"), Caps(max_bytes=50_000))


@pytest.mark.parametrize("codings", ["br", "gzip, gzip", "zstd", "compress"])
async def test_codings_that_were_not_asked_for_are_refused(codings: str) -> None:
    async with serve(respond(body=b"x", content_encoding=codings)) as site, Egress(LOCAL) as egress:
        with pytest.raises(HttpBadResponse, match="content coding"):
            await egress.exchange(get(f"http://127.0.0.1:{site.port}/"))


async def test_a_body_that_is_not_what_its_coding_says_is_refused() -> None:
    async with serve(respond(body=b"not gzip at all", content_encoding="gzip")) as site, Egress(LOCAL) as egress:
        with pytest.raises(HttpBadResponse, match="cannot be decoded"):
            await egress.exchange(get(f"http://127.0.0.1:{site.port}/"))


async def test_a_body_within_the_cap_is_decoded() -> None:
    text = b"weft " * 1_000
    async with serve(respond(body=gzip.compress(text), content_encoding="gzip")) as site, Egress(LOCAL) as egress:
        assert (await egress.exchange(get(f"http://127.0.0.1:{site.port}/"))).content == text


@CODINGS
async def test_a_body_that_was_cut_in_the_middle_of_its_coding_is_refused_and_not_taken_for_all(coding) -> None:
    text = random.Random(7).randbytes(5_000)
    cut = CODED[coding](text)[:-20]
    async with serve(respond(body=cut, content_encoding=coding.split()[0])) as site, Egress(LOCAL) as egress:
        with pytest.raises(HttpBadResponse, match="it ends in the middle"):
            await egress.exchange(get(f"http://127.0.0.1:{site.port}/"))


@CODINGS
async def test_a_body_in_a_coding_may_be_of_several_members_padded_or_empty(coding) -> None:
    text = random.Random(7).randbytes(200_000)
    whole = CODED[coding](text)
    bodies = [(whole, text), (b"", b""), (CODED[coding](b""), b""), (whole + bytes(9), text)]
    if coding == "gzip":
        bodies.append((whole + CODED[coding](b"more"), text + b"more"))
    for body, decoded in bodies:
        async with serve(respond(body=body, content_encoding=coding.split()[0])) as site, Egress(LOCAL) as egress:
            assert (await egress.exchange(get(f"http://127.0.0.1:{site.port}/"))).content == decoded


async def test_a_server_that_drips_ends_at_the_clock_of_the_whole_exchange() -> None:
    async def drip(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:  # each byte comes well within any timeout per read
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with serve(drip) as site, Egress(LOCAL) as egress:
        with pytest.raises(HttpTimeout, match=r"did not end within 0\.5s"):
            await egress.exchange(get(f"http://127.0.0.1:{site.port}/"), Caps(seconds=0.5))


async def test_a_resolver_that_hangs_ends_at_the_same_clock() -> None:
    async def hanging(host: str, port: int) -> list[str]:
        return await asyncio.Future()

    async with Egress(LOCAL, resolver=hanging) as egress:
        with pytest.raises(HttpTimeout):
            await egress.exchange(get("http://slow.test/"), Caps(seconds=0.05))


async def test_headers_are_capped() -> None:
    async with serve(respond(x_big="a" * 40_000)) as site, Egress(LOCAL) as egress:
        with pytest.raises(HttpBadResponse, match="bytes of headers"):
            await egress.exchange(get(f"http://127.0.0.1:{site.port}/"))
    async with serve(respond(x_huge="a" * 900_000)) as site, Egress(LOCAL) as egress:
        with pytest.raises(HttpUnreachable):
            await egress.exchange(get(f"http://127.0.0.1:{site.port}/"))


async def test_a_connection_is_used_again() -> None:
    async with serve(respond(body=b"hi")) as site, Egress(LOCAL) as egress:
        for _ in range(3):
            await egress.exchange(get(f"http://127.0.0.1:{site.port}/"))
        assert (len(site.received), site.connections) == (3, 1)


# --- TLS ------------------------------------------------------------------------------------------


async def test_tls_is_verified_against_the_name_not_the_address(certificate: tuple[Path, Path]) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*certificate)
    asked: list[str | None] = []
    server.sni_callback = lambda socket, name, context: asked.append(name)
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    resolver = names(secure_test="127.0.0.1", other_test="127.0.0.1")
    async with serve(respond(body=b"sealed"), tls=server) as site:
        async with Egress(LOCAL, resolver=resolver, ssl_context=trusting) as egress:
            assert (await egress.exchange(get(f"https://secure.test:{site.port}/"))).content == b"sealed"
            assert asked == ["secure.test"]
            with pytest.raises(HttpUnreachable, match="certificate verify failed"):
                await egress.exchange(get(f"https://other.test:{site.port}/"))
        async with Egress(LOCAL, resolver=resolver) as egress:  # as in production: nobody vouches for this certificate
            with pytest.raises(HttpUnreachable, match="certificate verify failed"):
                await egress.exchange(get(f"https://secure.test:{site.port}/"))
        assert len(site.received) == 1


async def test_a_redirect_from_tls_to_plain_text_is_refused(certificate: tuple[Path, Path]) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*certificate)
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    async with (
        serve(respond()) as plain,
        serve(respond(302, location=f"http://127.0.0.1:{plain.port}/"), tls=server) as site,
    ):
        async with Egress(LOCAL, resolver=names(secure_test="127.0.0.1"), ssl_context=trusting) as egress:
            with pytest.raises(EgressDenied, match="from TLS to plain text"):
                await egress.exchange(get(f"https://secure.test:{site.port}/"), Caps(max_redirects=1))
        assert plain.received == []


def test_a_url_is_shown_without_what_may_be_secret() -> None:
    assert show("https://user:pass@host.test:8443/path?token=x#y") == "https://host.test:8443/path?…"
    assert show("javascript:alert('x')") == "'javascript:…'"
    assert show("/there?token=x") == "'/there?…'" and show("/there") == "'/there'"
    assert show("//user:pass@host.test/path") == "'//…'" and "pass" not in show("user@pass")
    assert "\n" not in show("http://host.test/\r\nX: y")
