"""Links that decide with one click: signed, bound to one person and one payload, used once, gone after a while."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from waiting import approval_of, timers_gone

from weft import (
    Approval,
    Conflict,
    InvalidArguments,
    InvalidOption,
    LinkRefused,
    NotAllowed,
    SettingsError,
    StepFailed,
    Weft,
)
from weft.core.links import Link, read, sign
from weft.sdk.graphrun import GraphRun
from weft.worker.worker import Worker

StartWorker = Callable[..., Awaitable[Worker]]
Advance = Callable[[int], Awaitable[None]]

LINK = Link("r0-x/review", "approve", "anna", "d" * 64, 2_000, 1_000)


@pytest.fixture
async def asked(app: Weft, start_worker: StartWorker) -> AsyncIterator[tuple[GraphRun, Approval]]:
    graph = app.graph("report", output="${review}")
    graph.approval("review", approvers=["anna", "ben"], quorum=2, show="${input}", on_reject="continue")
    await start_worker()
    run = await graph.start({"n": 1})
    yield run, await approval_of(app, run)
    await run.cancel()
    await timers_gone(app)


async def test_a_link_decides_once_for_its_person(app: Weft, asked: tuple[GraphRun, Approval]) -> None:
    run, one = asked
    link = await app.approvals.link(one.id, approver="anna", decision="approve")
    no = await app.approvals.link(one.id, approver="anna", decision="reject")
    after = await app.approvals.redeem(link, comment="from my phone")
    assert (after.votes[0]["by"], after.votes[0]["via"], after.votes[0]["comment"]) == ("anna", "link", "from my phone")
    for used in (link, no):
        with pytest.raises(Conflict, match="anna has approved"):
            await app.approvals.redeem(used)
    with pytest.raises(Conflict, match="anna has approved"):
        await app.approvals.link(one.id, approver="anna", decision="reject")
    await app.approvals.redeem(await app.approvals.link(one.id, approver="ben", decision="approve"))
    assert (await run.result(timeout=20))["by"] == "ben"
    with pytest.raises(Conflict, match="it is decided once"):
        await app.approvals.redeem(no)


async def test_a_link_does_not_decide_what_a_retried_run_asks_anew(app: Weft, start_worker: StartWorker) -> None:
    graph = app.graph("report")
    graph.approval("review", approvers=["anna"], show="the same both times")
    await start_worker()
    run = await graph.start()
    one = await approval_of(app, run)
    no = await app.approvals.link(one.id, approver="anna", decision="reject")
    yes = await app.approvals.link(one.id, approver="anna", decision="approve")
    await app.approvals.redeem(no)
    with pytest.raises(StepFailed, match="rejected by anna"):
        await run.result(timeout=20)
    await run.retry()
    again = await approval_of(app, run)

    for old in (no, yes):
        with pytest.raises(LinkRefused, match=r"an earlier time that .* was asked") as refused:
            await app.approvals.redeem(old)
        assert refused.value.facts["reason"] == "asked_anew"

    assert again.digest == one.digest
    await app.approvals.redeem(await app.approvals.link(one.id, approver="anna", decision="approve"))
    assert (await run.result(timeout=20))["decision"] == "approved"
    await timers_gone(app)


async def test_a_link_expires(app: Weft, asked: tuple[GraphRun, Approval], advance: Advance) -> None:
    _, one = asked
    link = await app.approvals.link(one.id, approver="anna", decision="reject", expires="1h")
    await advance(3_600_001)
    with pytest.raises(LinkRefused, match="has expired") as refused:
        await app.approvals.redeem(link)
    assert refused.value.facts["reason"] == "expired"


async def test_a_link_of_somebody_who_delegated_is_worth_nothing(app: Weft, asked: tuple[GraphRun, Approval]) -> None:
    _, one = asked
    link = await app.approvals.link(one.id, approver="anna", decision="reject")
    await app.approvals.delegate(one.id, by="anna", to="carl")
    with pytest.raises(NotAllowed):
        await app.approvals.redeem(link)
    with pytest.raises(NotAllowed):
        await app.approvals.link(one.id, approver="anna", decision="approve")


async def test_the_key_is_kept_in_the_namespace_or_given(
    app: Weft, asked: tuple[GraphRun, Approval], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, one = asked
    ours = await app.approvals.link(one.id, approver="anna", decision="approve")
    ns = app.engine().ns
    key = bytes(await ns.read("GET", ns.keys.secret(), p=0))
    assert len(key) == 64 and await ns.read("PTTL", ns.keys.secret(), p=0) == -1
    assert read(ours, key, 0).digest == one.digest

    monkeypatch.setenv("WEFT_SECRET_KEY", "x" * 32)
    with pytest.raises(LinkRefused, match="was not made here"):
        await app.approvals.redeem(ours)
    theirs = await app.approvals.link(one.id, approver="anna", decision="approve")
    assert read(theirs, b"x" * 32, 0).approver == "anna"
    monkeypatch.setenv("WEFT_SECRET_KEY", "short secret")
    with pytest.raises(SettingsError, match="WEFT_SECRET_KEY=… cannot be used: at least 32 characters") as told:
        await app.approvals.redeem(theirs)
    assert "short secret" not in str(told.value)


async def test_links_that_make_no_sense_are_not_made(app: Weft, asked: tuple[GraphRun, Approval]) -> None:
    _, one = asked
    with pytest.raises(InvalidOption, match="approve or reject"):
        await app.approvals.link(one.id, approver="anna", decision="approved")
    with pytest.raises(InvalidArguments):
        await app.approvals.link(one.id, approver="", decision="approve")
    with pytest.raises(NotAllowed):
        await app.approvals.link(one.id, approver="zoe", decision="approve")
    with pytest.raises(InvalidOption):
        await app.approvals.link(one.id, approver="anna", decision="approve", expires="-1h")


async def test_a_link_is_redeemed_by_its_url_and_says_from_where(
    app: Weft, asked: tuple[GraphRun, Approval], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, one = asked
    link = await app.approvals.link(one.id, approver="anna", decision="approve")
    with pytest.raises(SettingsError, match="set WEFT_PUBLIC_URL to where people reach the server"):
        app.approvals.url(link)
    monkeypatch.setenv("WEFT_PUBLIC_URL", "https://weft.example.com/shop/")
    url = app.approvals.url(link)
    assert url == f"https://weft.example.com/shop/approvals/links/{link}"
    with pytest.raises(InvalidArguments, match="the address of a client"):
        await app.approvals.redeem(url, ip="1.2.3")
    done = await app.approvals.redeem(f" {url}?utm=mail#top\n", ip="2001:DB8::7")
    assert done.votes[0]["via"] == "link:2001:db8::7"
    with pytest.raises(LinkRefused, match="was not made here"):
        await app.approvals.redeem("https://weft.example.com/approvals/links/")


@pytest.mark.parametrize(
    "url", ["weft.example.com", "ftp://x", "https://", "https://u:p@x", "https://x?a=b", "https://é"]
)
async def test_a_public_url_that_is_none_is_refused(app: Weft, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_PUBLIC_URL", url)
    with pytest.raises(SettingsError, match="WEFT_PUBLIC_URL"):
        app.approvals.url("x")


def test_every_changed_letter_is_noticed() -> None:
    key = b"k" * 32
    text = sign(LINK, key)
    assert read(text, key, 1_999) == LINK
    for at in range(len(text)):
        other = "A" if text[at] != "A" else "B"
        with pytest.raises(LinkRefused):
            changed = text[:at] + other + text[at + 1 :]
            # The last letter of a Base64 text has bits that mean nothing: what it says must stay the same then.
            if read(changed, key, 0) == LINK and at == len(text) - 1:
                raise LinkRefused
    with pytest.raises(LinkRefused, match="expired"):
        read(text, key, 2_000)


@pytest.mark.parametrize("text", ["", ".", "a.b", "é.é", "x" * 10_000, "\0", None, 7, ".." * 50])
def test_what_is_no_link_is_refused(text: Any) -> None:
    with pytest.raises(LinkRefused, match="was not made here"):
        read(text, b"k" * 32, 0)


def test_a_link_with_another_decision_needs_another_proof() -> None:
    said, proof = sign(LINK, b"k" * 32).split(".")
    document = json.loads(base64.urlsafe_b64decode(said + "=="))
    document["decision"] = "reject"
    forged = base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")
    with pytest.raises(LinkRefused):
        read(f"{forged}.{proof}", b"k" * 32, 0)
