"""A secret is read when the request is sent, and stands in nothing that comes back: results, errors, logs."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from pathlib import Path
from typing import Any

import pytest
from sites import Received, respond, serve

from weft.errors import (
    DefinitionError,
    EgressDenied,
    HttpBadResponse,
    HttpFailed,
    InvalidOption,
    SecretMissing,
    WeftError,
)
from weft.nodes.egress import Egress
from weft.nodes.http import HttpRequest, request, steer
from weft.nodes.secrets import Redactor, Secret, Secrets, mark

#: Needs escaping in URLs, in JSON and in Base64 alike.
VALUE = 'k3y/+"ü&\\ =end'
PLAIN = "s3cr3t-t0ken"


@pytest.fixture
def secrets() -> Secrets:
    return Secrets(environ={"WEFT_SECRET_TOKEN": PLAIN, "WEFT_SECRET_ODD": VALUE})


def test_handles_are_found_in_definitions_only() -> None:
    spec = mark(
        {"headers": {"A": {"secret": "TOKEN", "prefix": "Bearer "}}, "json": [{"x": {"secret": "ODD"}}], "n": 1}
    )
    assert spec == {"headers": {"A": Secret("TOKEN", "Bearer ")}, "json": [{"x": Secret("ODD")}], "n": 1}
    assert mark({"secret": "x", "url": "y"}) == {"secret": "x", "url": "y"}, "an object with other fields is data"
    for wrong in (
        {"secret": "lower"},
        {"secret": "../etc/passwd"},
        {"secret": ""},
        {"secret": 7},
        {"secret": "A", "prefix": 1},
    ):
        with pytest.raises(DefinitionError) as refused:
            mark({"json": wrong})
        assert "passwd" not in str(refused.value)


async def test_secrets_go_out_in_headers_query_and_bodies(secrets: Secrets, inside: Egress) -> None:
    async with serve(respond()) as site:
        asked = {"url": f"http://localhost:{site.port}/", "method": "POST"}
        asked["headers"] = {"Authorization": {"secret": "TOKEN", "prefix": "Bearer "}}
        asked["query"] = {"k": {"secret": "TOKEN"}}
        for body in (
            {"json": {"a": [{"secret": "ODD"}]}},
            {"form": {"a": {"secret": "TOKEN"}}},
            {"body": {"secret": "ODD"}},
        ):
            await request(mark(asked | body), egress=inside, secrets=secrets)
    assert all(sent.headers["authorization"] == f"Bearer {PLAIN}" for sent in site.received)
    assert site.received[0].line == f"POST /?k={PLAIN} HTTP/1.1"
    assert json.loads(site.received[0].body) == {"a": [VALUE]}
    assert site.received[1].body == f"a={PLAIN}".encode()
    assert site.received[2].body == VALUE.encode()


async def test_a_name_that_comes_in_with_data_stays_data(secrets: Secrets, inside: Egress) -> None:
    async with serve(respond()) as site:
        spec = mark({"url": f"http://localhost:{site.port}/", "method": "POST"}) | {"json": {"secret": "TOKEN"}}
        await request(spec, egress=inside, secrets=secrets)
    assert site.received[0].body == b'{"secret":"TOKEN"}'


async def echo(request: Received, writer: asyncio.StreamWriter) -> None:
    """Sends back all it was sent, in several forms."""
    body = json.dumps(
        {"line": request.line, "headers": request.headers, "body": request.body.decode(), PLAIN: 1}
    ).encode()
    await respond(200, body, content_type="application/json", x_echo=request.headers["x-key"])(request, writer)


async def test_a_server_that_repeats_a_secret_does_not_get_it_into_the_result(
    secrets: Secrets, inside: Egress, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serve(echo) as site:
        spec = mark(
            {
                "url": f"http://localhost:{site.port}/",
                "method": "POST",
                "headers": {"X-Key": {"secret": "TOKEN"}},
                "query": {"odd": {"secret": "ODD"}},
                "json": {"odd": {"secret": "ODD"}},
            }
        )
        result = await request(spec, egress=inside, secrets=secrets)
    assert result["headers"]["x-echo"] == "[secret TOKEN]"
    assert result["body"]["line"] == "POST /?odd=[secret ODD] HTTP/1.1"
    assert result["body"]["body"] == '{"odd":"[secret ODD]"}'
    assert result["body"]["[secret TOKEN]"] == 1
    assert_hidden(repr(result), caplog.text, repr(spec))


def assert_hidden(*texts: str) -> None:
    for text in texts:
        for part in (PLAIN[:5], VALUE, "k3y", "=end", "3Dend"):
            assert part not in text


async def failing(answer: Any, spec: dict[str, Any], secrets: Secrets, egress: Egress) -> WeftError:
    async with serve(answer) as site:
        full = {
            "url": f"http://localhost:{site.port}/path",
            "method": "POST",
            "headers": {"X-Key": {"secret": "TOKEN"}},
            "query": {"q": {"secret": "TOKEN"}},
            "json": {"odd": {"secret": "ODD"}},
        }
        with pytest.raises(WeftError) as failed:
            await request(mark(full | spec), egress=egress, secrets=secrets)
    return failed.value


async def hang(request: Received, writer: asyncio.StreamWriter) -> None:
    await asyncio.Future()


async def garbage(request: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(f"HTTP/1.1 {request.headers['x-key']} nonsense\r\n\r\n".encode())


async def echo_as_status(request: Received, writer: asyncio.StreamWriter) -> None:
    body = ("x" * 495 + request.headers["x-key"] + request.body.decode()).encode()  # across the end of the excerpt
    await respond(500, body, location=f"http://localhost/{request.headers['x-key']}")(request, writer)


async def echo_as_redirect(request: Received, writer: asyncio.StreamWriter) -> None:
    await respond(302, location=f"http://10.0.0.1/{'y' * 190}{request.headers['x-key']}?q={PLAIN}")(request, writer)


async def echo_as_host(request: Received, writer: asyncio.StreamWriter) -> None:
    await respond(302, location=f"http://{request.headers['x-key']}.1/")(request, writer)


async def echo_as_bad_json(request: Received, writer: asyncio.StreamWriter) -> None:
    await respond(200, request.headers["x-key"].encode(), content_type="application/json")(request, writer)


async def echo_as_coding(request: Received, writer: asyncio.StreamWriter) -> None:
    await respond(200, b"x", content_encoding=request.headers["x-key"])(request, writer)


@pytest.mark.parametrize(
    ("answer", "spec"),
    [
        (echo_as_status, {}),
        (echo_as_redirect, {"redirects": 2}),
        (echo_as_host, {"redirects": 2}),
        (echo_as_bad_json, {}),
        (echo_as_coding, {}),
        (garbage, {}),
        (hang, {"timeout": "100ms"}),
        (respond(body=bytes(2_000)), {"max_bytes": 10}),
        (respond(), {"headers": {"X-Key": {"secret": "ODD"}}}),  # cannot stand in a header
        (respond(), {"url": "http://10.0.0.1/"}),
        (respond(), {"url": "http://127.0.0.1:1/"}),
        (respond(), {"headers": {"X-Key": {"secret": "TOKEN"}, "X-Gone": {"secret": "GONE"}}}),
    ],
)
async def test_no_error_and_no_log_line_tells_a_secret(
    answer: Any, spec: dict[str, Any], secrets: Secrets, inside: Egress, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    error = await failing(answer, spec, secrets, inside)
    assert error.__cause__ is None
    assert error.__context__ is None
    told = "".join(traceback.format_exception(error))
    records = "".join(str(vars(record)) for record in caplog.records)
    assert_hidden(told, repr(error.facts), caplog.text, records, str(steer(error)))


async def test_the_errors_are_those_of_the_cause(secrets: Secrets, inside: Egress) -> None:
    assert isinstance(await failing(echo_as_status, {}, secrets, inside), HttpFailed)
    assert isinstance(await failing(echo_as_redirect, {"redirects": 1}, secrets, inside), EgressDenied)
    assert isinstance(await failing(echo_as_bad_json, {}, secrets, inside), HttpBadResponse)
    assert isinstance(await failing(respond(), {"headers": {"X": {"secret": "ODD"}}}, secrets, inside), InvalidOption)
    missing = await failing(respond(), {"headers": {"X": {"secret": "GONE"}}}, secrets, inside)
    assert isinstance(missing, SecretMissing)
    assert "WEFT_SECRET_GONE" in missing.message


async def test_the_logs_of_other_users_of_the_library_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpcore2.http11").debug("theirs")
    assert "theirs" in caplog.text


def test_files_are_read_anew_and_the_environment_wins(tmp_path: Path) -> None:
    file = tmp_path / "TOKEN"
    file.write_text("from-file\n")
    secrets = Secrets(environ={}, directory=tmp_path)
    assert secrets.read("TOKEN") == "from-file"
    file.write_text("rotated\r\n")
    assert secrets.read("TOKEN") == "rotated"
    assert Secrets(environ={"WEFT_SECRETS_DIR": str(tmp_path)}).read("TOKEN") == "rotated"
    assert Secrets(environ={"WEFT_SECRET_TOKEN": "from-env"}, directory=tmp_path).read("TOKEN") == "from-env"


@pytest.mark.parametrize("content", [b"", b"abc\n", b"\xff\xfe\xfd\xfc\xfb", b"x" * 20_000])
def test_a_value_that_cannot_be_used_is_refused_without_being_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "TOKEN").write_bytes(content)
    with pytest.raises(SecretMissing) as refused:
        Secrets(environ={}, directory=tmp_path).read("TOKEN")
    assert "TOKEN" in refused.value.message
    assert refused.value.__cause__ is None
    assert len(refused.value.message) < 300


def test_a_request_shows_the_handle_only() -> None:
    spec = HttpRequest.read(mark({"url": "https://example.com/", "headers": {"A": {"secret": "TOKEN"}}}))
    assert "Secret(name='TOKEN'" in repr(spec)
    assert str(Secret("TOKEN")) == "[secret TOKEN]"


def test_one_secret_that_begins_like_another_is_not_left_half() -> None:
    redactor = Redactor(Secrets(environ={"WEFT_SECRET_A": "abcd", "WEFT_SECRET_B": "abcdefgh"}))
    redactor.reveal(Secret("A"))
    redactor.reveal(Secret("B"))
    assert redactor.text("abcdefgh abcd") == "[secret B] [secret A]"
    assert redactor.clean({"abcd": [b"\xffabcdefgh", 7]}) == {"[secret A]": [b"\xff[secret B]", 7]}
