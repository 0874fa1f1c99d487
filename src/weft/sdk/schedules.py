"""`app.schedules`: schedules that are made at run time, and the verbs on all of them; and what `@app.cron` declares."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from weft.codec import decode_plain
from weft.core.model import RunSpec
from weft.core.schedule import ScheduleInfo, ScheduleSpec, Times, check_policies
from weft.engine import schedules as verbs
from weft.errors import DefinitionError, InvalidArguments, InvalidOption, NotFound
from weft.ids import check_name, check_tags
from weft.sdk.run import FoundRun, Run, SyncRun
from weft.sdk.task import Bound, Task

if TYPE_CHECKING:
    from weft.sdk.app import Weft

AnyTask = Task[Any, Any] | Bound[Any, Any] | str


def make_spec(
    name: str, expr: str, run: RunSpec, *, tz: str, overlap: str, catch_up: str, declared_by: str = ""
) -> ScheduleSpec:
    """Returns a schedule as it is stored; refuses everything that makes no sense, without any I/O."""
    check_name(name, what="schedule name")
    check_policies(overlap, catch_up)
    Times(expr, tz)
    verbs.check_run(name, run)
    for taken in run.tags.keys() & {"schedule", "tick"}:
        raise InvalidOption(
            f"schedule {name}: every tick sets the tag {taken!r} itself: give yours another name", option="tags"
        )
    # Checked as they will be when a tick adds its own two.
    check_tags({**run.tags, "schedule": "", "tick": ""})
    return ScheduleSpec(expr, run, tz=tz, overlap=overlap, catch_up=catch_up, declared_by=declared_by)


def declare(task: Task[Any, Any], name: str, expr: str, *, tz: str, overlap: str, catch_up: str) -> None:
    """Notes a schedule for the workers of the task's app to publish."""
    app = task.app
    try:
        data = task.signature.encode((), {})
    except InvalidArguments as error:
        raise DefinitionError(
            f"{task.signature.text}: a cron function is called without arguments: give its parameters defaults, or use"
            " app.schedules.create, which takes arguments",
            name=name,
        ) from error
    if name in app.crons:
        raise DefinitionError(f"app {app.name!r} already declares a schedule {name!r}: give this one a name", name=name)
    run = _run(task, task.spec, data, (), {})
    spec = make_spec(name, expr, run, tz=tz, overlap=overlap, catch_up=catch_up, declared_by=app.name)
    app.crons[name] = spec


