"""`app.testing()`: an app on a store for tests, with a clock to move and a worker to tell what to do."""

from __future__ import annotations

import contextlib
import inspect
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.clock import Duration
from weft.errors import InvalidArguments, NotBuilt, UserError, WeftError
from weft.ids import new_id
from weft.sdk.graph import Graph
from weft.sdk.portal import Portal
from weft.sdk.task import AsyncTask, Task
from weft.sdk.workflow import Workflow
from weft.store.audit import scan_keys
from weft.testing.clock import VirtualClock
from weft.testing.manual import Attempt, ManualWorker

if TYPE_CHECKING:
    from weft.sdk.app import Weft


class Harness:
    """Puts an app on a namespace of its own for as long as a `with` or `async with` lasts.

    Without `redis_url` that is an embedded server, started once per process. A namespace that is given is left as it is
    afterwards; one that is made here is emptied.
    """

    def __init__(self, app: Weft, *, redis_url: str | None = None, namespace: str | None = None) -> None:
        self.app, self._redis_url = app, redis_url
        self.namespace = namespace or new_id("testing")
        self._wipes = namespace is None
        self.clock = VirtualClock(app)
        self.worker = ManualWorker(app, self.clock)
        #: Names of steps, or functions, and what runs in their place; tasks and workflows, and the functions that they had.
        self._stand_ins: list[tuple[Any, Callable[..., Any]]] = []
        self._mocked: list[tuple[Task[Any, Any] | Workflow[Any, Any], Any]] = []

    async def run_until_idle(self, *, advance: bool | Duration = False, timeout: float = 30.0) -> list[Attempt]:
        """Runs everything that is due now, and whatever that starts (see `ManualWorker.run_until_idle`)."""
        return await self.worker.run_until_idle(advance=advance, timeout=timeout)

    def mock(
        self, what: Task[Any, Any] | Workflow[Any, Any] | Callable[..., Any] | str, instead: Callable[..., Any]
    ) -> None:
        """Has another function run in place of a task, of a workflow, of a function that is a step, or of a step by its name.

        It gets the same arguments, without the context; what it returns must fit what the original says it returns. It lasts
        until the end.
        """
        if not callable(instead):
            raise InvalidArguments(
                f"mock takes a function that runs instead, not {instead!r}: `lambda *args: …` gives a value"
            )
        task = self.app.tasks.get(what) or self.app.workflows.get(what) if isinstance(what, str) else what
        if isinstance(task, Workflow):
            self._mocked.append((task, task.fn))
            task.fn = _without_context(instead)
            return
        if not isinstance(task, Task):
            if not (isinstance(what, str) or callable(what)) or isinstance(what, Graph):
                raise InvalidArguments(f"mock takes a task, a workflow, a function or the name of a step, not {what!r}")
            self._stand_ins.insert(0, (what, instead))
            return
        if task.pool == "process" or task.batching is not None:
            raise NotBuilt(f"task {task.name} runs in a process of its own or in batches: it cannot be mocked")
        if not isinstance(task, AsyncTask) and inspect.iscoroutinefunction(instead):
            raise InvalidArguments(f"task {task.name} is a plain `def`: what runs instead must be one, too")
        self._mocked.append((task, task.fn))
        task.fn = _awaited(instead) if isinstance(task, AsyncTask) else instead

    def stand_in(self, name: str, fn: Any, *, is_async: bool) -> Any:
        """Returns what runs as a step: the function itself, or what it was mocked by."""
        for what, instead in self._stand_ins:
            # Equal, not the same: `thing.method` is another object each time.
            if what in (name, fn):
                return _awaited(instead) if is_async else instead
        return fn

    def __enter__(self) -> Harness:
        app = self.app
        if app._harness is not None:
            raise UserError(f"app {app.name!r} is being tested already: leave the other `app.testing()` first")
        if self._redis_url is None:
            from weft.testing.server import shared_url

            self._redis_url = shared_url()
        app._harness = self
        self._kept = (app._redis_url, app._namespace, app._engines, app.portal)
        app._redis_url, app._namespace = self._redis_url, self.namespace
        app._engines, app.portal = weakref.WeakKeyDictionary(), Portal(app.close)
        # Of its own, too: else a test would read the archive that `weft dev` has left in the project.
        app._tested_in = Path(tempfile.mkdtemp(prefix="weft-testing-"))
        return self

    def __exit__(self, *exc: object) -> None:
        app = self.app
        try:
            # A test may have taken its store away.
            with contextlib.suppress(WeftError):
                if self._wipes:
                    app.portal.call(self._wipe())
        finally:
            app.portal.close()
            app._redis_url, app._namespace, app._engines, app.portal = self._kept
            app._harness = None
            if app._tested_in is not None:
                shutil.rmtree(app._tested_in, ignore_errors=True)
                app._tested_in = None
            self._stand_ins.clear()
            while self._mocked:  # the first function of each is the last one put back
                task, fn = self._mocked.pop()
                task.fn = fn

    async def __aenter__(self) -> Harness:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        await self.app.close()
        self.__exit__()

    async def _wipe(self) -> None:
        await self.app.open()
        ns = self.app.engine().ns
        async for page in scan_keys(ns):
            for key in page:  # one by one: on a Cluster they are spread over slots
                await ns.read("UNLINK", key, p=0)


def _without_context(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function as the code of a workflow, which gets its context first."""
    awaited = _awaited(fn)

    def coded(_: Any, *args: Any, **kwargs: Any) -> Any:
        return awaited(*args, **kwargs)

    return coded


def _awaited(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function, `async` or not, as one that can be awaited."""

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    return awaited
