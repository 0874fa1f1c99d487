"""An HTTP node of a graph may say all that a request may say, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sites import Answering, Received, respond, serve

from weft import StepFailed, Weft
from weft.errors import InvalidGraph, InvalidOption

Starting = Callable[..., Awaitable[Any]]


@pytest.fixture(autouse=True)
def loopback_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EGRESS_ALLOW", "localhost")


def by_turns(*answers: Answering) -> Answering:
    """Answers the first request by the first, and all after the last by that."""
    line = list(answers)

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        await (line.pop(0) if len(line) > 1 else line[0])(request, writer)

    return answer


async def test_only_named_statuses_are_tried_again(app: Weft, start_worker: Starting) -> None:
    await start_worker()
    async with serve(by_turns(respond(418), respond(418), respond(503))) as site:
        graph = app.graph("named")
        graph.http("ask", f"http://localhost:{site.port}/", retries=5, retry_delay="10ms", retry_on=[418])
        run = await graph.start()
        with pytest.raises(StepFailed, match="status 503"):
            await run.result(10)
        assert len(site.received) == 3
        assert (await run.graph())["nodes"]["ask"]["attempt"] == 3


async def test_redirects_are_followed_when_asked_and_judged_like_the_first_address(
    app: Weft, start_worker: Starting
) -> None:
    await start_worker()
    async with serve(by_turns(respond(302, Location="/there"), respond(body=b"here"))) as site:
        graph = app.graph("near")
        graph.http("ask", f"http://localhost:{site.port}/", redirects=1, expect="200-204")
        assert (await (await graph.start()).result(10))["body"] == b"here"
    async with serve(respond(302, Location="http://127.0.0.1:1/there")) as site:
        graph = app.graph("far")
        graph.http("ask", f"http://localhost:{site.port}/", redirects=1)
        run = await graph.start()
        with pytest.raises(StepFailed, match="loopback"):
            await run.result(10)
        assert (await run.graph())["nodes"]["ask"]["error"]["code"] == "egress_denied"


async def test_a_request_that_takes_too_long_is_always_told_as_that(app: Weft, start_worker: Starting) -> None:
    async def hang(request: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    await start_worker()
    async with serve(hang) as site:
        graph = app.graph("slow", output="${errors.ask.map(one, one.type)}")
        graph.http("ask", f"http://localhost:{site.port}/", map="input", timeout="200ms", on_error="continue")
        run = await graph.start(list(range(30)))
        assert await run.result(30) == ["HttpTimeout"] * 30


async def test_an_answer_is_as_large_as_the_node_allows(app: Weft, start_worker: Starting) -> None:
    await start_worker()
    async with serve(respond(body=b"x" * 1000)) as site:
        graph = app.graph("small")
        graph.http("ask", f"http://localhost:{site.port}/", max_bytes=999)
        with pytest.raises(StepFailed, match="more than 999 bytes"):
            await (await graph.start()).result(10)


async def test_the_key_and_the_body_are_those_of_the_definition(
    app: Weft, start_worker: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_SECRET_LETTER", "dear you")
    await start_worker()
    async with serve(respond()) as site:
        graph = app.graph("sending")
        url = f"http://localhost:{site.port}/"
        graph.http("own", url, method="POST", body="a", idempotency_key="order-${input.n}")
        graph.http("none", url, after="own", method="POST", body={"secret": "LETTER"}, idempotency_key=False)
        graph.http("bytes", url, after="none", method="POST", body={"base64": "${input.data}"})
        run = await graph.start({"n": 7, "data": b"\x00\xff"})
        await run.result(10)
        own, none, raw = site.received
        assert (own.headers["idempotency-key"], own.body) == ("order-7", b"a")
        assert ("idempotency-key" in none.headers, none.body) == (False, b"dear you")
        assert (raw.headers["idempotency-key"], raw.body) == (f"{run.id}/bytes/0/0", b"\x00\xff")
        assert raw.headers["content-type"] == "application/octet-stream"


async def test_what_is_no_base64_is_told(app: Weft, start_worker: Starting) -> None:
    await start_worker()
    graph = app.graph("wrong")
    graph.http("ask", "http://localhost/", method="POST", body={"base64": "${input.data}"})
    for data in ("a", "ä", 1, None):
        with pytest.raises(StepFailed, match="no text in Base64"):
            await (await graph.start({"data": data})).result(10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retry_on": ["4x"]}, "retry_on takes statuses such as 200, 2xx or 200-204, not '4x'"),
        ({"expect": ["204-200"]}, "expect takes statuses such as 200, 2xx or 200-204, not '204-200'"),
        ({"max_bytes": 2**30}, "max_bytes must be a whole number from 1 to 16,777,216"),
        ({"redirects": 21}, "redirects must be a whole number from 0 to 20"),
        ({"idempotency_key": 5}, "idempotency_key must be a text"),
        ({"method": "POST", "body": {"bytes": "x"}}, "body must be a text, {secret: NAME} or {base64: …}"),
        ({"idempotency_key": "${nope}"}, "there is nothing called nope"),
    ],
)
def test_what_a_request_cannot_say_is_refused_where_it_is_declared(
    app: Weft, options: dict[str, Any], message: str
) -> None:
    graph = app.graph("refused")
    with pytest.raises((InvalidGraph, InvalidOption)) as refused:
        graph.http("ask", "http://localhost/", **options)
        graph.spec  # noqa: B018
    assert message in str(refused.value)
