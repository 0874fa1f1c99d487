"""What tests of the server share: one that listens, by uvicorn, on the app of the test; a client; somebody to be asked."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest
from browsing import PAGE, Ask

from weft import Approval, Weft
from weft.sdk.graphrun import GraphRun
from weft.server.running import listen, serve, url_of
from weft.testing import VirtualClock


async def _wait_for(app: Weft, run: GraphRun) -> Approval:
    async with asyncio.timeout(20):
        while not (waiting := await app.approvals.list(run=run.id)):
            await asyncio.sleep(0.01)
    return waiting[0]


@pytest.fixture
async def ask(app: Weft, start_worker: Callable[..., Any]) -> AsyncIterator[Ask]:
    """Starts a run that asks people, and returns what it asks; what is still open afterwards is cancelled."""
    runs: list[GraphRun] = []
    names = itertools.count()

    async def open(show: Any = None, **options: Any) -> Approval:
        graph = app.graph(f"refund{next(names)}", output="${review}")
        options = {"title": "Refund order o-7?", "approvers": ["anna", "ben"], "on_reject": "continue", **options}
        graph.approval("review", show="${input}", **options)
        runs.append(await graph.start(show if isinstance(show, dict) else {"order": "o-7", "amount": 120}))
        return await _wait_for(app, runs[-1])

    await start_worker()
    yield open
    for run in runs:
        await run.cancel()
    ns = app.engine().ns
    async with asyncio.timeout(20):
        while any([await ns.read("ZCARD", ns.keys.timers(p), p=p) for p in range(ns.partitions)]):
            await asyncio.sleep(0.01)


@pytest.fixture
def advance(weft_clock: VirtualClock) -> Callable[[int], Awaitable[None]]:
    """Moves the clock of every partition forward, by so many ms."""
    return weft_clock._move


@pytest.fixture
async def start_server() -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """Serves an app by uvicorn; returns the address."""
    stops: list[tuple[asyncio.Event, asyncio.Task[None]]] = []

    async def start(app: Weft, *, proxies: list[str] | None = None) -> str:
        listening, stop, up = listen("127.0.0.1", 0), asyncio.Event(), asyncio.Event()
        url = url_of(listening)
        serving = asyncio.create_task(serve(app, listening, proxies=proxies or [], stop=stop, ready=up.set))
        stops.append((stop, serving))
        await asyncio.wait_for(up.wait(), 10)
        return url

    yield start
    for stop, serving in stops:
        stop.set()
        await serving


@pytest.fixture
async def url(app: Weft, start_server: Callable[..., Awaitable[str]]) -> str:
    """A server of the test's app."""
    return await start_server(app)


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A browser that follows nothing and keeps nothing; its headers are those of one that opens a link."""
    async with httpx2.AsyncClient(base_url=url, headers=PAGE) as client:
        yield client


@pytest.fixture
def page_of(app: Weft) -> Callable[..., Awaitable[str]]:
    """Makes a link and returns the path of its page."""

    async def make(approval: Approval, decision: str = "approve", approver: str = "anna", **options: Any) -> str:
        return (
            f"/approvals/links/{await app.approvals.link(approval.id, approver=approver, decision=decision, **options)}"
        )

    return make