def _run(task: Task[Any, Any], spec: RunSpec, data: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunSpec:
    """Returns what each tick starts: its limits hold for scheduled runs as for any other."""
    if task.uniqueness is not None:
        raise DefinitionError(
            f"task {task.name}: a schedule starts a run at every tick, so {task.uniqueness.kind} has no meaning for it: use"
            " overlap, or a task without it",
            name=task.name,
        )
    limits, fair = task.gating.limits(args, kwargs) if task.gating is not None else ([], "")
    return msgspec.structs.replace(spec, input=data, limits=limits, fair=fair)


class Schedules:
    """`app.schedules`."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    @property
    def sync(self) -> SyncSchedules:
        """The same verbs for code without a loop."""
        return SyncSchedules(self._app)

    async def create(
        self,
        name: str,
        expr: str,
        task: AnyTask,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        tz: str = "UTC",
        overlap: str = "skip",
        catch_up: str = "latest",
    ) -> ScheduleInfo:
        """Creates a schedule of a task with these arguments, checked now; a name that is taken is a Conflict.

        The task may carry options of its own: `send.options(queue="mail")`. Creating the same schedule again changes nothing.
        """
        if isinstance(args, (str, bytes, Mapping)) or not isinstance(args, Sequence):
            raise InvalidArguments(
                f"args is a list or tuple of arguments, not a {type(args).__name__}: give named ones as kwargs={{…}}"
            )
        found, spec = self._task(task)
        data = found.signature.encode(tuple(args), dict(kwargs or {}))
        run = _run(found, spec, data, tuple(args), dict(kwargs or {}))
        made = make_spec(name, expr, run, tz=tz, overlap=overlap, catch_up=catch_up)
        return self._judged(await verbs.create(self._app.engine(), name, made))

    async def get(self, name: str) -> ScheduleInfo:
        """Tells how a schedule stands; raises NotFound."""
        return self._judged(await verbs.get(self._app.engine(), _name(name)))

    async def list(self) -> list[ScheduleInfo]:
        """Tells how all schedules of the namespace stand, by name."""
        return [self._judged(info) for info in await verbs.list_schedules(self._app.engine())]

    async def archived(self) -> Sequence[ScheduleInfo]:
        """Tells how schedules stand in the archive, by name, deleted ones too; it is a few seconds behind.

        The store is not asked: it may be lost. Empty when nobody archives.
        """
        return [self._judged(info) for info in await verbs.archived(self._app.engine())]

    async def next(self, name: str, n: int = 1) -> Sequence[datetime]:
        """Returns the next n ticks, by the schedule's own clock."""
        return await verbs.upcoming(self._app.engine(), _name(name), n)

    async def pause(self, name: str) -> ScheduleInfo:
        """Stops it from ticking until it is resumed. Runs that were started go on."""
        return self._judged(await verbs.pause(self._app.engine(), _name(name)))

    async def resume(self, name: str) -> ScheduleInfo:
        """Lets it tick again from now on; ticks that passed meanwhile are not caught up (see `backfill`)."""
        return self._judged(await verbs.resume(self._app.engine(), _name(name)))

    async def trigger(self, name: str) -> Run[Any]:
        """Starts a run now, also of a paused schedule; Conflict when its overlap policy forbids that."""
        return self._app.runs.get(await verbs.trigger(self._app.engine(), _name(name)))

    async def backfill(self, name: str, start: datetime, end: datetime) -> Sequence[Run[Any]]:
        """Starts the runs of all past ticks from `start` up to, not with, `end`; returns one run per tick.

        A run that the store still holds is kept and not started again: its handle is `deduplicated`.
        """
        found = await verbs.backfill(self._app.engine(), _name(name), start, end)
        return [FoundRun(self._app, one.id, decode_plain, deduplicated=one.deduplicated) for one in found]

    async def delete(self, name: str) -> None:
        """Deletes it; raises NotFound. One that code declares comes back with the next worker: `pause` it instead."""
        await verbs.delete(self._app.engine(), _name(name))

    def _task(self, task: AnyTask) -> tuple[Task[Any, Any], RunSpec]:
        if isinstance(task, Bound):
            if task._spec.durability:
                raise InvalidOption(
                    "durability: nobody waits for the start of a tick: leave it out", option="durability"
                )
            return task._task, task._spec
        if isinstance(task, str):
            found = self._app.find_task(task)
            if found is None:
                close = difflib.get_close_matches(task, self._app.tasks, n=1)
                hint = (
                    f"did you mean {close[0]}?" if close else f"it has {', '.join(sorted(self._app.tasks)) or 'none'}"
                )
                raise NotFound(f"app {self._app.name!r} has no task {task!r}: {hint}")
            task = found
        if not isinstance(task, Task):
            from weft.sdk.workflow import Workflow

            hint = f": let a task start it, by `await {task.name}.start(…)`" if isinstance(task, Workflow) else ""
            raise InvalidArguments(f"a schedule starts a task, or one by its name, not {task!r}{hint}")
        return task, task.spec

    def _judged(self, info: ScheduleInfo) -> ScheduleInfo:
        """Only the app that declares a schedule can tell that its code no longer does. An app without tasks knows nothing."""
        gone = info.app == self._app.name and info.name not in self._app.crons and bool(self._app.tasks)
        return msgspec.structs.replace(info, orphaned=gone)


class SyncSchedules:
    """`app.schedules.sync`: the verbs of `app.schedules`, for code without a loop."""

    def __init__(self, app: Weft) -> None:
        self._app, self._verbs = app, app.schedules

    def create(self, name: str, expr: str, task: AnyTask, *args: Any, **options: Any) -> ScheduleInfo:
        """Takes what `app.schedules.create` takes."""
        return self._app.portal.call(self._verbs.create(name, expr, task, *args, **options))

    def get(self, name: str) -> ScheduleInfo:
        return self._app.portal.call(self._verbs.get(name))

    def list(self) -> list[ScheduleInfo]:
        return self._app.portal.call(self._verbs.list())

    def archived(self) -> Sequence[ScheduleInfo]:
        return self._app.portal.call(self._verbs.archived())

    def next(self, name: str, n: int = 1) -> Sequence[datetime]:
        return self._app.portal.call(self._verbs.next(name, n))

    def pause(self, name: str) -> ScheduleInfo:
        return self._app.portal.call(self._verbs.pause(name))

    def resume(self, name: str) -> ScheduleInfo:
        return self._app.portal.call(self._verbs.resume(name))

    def trigger(self, name: str) -> SyncRun[Any]:
        return self._app.portal.call(self._verbs.trigger(name)).sync

    def backfill(self, name: str, start: datetime, end: datetime) -> Sequence[SyncRun[Any]]:
        return [run.sync for run in self._app.portal.call(self._verbs.backfill(name, start, end))]

    def delete(self, name: str) -> None:
        self._app.portal.call(self._verbs.delete(name))


def _name(name: str) -> str:
    """Refuses what cannot be a name before it reaches a key."""
    return check_name(name, what="schedule name")
