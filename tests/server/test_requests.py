"""What is refused before it is looked at: other sites, large bodies, odd ones; and from where a vote is said to come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx2
import pytest
from browsing import JSON, PAGE, Ask, PageOf, fields

from weft import Weft


async def test_a_page_of_another_site_cannot_decide(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf
) -> None:
    one = await ask()
    path = await page_of(one)
    for headers in (
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "origin": "null"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ):
        by_form = await client.post(path, data={"comment": "x", "confirm": "guess"}, headers=headers)
        by_json = await client.post(path, json={}, headers={**JSON, **headers})
        assert (by_form.status_code, by_json.status_code) == (403, 403), headers
        assert "page of another site" in by_form.text and by_json.json()["code"] == "not_allowed"
    assert (await app.approvals.get(one.id)).votes == []


async def test_our_own_page_can_whatever_a_browser_says_of_it(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_PUBLIC_URL", "https://weft.example/")
    own = str(client.base_url).rstrip("/")
    people = ["anna", "ben", "carl", "dora", "emil", "fred"]
    one = await ask(approvers=people, quorum=6)
    for who, headers in zip(
        people,
        (
            {"sec-fetch-site": "same-origin", "origin": "null"},
            {"sec-fetch-site": "none"},
            {"origin": own},
            {"origin": "null"},  # plain HTTP, from a page that sends no referrer
            {"origin": "https://weft.example"},
            {},
        ),
        strict=True,
    ):
        path = await page_of(one, approver=who)
        form = fields((await client.get(path)).text)
        assert (await client.post(path, data=form, headers=headers)).status_code == 303, headers
    assert (await app.approvals.get(one.id)).status == "approved"


async def test_bodies_that_are_too_large_or_odd_are_refused(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf
) -> None:
    one = await ask()
    path = await page_of(one)
    form, plain = "application/x-www-form-urlencoded", "application/json"

    async def chunks():
        for _ in range(20):
            yield b"x" * 50_000

    for content, media, status in (
        (b"comment=" + b"x" * 300_000, form, 413),
        (chunks(), form, 413),
        (b'{"comment": "' + b"x" * 300_000 + b'"}', plain, 413),
        (b"comment=%ff%fe", form, 422),
        ("comment=é".encode(), form, 422),
        (b"comment=a&comment=b", form, 422),
        (b"&".join(b"a%d=" % i for i in range(600)), form, 422),
        (b"[]", plain, 422),
        (b'{"by": "ben"}', plain, 422),
        (b'{"comment": "a", "comment": "b"}', plain, 422),
        (b'{"comment": "\\ud800"}', plain, 422),
        (b'{"comment": 7}', plain, 422),
        (b"--x", "multipart/form-data; boundary=x", 422),
    ):
        answer = await client.post(path, content=content, headers={**JSON, "content-type": media})
        assert answer.status_code == status, (content, answer.text)
        assert answer.json()["code"] in ("payload_too_large", "invalid_arguments", "payload_refused")
    assert (await app.approvals.get(one.id)).votes == []


async def test_the_address_of_the_client_is_recorded_and_proxies_only_if_they_are_trusted(
    app: Weft, ask: Ask, page_of: PageOf, start_server: Callable[..., Awaitable[str]]
) -> None:
    said = {"x-forwarded-for": "198.51.100.9, 203.0.113.7", **PAGE}
    one = await ask(quorum=3, approvers=["anna", "ben", "carl"])
    for approver, proxies in (("anna", []), ("ben", ["127.0.0.1"])):
        async with httpx2.AsyncClient(base_url=await start_server(app, proxies=proxies), headers=said) as client:
            assert (await client.post(await page_of(one, approver=approver), data={})).status_code == 303
    votes = (await app.approvals.get(one.id)).votes
    assert [vote["via"] for vote in votes] == ["link:127.0.0.1", "link:203.0.113.7"]
