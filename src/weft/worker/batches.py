"""Gathers claimed steps of a batch task into one call of its function. Gathering takes no slot; the call takes one."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import SessionLost
from weft.sdk.current import CURRENT
from weft.sdk.task import AsyncTask, Task
from weft.worker.slots import Slots
from weft.worker.threads import carried
from weft.worker.verdicts import LOST, PAUSED

if TYPE_CHECKING:
    from weft.worker.execute import Execution, Executor


#: Seconds after which a step that waited for others is looked at again before it begins.
LOOK_AGAIN = 0.1


class Group:
    """Steps that will be, or are, in one call."""

    def __init__(self, task: Task[Any, Any]) -> None:
        self.task = task
        self.timer: asyncio.TimerHandle | None = None
        self.members: list[tuple[Execution, Any, asyncio.Future[Any]]] = []
        self.call: asyncio.Future[Any] | None = None

    def note_end(self, _: asyncio.Future[Any]) -> None:
        """Stops a call that nobody waits for any more."""
        if self.call is not None and all(future.done() for _, _, future in self.members):
            self.call.cancel()


class Batches:
    """The batches of one worker."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._open: dict[str, Group] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        #: Set by the worker: where a step that waits for others leaves its slot.
        self.slots: Slots | None = None

    async def call(self, execution: Execution, task: Task[Any, Any], data: bytes) -> bytes:
        """Returns what the function returned for this step's item."""
        assert task.batching is not None, "only batch tasks come here"
        args, kwargs = task.signature.decode(data, formed=execution.token.spec.formed)
        (item,) = (*args, *kwargs.values())
        loop, token = asyncio.get_running_loop(), execution.token
        # A suspect is called alone and at once: a death while it waits, or by another item, would be charged to it.
        alone = bool(token.crashes and token.is_suspect)
        group = Group(task) if alone else self._open.get(task.name)
        if group is None:
            group = self._open[task.name] = Group(task)
            group.timer = loop.call_later(task.batching.wait_ms / 1000, self._close, group)
        future: asyncio.Future[Any] = loop.create_future()
        group.members.append((execution, item, future))
        # Neither the time it waits for others nor that which the call waits for a slot is the function's.
        execution.lift_limit()
        if self.slots is not None:
            execution.lent = True
            self.slots.give()
        if alone:
            self._begin(group)
        elif len(group.members) >= task.batching.size:
            self._close(group)
        future.add_done_callback(group.note_end)
        return task.signature.returns.encode(await future)

    @property
    def gathered(self) -> int:
        """How many steps wait for others."""
        return sum(len(group.members) for group in self._open.values())

    def close_all(self) -> None:
        """Calls what is gathered now: nothing more will come."""
        for group in list(self._open.values()):
            self._close(group)

    def _close(self, group: Group) -> None:
        if self._open.get(group.task.name) is group:
            del self._open[group.task.name]
            if group.timer is not None:
                group.timer.cancel()
            self._begin(group)

    def _begin(self, group: Group) -> None:
        running = asyncio.create_task(self._run(group), name=f"weft batch {group.task.name}")
        self._under_way.add(running)
        running.add_done_callback(self._under_way.discard)

    async def _run(self, group: Group) -> None:
        if self.slots is not None:
            await self.slots.take(1)
        try:
            await self._look_again(group)
            group.members = [member for member in group.members if not member[2].done()]
            if not group.members:
                return
            for execution, _, _ in group.members:
                self._executor.limit(execution)
            try:
                group.call = asyncio.ensure_future(self._results(group))
                _settle(group, await group.call)
            except asyncio.CancelledError:
                for _, _, future in group.members:
                    future.cancel()
        finally:
            if self.slots is not None:
                self.slots.give()

    async def _look_again(self, group: Group) -> None:
        """Gives back what an operator has paused, struck or limited while it waited for others: it has not begun."""
        now = time.monotonic()
        waited: dict[int, list[tuple[Execution, asyncio.Future[Any]]]] = {}
        for execution, _, future in group.members:
            if not future.done() and now - execution.began > LOOK_AGAIN:
                waited.setdefault(execution.token.partition, []).append((execution, future))
        for p, members in waited.items():
            try:
                tokens = await self._executor.look_again(p, [execution.token for execution, _ in members])
            except SessionLost:
                tokens = [], []  # others have them
            begin, paused = ({token.key for token in each} for each in tokens)
            for execution, future in members:
                key = execution.token.key
                if key not in begin and not future.done():
                    execution.verdict = execution.verdict or (PAUSED if key in paused else LOST)
                    future.cancel()

    async def _results(self, group: Group) -> Sequence[Any]:
        """Returns one result per item: what the function raised is that of all of them.

        Caught here, within the asyncio task of the call: one that ends with SystemExit would take the worker's loop along.
        """
        try:
            return _per_item(group.task.name, await self._function(group), len(group.members))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is the outcome of every step
            return [error] * len(group.members)

    async def _function(self, group: Group) -> Any:
        task = group.task
        first = group.members[0][0]
        first.current().batch = tuple(execution.current() for execution, _, _ in group.members)
        CURRENT.set(first.current)
        items = [item for _, item, _ in group.members]
        given = await self._executor.resources.of(task) if task.needs else {}
        if isinstance(task, AsyncTask):
            return await task.fn(items, **given)
        results = await self._executor.threads.run(lambda: task.fn(items, **given))
        return await results if inspect.isawaitable(results) else results


def _per_item(name: str, results: Any, n: int) -> Sequence[Any]:
    if results is None:
        return [None] * n
    if not isinstance(results, (list, tuple)) or len(results) != n:
        got = f"{len(results)} results" if isinstance(results, (list, tuple)) else f"a {type(results).__name__}"
        raise TypeError(
            f"{name} was given {n} items and returned {got}: it must return a list with one per item, or None"
        )
    return results


def _settle(group: Group, results: Sequence[Any]) -> None:
    """Gives each step its part. An exception in the list is the failure of its item alone."""
    for (_, _, future), result in zip(group.members, results, strict=True):
        if future.done():
            continue
        if isinstance(result, BaseException):
            future.set_exception(carried(result))
        else:
            future.set_result(result)
