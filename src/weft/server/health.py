"""`/healthz`: the process is alive. `/readyz`: it reaches the store."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from weft.sdk.app import Weft
from weft.server.answers import document

#: Seconds a store may take to answer before a request is told that it does not.
PATIENCE = 3.0


async def show_alive(request: Request) -> Response:
    """Tells that the process answers; asks nobody else."""
    return document({"status": "ok"})


async def show_ready(request: Request) -> Response:
    """Tells that the store answers."""
    app: Weft = request.app.state.weft
    await app.engine().reach(PATIENCE)
    return document({"status": "ok"})
