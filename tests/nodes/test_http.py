"""What an HTTP step may say, what it expects, and what becomes of the answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sites import Received, respond, serve

from weft import Weft, current
from weft.codec import encode_plain
from weft.core.steering import Fatal, Retry
from weft.errors import (
    EgressDenied,
    HttpBadResponse,
    HttpFailed,
    HttpTimeout,
    HttpUnreachable,
    InvalidOption,
    SecretMissing,
)
from weft.nodes.addresses import Policy
from weft.nodes.egress import Egress
from weft.nodes.http import HttpRequest, request, steer


async def test_a_plain_request_is_a_get_and_json_is_parsed(inside: Egress) -> None:
    async with serve(respond(body=b'{"a": [1, 2.5, null]}', content_type="application/json; charset=utf-8")) as site:
        result = await request(
            {"url": f"http://localhost:{site.port}/x?a=1#f", "query": {"b": [2, "ü&"]}}, egress=inside
        )
    assert result["status"] == 200
    assert result["body"] == {"a": [1, 2.5, None]}
    assert result["headers"]["content-type"] == "application/json; charset=utf-8"
    sent = site.received[0]
    assert sent.line == "GET /x?a=1&b=2&b=%C3%BC%26 HTTP/1.1"
    assert sent.headers["accept-encoding"] == "gzip, deflate"
    assert "idempotency-key" not in sent.headers
    assert "content-length" not in sent.headers


@pytest.mark.parametrize(
    ("kind", "content", "body"),
    [
        ("application/json", b"[]", []),
        ("application/problem+json", b'"x"', "x"),
        ("application/json", b"", None),
        ("application/json", b"\xef\xbb\xbf1", 1),
        ("text/plain", "grün".encode(), "grün"),
        ("text/html; charset=iso-8859-1", "grün".encode("latin-1"), "grün"),
        ("text/plain; charset=idna", b"abc", "abc"),
        ("text/plain", b"\xff", "�"),
        ("application/xml", b"<a/>", "<a/>"),
        ("image/png", b"\x89PNG", b"\x89PNG"),
        ("", b"abc", b"abc"),
    ],
)
async def test_the_body_is_what_its_type_says(kind: str, content: bytes, body: Any, inside: Egress) -> None:
    headers = {"content_type": kind} if kind else {}
    async with serve(respond(body=content, **headers)) as site:
        result = await request({"url": f"http://localhost:{site.port}/"}, egress=inside)
    assert result["body"] == body
    assert encode_plain(result)


@pytest.mark.parametrize(
    "content", [b"{", b"NaN", b"[" * 5_000 + b"]" * 5_000, b"[" * 300 + b"]" * 300, b"1" * 40, b"\xff"]
)
async def test_json_that_is_none_or_cannot_be_kept_is_refused(content: bytes, inside: Egress) -> None:
    async with serve(respond(body=content, content_type="application/json")) as site:
        with pytest.raises(HttpBadResponse):
            await request({"url": f"http://localhost:{site.port}/"}, egress=inside)


@pytest.mark.parametrize(
    ("given", "kind", "content"),
    [
        ({"json": {"a": [1, "ü"]}}, "application/json", '{"a":[1,"ü"]}'.encode()),
        ({"json": None}, "application/json", b"null"),
        ({"form": {"a": "1 2", "b": [True, 3]}}, "application/x-www-form-urlencoded", b"a=1+2&b=true&b=3"),
        ({"body": "text"}, "text/plain; charset=utf-8", b"text"),
        ({"body": b"\x00\xff"}, "application/octet-stream", b"\x00\xff"),
        ({"body": "<a/>", "headers": {"Content-Type": "text/xml"}}, "text/xml", b"<a/>"),
        ({}, None, b""),
    ],
)
async def test_a_body_is_json_a_form_or_bytes(given: dict[str, Any], kind: str, content: bytes, inside: Egress) -> None:
    async with serve(respond(204)) as site:
        result = await request({"url": f"http://localhost:{site.port}/", "method": "POST", **given}, egress=inside)
    assert (result["status"], result["body"]) == (204, None)
    sent = site.received[0]
    assert sent.body == content
    assert sent.headers.get("content-type") == kind
    assert sent.headers["content-length"] == str(len(content))


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "get"},
        {"method": "CONNECT"},
        {"method": "GET / HTTP/1.1\r\nX: y\r\n\r\nGET"},
        {"json": {}, "form": {}},
        {"json": None, "body": "x"},
        {"body": {"a": 1}},
        {"json": {"a": float("nan")}},
        {"json": {"a": object()}},
        {"json": "\ud800"},
        {"headers": {"X-A": "a\r\nX-Evil: 1"}},
        {"headers": {"X-A": "a\nb"}},
        {"headers": {"X-A": "a\x00b"}},
        {"headers": {"X-A": "ü"}},
        {"headers": {"X-A": " a"}},
        {"headers": {"X-A": None}},
        {"headers": {"X-A": {"secret": "NAME"}}},  # not marked: data, and no header is an object
        {"headers": {"X-A\r\nX-Evil": "a"}},
        {"headers": {"X A": "a"}},
        {"headers": {"": "a"}},
        {"headers": {"X-A": "1", "x-a": "2"}},
        {"headers": {"Host": "evil.test"}},
        {"headers": {"Content-Length": "1"}},
        {"headers": {"transfer-encoding": "chunked"}},
        {"headers": {"X-A": "a" * 40_000}},
        {"headers": ["X-A"]},
        {"query": {"a": None}},
        {"query": {"a": {"b": 1}}},
        {"query": {"a": float("inf")}},
        {"query": {"a": "x" * 9_000}},
        {"form": {"a": "\ud800"}},
        {"expect": "20x"},
        {"expect": []},
        {"expect": "299-200"},
        {"timeout": 0},
        {"timeout": "soon"},
        {"max_bytes": 0},
        {"max_bytes": True},
        {"max_bytes": 10**9},
        {"redirects": -1},
        {"redirects": True},
        {"idempotency_key": 7},
        {"idempotency_key": "a\r\nb"},
        {"verify": False},
        {"follow": True},
    ],
)
async def test_what_cannot_be_meant_is_refused_and_nothing_is_sent(wrong: dict[str, Any], inside: Egress) -> None:
    async with serve(respond()) as site:
        with pytest.raises(InvalidOption):
            await request({"url": f"http://localhost:{site.port}/", "method": "POST"} | wrong, egress=inside)
        assert site.connections == 0


@pytest.mark.parametrize(
    ("expect", "status", "passes"),
    [
        ("2xx", 204, True),
        ("2xx", 302, False),
        (404, 404, True),
        ([200, "400-404"], 403, True),
        ([200, "400-404"], 405, False),
        (["2xx", "3xx"], 304, True),
    ],
)
async def test_which_statuses_are_a_success(expect: Any, status: int, passes: bool, inside: Egress) -> None:
    async with serve(respond(status)) as site:
        asked = {"url": f"http://localhost:{site.port}/", "expect": expect}
        if passes:
            assert (await request(asked, egress=inside))["status"] == status
        else:
            with pytest.raises(HttpFailed) as failed:
                await request(asked, egress=inside)
            assert failed.value.status == status


async def test_an_unexpected_status_carries_what_a_retry_needs(inside: Egress) -> None:
    async with serve(respond(503, b"busy", retry_after="7")) as site:
        with pytest.raises(HttpFailed, match="answered with status 503; expected was 2xx") as failed:
            await request({"url": f"http://localhost:{site.port}/pay?card=4711"}, egress=inside)
    error = failed.value
    assert (error.status, error.retry_after_ms, error.facts["excerpt"]) == (503, 7_000, "busy")
    assert "4711" not in error.message
    again = steer(error)
    assert isinstance(again, Retry)
    assert again.after_ms == 7_000


@pytest.mark.parametrize(
    ("text", "after_ms"),
    [
        ("0", 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("soon", None),
        ("-5", None),
        ("", None),
        ("99999999999", 3_600_000),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3_600_000),
        ("99999999999999999999999", None),
    ],
)
async def test_retry_after_is_believed_within_reason(text: str, after_ms: int | None, inside: Egress) -> None:
    async with serve(respond(429, retry_after=text)) as site:
        with pytest.raises(HttpFailed) as failed:
            await request({"url": f"http://localhost:{site.port}/"}, egress=inside)
    again = steer(failed.value)
    assert isinstance(again, Retry)
    assert again.after_ms == after_ms


def test_what_repeating_cannot_cure_is_fatal() -> None:
    assert isinstance(steer(HttpFailed("no", status=404)), Fatal)
    assert isinstance(steer(HttpFailed("no", status=503), retry_on=[429]), Fatal)
    assert isinstance(steer(HttpFailed("no", status=404), retry_on=["4xx"]), Retry)
    assert isinstance(steer(EgressDenied("no")), Fatal)
    assert isinstance(steer(SecretMissing("no")), Fatal)
    assert isinstance(steer(HttpBadResponse("no")), Fatal)
    assert isinstance(steer(HttpUnreachable("no")), Retry)
    assert isinstance(steer(HttpTimeout("no")), Retry)


async def test_redirects_are_followed_when_asked_for_and_told_when_not(inside: Egress) -> None:
    async def hop(request: Received, writer: asyncio.StreamWriter) -> None:
        await (
            respond(body=b"there", content_type="text/plain") if " /b " in request.line else respond(301, location="/b")
        )(request, writer)

    async with serve(hop) as site:
        url = f"http://localhost:{site.port}/a"
        with pytest.raises(HttpFailed, match="status 301"):
            await request({"url": url}, egress=inside)
        assert (await request({"url": url, "redirects": 1}, egress=inside))["body"] == "there"


async def test_caps_are_those_of_the_request(inside: Egress) -> None:
    async def silent(request: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.Future()

    async with serve(respond(body=bytes(2_000))) as site:
        with pytest.raises(HttpBadResponse, match="raise max_bytes"):
            await request({"url": f"http://localhost:{site.port}/", "max_bytes": 1_000}, egress=inside)
    async with serve(silent) as site:
        with pytest.raises(HttpTimeout, match=r"within 0\.1s"):
            await request({"url": f"http://localhost:{site.port}/", "timeout": "100ms"}, egress=inside)


async def test_several_cookies_do_not_run_into_each_other(inside: Egress) -> None:
    async def cookies(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1, x\r\nSet-Cookie: b=2\r\nVia: p\r\nVia: q\r\nContent-Length: 0\r\n\r\n"
        )

    async with serve(cookies) as site:
        headers = (await request({"url": f"http://localhost:{site.port}/"}, egress=inside))["headers"]
    assert headers["set-cookie"] == "a=1, x\nb=2"
    assert headers["via"] == "p, q"


async def test_without_an_egress_the_settings_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(respond(body=b"1", content_type="application/json")) as site:
        with pytest.raises(EgressDenied, match="WEFT_EGRESS_ALLOW"):
            await request({"url": f"http://localhost:{site.port}/"})
        assert site.connections == 0
        monkeypatch.setenv("WEFT_EGRESS_ALLOW", f"localhost:{site.port}")
        assert (await request({"url": f"http://localhost:{site.port}/"}))["body"] == 1


async def test_a_step_sends_its_effect_key_unless_it_only_reads(weft_app: Weft, weft_worker: Any) -> None:
    async with serve(respond()) as site:
        url = f"http://localhost:{site.port}/"

        @weft_app.task
        async def call(method: str, more: dict[str, Any]) -> str:
            async with Egress(Policy.read(allow=["localhost"])) as egress:
                await request({"url": url, "method": method} | more, egress=egress)
            return current().effect_key

        keys = []
        for method, more in (
            ("POST", {}),
            ("DELETE", {}),
            ("GET", {}),
            ("POST", {"idempotency_key": "order-7"}),
            ("POST", {"idempotency_key": False}),
            ("POST", {"headers": {"Idempotency-Key": "mine"}}),
        ):
            run = await call.enqueue(method, more)
            await weft_worker.run_until_idle()
            keys.append(await run.result(timeout=10))
        sent = [received.headers.get("idempotency-key") for received in site.received]
    assert sent == [keys[0], keys[1], None, "order-7", None, "mine"]


def test_a_request_prints_without_values_it_does_not_hold() -> None:
    spec = HttpRequest.read({"url": "https://example.com/", "json": {"a": 1}})
    assert json.dumps(spec.json) == '{"a": 1}'
    with pytest.raises(InvalidOption, match="needs a url"):
        HttpRequest.read({})
