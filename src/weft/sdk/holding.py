"""An app's hold on the embedded server: taken at first use, and again after a fork or when the server has died."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path

from weft.engine.engine import EmbeddedServer
from weft.telemetry import get_logger

log = get_logger("weft.store")


class Holding:
    """What of an app is on the embedded server; its threads and loops share one hold."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.server: EmbeddedServer | None = None
        _all.add(self)

    def attach(self, directory: Path) -> EmbeddedServer:
        """Returns this process's hold, taken now if there is none."""
        with self._lock:
            if self.server is None:
                self.server = EmbeddedServer.attach(directory)
            return self.server

    def revive(self) -> bool:
        """Starts the server again if it died under this hold; returns whether it had to. Nothing is started after a release."""
        with self._lock:
            dead = self.server
            if dead is None or dead.is_alive():
                return False
            # Whoever asks asks again soon: it is not waited for while it reads its data back.
            self.server = EmbeddedServer.attach(dead.directory, loading=0)
            dead.detach()
        log.warning("the embedded store was gone; it was started again", pid=self.server.pid)
        return True

    def release(self, *, stop: bool = False) -> None:
        """Lets go of the server; the last process to do so stops it."""
        with self._lock:
            held, self.server = self.server, None
        if held is not None:
            held.detach(stop=stop)

    def forget(self) -> None:
        """Takes no hold over from the parent of a forked process: it would not keep the server when the parent ends."""
        self._lock, self.server = threading.Lock(), None


_all: weakref.WeakSet[Holding] = weakref.WeakSet()


def _forget_in_child() -> None:
    for holding in list(_all):
        holding.forget()


os.register_at_fork(after_in_child=_forget_in_child)
