"""The embedded server that all tests of one process share: started at first use, gone with the process."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

from weft.store.embedded import EmbeddedServer


@functools.cache
def shared_url() -> str:
    """Returns the URL of this process's test server. Its data is thrown away at the end."""
    directory = tempfile.mkdtemp(prefix="weft-testing-")
    server = EmbeddedServer.attach(Path(directory))
    atexit.register(_stop, server, directory, os.getpid())
    return server.url


def _stop(server: EmbeddedServer, directory: str, owner: int) -> None:
    if os.getpid() != owner:  # a forked child that ends: the server is its parent's
        return
    server.detach(stop=True)
    shutil.rmtree(directory, ignore_errors=True)
