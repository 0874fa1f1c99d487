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


#: Portals whose loop runs, in this process.
_open: set[Portal] = set()
#: Whether this process has begun to end, and nothing may be opened any more: whoever would close it has been called.
_ending = threading.Event()


@atexit.register
def _close_all() -> None:
    """Closes all loops when the process ends.

    Registered when Weft is imported and not at first use: then what the app registers later comes first, and may still use
    `.sync`.
    """
    _ending.set()
    for portal in list(_open):
        portal.close(patience=2)


class Portal:
    """Runs coroutines on a background loop and waits for them."""

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._close_app = close
        # A handler of a signal may come while the same thread is in here.
        self._lock = threading.RLock()
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
        if threading.current_thread().name == "weft portal":
            work.close()
            raise UserError("a .sync verb was called on Weft's own loop: use the async verb there")
        try:
            loop = self._ensure()
        except BaseException:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def close(self, *, patience: float | None = None) -> None:
        """Closes the loop and its connections now rather than when the process ends; the next call makes a new one."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
            _open.discard(self)
            if loop is None or thread is None or self._pid != os.getpid():
                return
            with contextlib.suppress(TimeoutError, RuntimeError):
                asyncio.run_coroutine_threadsafe(self._end(), loop).result(timeout=2)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=5 if patience is None else patience)
            if not thread.is_alive():
                loop.close()

    def _ensure(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                if _ending.is_set():
                    raise UserError(
                        "this process is ending, and Weft has closed its connections: call it before, or in a function that"
                        " is registered with `atexit` after Weft was imported"
                    )
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="weft portal", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # Python 3.12 starts no threads once it ends
                    loop.close()
                    raise UserError("this process is ending: a .sync verb must have been used before") from error
                if self._loop is not None and self._pid == os.getpid():
                    # A signal came between, and its handler was here first.
                    loop.call_soon_threadsafe(loop.stop)
                    thread.join()
                    loop.close()
                    return self._loop
                self._thread, self._pid, self._loop = thread, os.getpid(), loop
                _open.add(self)
            return self._loop

    async def _end(self) -> None:
        await self._close_app()
        await asyncio.get_running_loop().shutdown_asyncgens()

    def _forget(self) -> None:
        # The parent's thread does not exist in the child, and its lock may be held there for ever.
        self._lock, self._loop = threading.RLock(), None
        _open.discard(self)
