"""A loop in a thread of its own, for code without one (Django, Flask, scripts). Safe to use after a fork."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from weft.errors import UserError
from weft.sdk.flowloop import FlowLoop

T = TypeVar("T")


class Portal:
    """Runs coroutines on a background loop and waits for them."""

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._close_app = close
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        os.register_at_fork(after_in_child=self._forget)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the background loop and returns its result."""
        running = asyncio._get_running_loop()
        if isinstance(running, FlowLoop):  # it would be done again by every replay
            work.close()
            running.refuse("a .sync verb", "use ctx.call(task), ctx.child(workflow), or do it in a step")
        loop = self._ensure()
        if threading.current_thread().name == "weft portal":
            work.close()
            raise UserError("a .sync verb was called on Weft's own loop: use the async verb there")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def close(self) -> None:
        """Closes the loop and its connections now rather than when the process ends; the next call makes a new one."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
            if loop is None or thread is None or self._pid != os.getpid():
                return
            atexit.unregister(self._close)
            self._close(loop, self._pid)
            thread.join(timeout=5)
            if not thread.is_alive():
                loop.close()

    def _ensure(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                self._thread = threading.Thread(target=self._loop.run_forever, name="weft portal", daemon=True)
                self._thread.start()
                atexit.register(self._close, self._loop, self._pid)
            return self._loop

    def _close(self, loop: asyncio.AbstractEventLoop, pid: int) -> None:
        """Closes the loop's connections when the process ends."""
        if pid == os.getpid():
            with contextlib.suppress(TimeoutError, RuntimeError):
                asyncio.run_coroutine_threadsafe(self._end(), loop).result(timeout=2)
            loop.call_soon_threadsafe(loop.stop)

    async def _end(self) -> None:
        await self._close_app()
        await asyncio.get_running_loop().shutdown_asyncgens()

    def _forget(self) -> None:
        # The parent's thread does not exist in the child, and its lock may be held there for ever.
        self._lock, self._loop = threading.Lock(), None
