"""Health; a store that goes away and comes back; the server mounted in somebody's own application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from browsing import JSON, PAGE, Ask, PageOf, fields
from fastapi import FastAPI

from servers import ServerProcess
from weft import Weft
from weft.server import create_app


async def test_health_is_told_and_nothing_else_is_there(client: httpx2.AsyncClient) -> None:
    for path in ("/healthz", "/readyz"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        assert (await client.head(path)).status_code == 200
    for path in ("/", "/docs", "/openapi.json", "/approvals", "/approvals/links/", "/approvals/links/a/b", "/healthz/"):
        answer = await client.get(path)
        assert answer.status_code == 404 and "nothing at this address" in answer.text, path


@pytest.mark.leaves("open runs")
async def test_a_store_that_is_away_is_told_and_works_again_when_it_is_back(
    launch: Callable[..., ServerProcess], start_server: Callable[..., Awaitable[str]], namespace: str
) -> None:
    store = launch()
    app = Weft("away", redis_url=store.url, namespace=namespace)
    async with app, app.worker(), httpx2.AsyncClient(base_url=await start_server(app), headers=PAGE) as client:
        graph = app.graph("report")
        graph.approval("review", approvers=["anna"])
        run = await graph.start()
        while not (waiting := await app.approvals.list(run=run.id)):
            pass
        link = await app.approvals.link(waiting[0].id, approver="anna", decision="approve")
        path = f"/approvals/links/{link}"
        assert (await client.get(path)).status_code == 200

        store.kill()
        page = await client.get(path)
        assert page.status_code == 503 and "Try again in a moment" in page.text and page.headers["retry-after"] == "5"
        assert store.url not in page.text and (await client.get("/healthz")).status_code == 200
        for answer in (await client.post(path, data={}, headers=JSON), await client.get("/readyz", headers=JSON)):
            assert answer.status_code == 503 and answer.json()["code"] in ("unavailable", "not_executed"), answer.text
            assert answer.headers["content-type"] == "application/problem+json"

        store.start()
        assert (await client.post(path, data={})).status_code == 303
        assert (await client.get("/readyz")).status_code == 200
        assert (await run.result(20))["by"] == "anna"


async def test_a_server_that_starts_before_its_store(
    launch: Callable[..., ServerProcess], start_server: Callable[..., Awaitable[str]], namespace: str
) -> None:
    store = launch()
    store.kill()
    app = Weft("early", redis_url=store.url, namespace=namespace)
    async with httpx2.AsyncClient(base_url=await start_server(app), headers=PAGE) as client:
        assert (await client.get("/readyz")).status_code == 503
        store.start()
        assert (await client.get("/readyz")).status_code == 200


async def test_it_can_be_mounted_in_ones_own_application(app: Weft, ask: Ask, page_of: PageOf) -> None:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with app:
            yield

    own = FastAPI(lifespan=lifespan)
    own.mount("/weft", create_app(app))
    one = await ask()
    path = "/weft" + await page_of(one)
    transport: Any = httpx2.ASGITransport(app=own)
    async with (
        own.router.lifespan_context(own),
        httpx2.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        page = await client.get(path, headers=PAGE)
        done = await client.post(path, data=fields(page.text), headers=PAGE)
        assert done.status_code == 303 and str(done.next_request.url) == f"http://shop{path}"  # type: ignore[union-attr]
        assert "anna has approved" in (await client.get(path, headers=PAGE)).text
        assert (await client.get("/weft/nothing", headers=JSON)).json()["code"] == "not_found"
