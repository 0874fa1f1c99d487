"""`app.queues` and `app.workers`: how they stand."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from weft.engine import queues as verbs
from weft.engine.lag import read_lag, read_room

if TYPE_CHECKING:
    from weft.sdk.app import Weft


class Queues:
    """`app.queues`."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    @property
    def sync(self) -> SyncQueues:
        """The same verbs for code without a loop."""
        return SyncQueues(self._app)

    async def list(self, *, sample: float = verbs.SAMPLE) -> list[verbs.QueueInfo]:
        """How every queue stands; two looks `sample` seconds apart tell the throughput (0: one look, no rate)."""
        return await verbs.list_queues(self._app.engine(), sample=sample)

    async def metrics(self) -> str:
        """Depth, age and workers of every queue, the archive's lag and the store's memory, in Prometheus' text format."""
        engine = self._app.engine()
        queues, workers = await verbs.list_queues(engine, sample=0), await verbs.list_workers(engine)
        return verbs.prometheus(queues, workers, await read_lag(engine), await read_room(engine))


class SyncQueues:
    """`app.queues.sync`."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    def list(self, *, sample: float = verbs.SAMPLE) -> builtins.list[verbs.QueueInfo]:
        return self._app.portal.call(self._app.queues.list(sample=sample))

    def metrics(self) -> str:
        return self._app.portal.call(self._app.queues.metrics())


class Workers:
    """`app.workers`."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    @property
    def sync(self) -> SyncWorkers:
        """The same verb for code without a loop."""
        return SyncWorkers(self._app)

    async def list(self) -> list[verbs.WorkerInfo]:
        """Every worker session, the oldest first."""
        return await verbs.list_workers(self._app.engine())


class SyncWorkers:
    """`app.workers.sync`."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    def list(self) -> builtins.list[verbs.WorkerInfo]:
        return self._app.portal.call(self._app.workers.list())
