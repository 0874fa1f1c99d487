"""What the graph of every construct needs from outside: a page to fetch, a signal, and somebody who approves."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any

from weft import Conflict, NotFound, Weft
from weft.sdk.graphrun import GraphRun

#: What a worker must be told so that it may fetch the page.
ALLOWED = {"WEFT_EGRESS_ALLOW": "127.0.0.1"}


class _Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b'{"page": 17}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: Any) -> None:
        """Says nothing either: workers are killed in the middle of requests."""


@contextlib.contextmanager
def site() -> Iterator[str]:
    """Serves the page on loopback, from a thread of its own; gives its address."""
    server = _Server(("127.0.0.1", 0), _Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/page"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def input_of(url: str) -> dict[str, Any]:
    return {"n": 3, "items": [3, 1, 2], "site": url}


async def attend(app: Weft, run: GraphRun) -> None:
    """Signals and approves, as people would: early or late, and until the run has ended."""
    await run.signal("go", {"by": "bo"}, request_id="go")
    while not (await run.status()).finished:
        for asked in await app.approvals.list(run=run.id):
            with contextlib.suppress(Conflict, NotFound):  # it may be answered already
                await app.approvals.approve(asked.id, by="ann", digest=asked.digest)
        await asyncio.sleep(0.02)
