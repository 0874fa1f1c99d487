"""The page of a link: what it shows, that looking changes nothing, and how it decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from browsing import JSON, Ask, PageOf, fields

from weft import Weft


async def test_the_page_shows_what_is_asked_and_changes_nothing(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf
) -> None:
    one = await ask({"order": "o-7", "amount": 120, "items": [{"sku": "a"}]}, quorum=2, timeout="2d")
    await app.approvals.approve(one.id, by="ben", digest=one.digest, comment="looks fine")
    path = await page_of(one)

    for method in ("HEAD", "OPTIONS", "GET", "GET"):  # as scanners of mail do
        shown = await client.request(method, path)

    assert shown.status_code == 200 and shown.headers["content-type"] == "text/html; charset=utf-8"
    for text in (
        *("Refund order o-7?", "o-7", "120", "&quot;sku&quot;: &quot;a&quot;", one.run_id, "review", "anna, ben"),
        *("1 of 2 approvals so far", "looks fine", "Link expires", "Decide by", ">Approve</button>", "UTC"),
    ):
        assert text in shown.text, text
    after = await app.approvals.get(one.id)
    assert after.status == "pending" and [vote["by"] for vote in after.votes] == ["ben"]


async def test_pressing_the_button_decides_and_says_so(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf
) -> None:
    one = await ask()
    path = await page_of(one)
    form = fields((await client.get(path)).text) | {"comment": "two\r\nlines"}

    done = await client.post(path, data=form)
    assert done.status_code == 303
    shown = await client.get(done.next_request.url)  # type: ignore[union-attr]

    after = await app.approvals.get(one.id)
    assert (after.status, after.votes[0]["by"], after.votes[0]["comment"]) == ("approved", "anna", "two\nlines")
    assert after.votes[0]["via"] == "link:127.0.0.1"
    assert "anna has approved this" in shown.text and "<form" not in shown.text

    again = await client.post(path, data=form)
    assert (again.status_code, again.headers["location"]) == (303, done.headers["location"])
    assert (await app.approvals.get(one.id)).votes == after.votes


async def test_twenty_presses_at_once_are_one_vote_and_one_outcome(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf
) -> None:
    one = await ask(quorum=2)
    path = await page_of(one)
    pages = await asyncio.gather(*(client.post(path, data={"comment": str(i)}) for i in range(20)))
    assert {page.status_code for page in pages} == {303}
    assert len((await app.approvals.get(one.id)).votes) == 1
    told = await client.get(path)
    assert "anna has approved this" in told.text and "1 of 2 approvals are there" in told.text


async def test_whoever_comes_later_is_told_who_decided(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf
) -> None:
    one = await ask()
    path = await page_of(one)
    await app.approvals.reject(one.id, by="ben", digest=one.digest, comment="too much")

    told = await client.get(path)
    assert told.status_code == 200 and "decided already" in told.text and "too much" in told.text
    pressed = await client.post(path, data={})
    assert pressed.status_code == 303
    answer = await client.post(path, json={}, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert answer.json()["facts"]["decision"]["by"] == "ben"


async def test_programs_get_json(app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf) -> None:
    one = await ask()
    path = await page_of(one, "reject")
    looked = (await client.get(path, headers=JSON)).json()
    assert (looked["id"], looked["status"], looked["show"]["amount"]) == (one.id, "pending", 120)
    assert (looked["link"]["approver"], looked["link"]["decision"]) == ("anna", "reject")
    first = await client.post(path, json={"comment": "no"}, headers=JSON)
    second = await client.post(path, json={"comment": "no"}, headers=JSON)
    assert (first.status_code, first.json()["status"]) == (200, "rejected")
    assert (second.status_code, second.json()["decision"]) == (200, first.json()["decision"])
    assert first.headers["content-type"] == "application/json"


@pytest.mark.parametrize("accept", ["*/*", ""])
async def test_programs_that_send_json_and_take_anything_get_json_also_when_it_does_not_work(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf, accept: str
) -> None:
    path, headers = await page_of(await ask()), {"accept": accept}
    for wrong, code in (({"by": "ben"}, "invalid_arguments"), ({"comment": 7}, "invalid_arguments")):
        answer = await client.post(path, json=wrong, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
        assert answer.json()["code"] == code
    other = await client.post("/approvals/links/x", json={}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (403, "link_refused")
    assert (await client.post(path, json={}, headers=headers)).json()["status"] == "approved"


@pytest.mark.parametrize("accept", ["text/html", "application/json"])
async def test_links_that_do_not_work_say_why(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf, advance: Callable[[int], Any], accept: str
) -> None:
    one = await ask()
    path, mine = await page_of(one), await page_of(one, "reject", expires="1h")
    other = path[:-3] + ("AAA" if path[-3:] != "AAA" else "BBB")
    await app.approvals.delegate(one.id, by="anna", to="carl")
    headers = {"accept": accept}

    async def both(path: str, status: int, title: str, code: str) -> None:
        for answer in (await client.get(path, headers=headers), await client.post(path, headers=headers, data={})):
            told = answer.text if accept == "text/html" else answer.json()["title"]
            assert answer.status_code == status and title in told, answer.text
            if accept != "text/html":
                assert answer.headers["content-type"] == "application/problem+json"
                assert (answer.json()["code"], answer.json()["status"]) == (code, status)

    await both(other, 403, "This link is not valid", "link_refused")
    await both("/approvals/links/x", 403, "This link is not valid", "link_refused")
    await both("/approvals/links/%00%ff", 403, "This link is not valid", "link_refused")
    await advance(3_600_001)
    await both(mine, 403, "This link has expired", "link_refused")
    shown = await client.get(path, headers={"accept": "text/html"})
    assert shown.status_code == 403 and "carl" in shown.text
    assert (await app.approvals.get(one.id)).status == "pending"


async def test_a_link_to_a_run_that_was_cancelled_or_is_gone(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf
) -> None:
    one = await ask()
    path = await page_of(one)
    await (await app.runs.get(one.run_id)).cancel()
    async with asyncio.timeout(20):
        while (await app.approvals.get(one.id)).status == "pending":
            await asyncio.sleep(0.01)
    assert "the run has ended" in (await client.get(path)).text
    assert (await client.post(path, data={})).status_code == 303

    ns = app.engine().ns
    from weft.ids import partition_of

    p = partition_of(one.run_id)
    await ns.read("DEL", ns.keys.approval(p, one.id), p=p)
    gone = await client.get(path)
    assert gone.status_code == 404 and "This is gone" in gone.text
    assert (await client.get(path, headers=JSON)).json()["code"] == "not_found"


async def test_a_question_that_was_asked_anew_needs_a_new_link(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf
) -> None:
    one = await ask(on_reject="fail")
    path = await page_of(one)
    await app.approvals.reject(one.id, by="ben", digest=one.digest)
    run: Any = await app.runs.get(one.run_id)
    async with asyncio.timeout(20):
        while await run.status() != "failed":
            await asyncio.sleep(0.01)
    await run.retry()
    async with asyncio.timeout(20):
        while (await app.approvals.get(one.id)).status != "pending":
            await asyncio.sleep(0.01)
    for answer in (await client.get(path), await client.post(path, data={})):
        assert answer.status_code == 403 and "asked again since" in answer.text
    assert (await app.approvals.get(one.id)).status == "pending"


async def test_what_is_shown_is_text_whatever_it_holds(
    app: Weft, ask: Ask, client: httpx2.AsyncClient, page_of: PageOf
) -> None:
    raw = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`javascript:alert(3)"
    bad = raw + "\u202egnp.exe\x1b[31m"
    one = await ask(
        {bad[:60]: bad, "url": "javascript:alert(1)", "deep": [{bad: bad}]},
        title=bad,
        approvers=["anna", "<b>ben</b>"],
        form={
            "type": "object",
            "properties": {raw: {"type": "string", "title": bad, "description": bad, "default": raw}},
        },
    )
    text = (await client.get(await page_of(one))).text
    for worse in ("<script", "<img", "<b>ben", "\u202e", "\x1b"):
        assert worse not in text, worse
    assert "&lt;script&gt;" in text and "\\u202e" in text and "href" not in text and "javascript:alert(1)" in text


async def test_headers_keep_the_page_to_itself(ask: Ask, client: httpx2.AsyncClient, page_of: PageOf) -> None:
    path = await page_of(await ask())
    for answer in (
        await client.get(path),
        await client.head(path),
        await client.get("/nothing"),
        await client.put(path),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert answer.headers["referrer-policy"] == "no-referrer" and answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff" and "server" not in answer.headers
    head = await client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    put = await client.put(path, headers=JSON)
    assert put.status_code == 405 and set(put.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert (await client.get("/nothing", headers=JSON)).json()["code"] == "not_found"
