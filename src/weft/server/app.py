"""The application: its routes, how errors become answers, and when the store is opened and closed.

Mounted in another application its lifespan is not run, and need not be: the store is opened at first use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from weft.core.links import PATH
from weft.errors import Broken, Unavailable, WeftError
from weft.sdk.app import Weft
from weft.server.answers import log, refuse, refuse_http
from weft.server.health import PATIENCE, show_alive, show_ready
from weft.server.links import serve_link


def create_app(weft: Weft) -> FastAPI:
    """Returns the ASGI application that serves an app's links to approvals, to be run or mounted."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(PATIENCE):
                    await stack.enter_async_context(weft)
            except (Unavailable, TimeoutError) as error:
                # It may come up later; until then requests are told so.
                log.warning("the store does not answer yet", why=str(error))
                stack.push_async_callback(weft.close)
            yield

    server = FastAPI(
        title="Weft", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan
    )
    server.state.weft = weft
    server.add_route("/healthz", show_alive, methods=["GET"])
    server.add_route("/readyz", show_ready, methods=["GET"])
    server.add_route(f"{PATH}{{link}}", serve_link, methods=["GET", "POST"])
    server.add_exception_handler(WeftError, _refuse)
    server.add_exception_handler(HTTPException, _refuse)
    server.add_exception_handler(Exception, _refuse)
    return server


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return refuse_http(request, error)
    return refuse(request, error if isinstance(error, WeftError) else Broken(f"{type(error).__name__}: {error}"))
