"""`app.runs`: finds, counts and changes runs, wherever they stand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from weft.clock import Duration, parse_duration_ms, parse_moment_ms
from weft.codec import decode_plain
from weft.core.model import RunInfo, RunStatus
from weft.engine.letters import now_ms
from weft.engine.listing import Filter, count_runs, list_runs
from weft.errors import InvalidOption
from weft.ids import partition_of, stamp_of
from weft.sdk.run import FoundRun, SyncRun

if TYPE_CHECKING:
    from weft.engine.bulk import Changed
    from weft.sdk.app import Weft

KINDS = ("task", "graph", "workflow")
#: What runs can be counted by.
COUNTED = ("status", "kind", "name", "queue")


class SyncRuns:
    """`app.runs.sync`: finds runs, for code without a loop."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    def get(self, id: str) -> SyncRun[Any]:
        """Returns a handle on a run that exists; raises NotFound."""
        return self._app.portal.call(self._app.runs.get(id)._found()).sync

    def change(self, action: str, **options: Any) -> Changed:
        """Takes what `app.runs.change` takes."""
        return self._app.portal.call(self._app.runs.change(action, **options))

    def list(self, **filters: Any) -> list[RunInfo]:
        """Lists runs, newest first; takes what `app.runs.list` takes."""
        return self._app.portal.call(self._app.runs.list(**filters))

    def export(self, id: str) -> bytes:
        """Takes what `app.runs.export` takes."""
        return self._app.portal.call(self._app.runs.export(id))

    def import_(self, data: bytes) -> SyncRun[Any]:
        """Takes what `app.runs.import_` takes."""
        return self._app.portal.call(self._app.runs.import_(data)).sync

    def count(self, **filters: Any) -> dict[str, int]:
        """Takes what `app.runs.count` takes."""
        return self._app.portal.call(self._app.runs.count(**filters))


class Runs:
    """`app.runs`: finds runs."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    @property
    def sync(self) -> SyncRuns:
        """The same verbs for code without a loop."""
        return SyncRuns(self._app)

    def get(self, id: str) -> FoundRun[Any]:
        """Returns a handle on a run; awaiting it checks that it exists. Results come plain; `task.run(id)` is typed."""
        return FoundRun(self._app, id, decode_plain)

    async def list(
        self,
        *,
        status: RunStatus | str | None = None,
        kind: str | None = None,
        name: str | None = None,
        tag: tuple[str, str] | None = None,
        owner: str | None = None,
        queue: str | None = None,
        parent: str | None = None,
        error: str | None = None,
        text: str | None = None,
        since: datetime | Duration | None = None,
        until: datetime | Duration | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[RunInfo]:
        """Lists runs, newest first: those under way, and finished ones as far back as the archive goes.

        `owner` is the value of the tag `owner`, `parent` the run that has started them, `error` the class or code of the error
        they failed with; `text` stands, as it is written here, in what they were given, gave, or failed with. `since` and
        `until` are an aware datetime or how long ago, by the moment in a run's id; a child counts with its parent.
        `after` is the id of the last run of the page before.
        """
        if after is not None:
            partition_of(after)
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise InvalidOption(f"limit must be a whole number of at least 1, not {limit!r}", option="limit")
        wanted = await self._filter(
            status=status,
            kind=kind,
            name=name,
            tag=tag,
            owner=owner,
            queue=queue,
            parent=parent,
            error=error,
            text=text,
            since=since,
            until=until,
        )
        return await list_runs(self._app.engine(), wanted, limit=limit, after=after or "")

    async def count(
        self,
        *,
        by: str = "status",
        status: RunStatus | str | None = None,
        kind: str | None = None,
        name: str | None = None,
        tag: tuple[str, str] | None = None,
        owner: str | None = None,
        queue: str | None = None,
        parent: str | None = None,
        error: str | None = None,
        text: str | None = None,
        since: datetime | Duration | None = None,
        until: datetime | Duration | None = None,
    ) -> dict[str, int]:
        """Counts the runs that `list` would list, by status, kind, name or queue."""
        if by not in COUNTED:
            raise InvalidOption(f"runs are counted by {', '.join(COUNTED)}, not by {by!r}", option="by")
        wanted = await self._filter(
            status=status,
            kind=kind,
            name=name,
            tag=tag,
            owner=owner,
            queue=queue,
            parent=parent,
            error=error,
            text=text,
            since=since,
            until=until,
        )
        return await count_runs(self._app.engine(), wanted, by=by)

    async def _filter(
        self, *, since: datetime | Duration | None, until: datetime | Duration | None, **given: Any
    ) -> Filter:
        self._check(given["status"], given["tag"])
        for name in ("kind", "name", "owner", "queue", "error", "text"):
            if given[name] is not None and (not isinstance(given[name], str) or not given[name]):
                raise InvalidOption(f"{name} takes a text, not {given[name]!r}", option=name)
            _check_filter(given[name], name)
        for part in given["tag"] or ():
            _check_filter(part, "tag")
        if given["kind"] is not None and given["kind"] not in KINDS:
            raise InvalidOption(f"there is no kind {given['kind']!r}; there are {', '.join(KINDS)}", option="kind")
        if given["parent"] is not None:
            partition_of(given["parent"])
        times = {"since": since, "until": until}
        stamps: dict[str, Any] = {
            what: await self._stamp(value, what) for what, value in times.items() if value is not None
        }
        return Filter(**given, **stamps)

    async def _stamp(self, value: datetime | Duration, what: str) -> str:
        if isinstance(value, datetime):
            return stamp_of(parse_moment_ms(value, what=what, now=datetime.now(UTC)))
        return stamp_of(await now_ms(self._app.engine()) - parse_duration_ms(value, what=what))

    def _check(self, status: str | None, tag: tuple[str, str] | None) -> None:
        if status is not None and status not in tuple(RunStatus):
            raise InvalidOption(f"there is no status {status!r}; there are {', '.join(RunStatus)}", option="status")
        if tag is not None and not (isinstance(tag, tuple) and len(tag) == 2 and all(isinstance(x, str) for x in tag)):
            raise InvalidOption(f"tag takes a name and a value, as in tag=('team', 'a'), not {tag!r}", option="tag")

    async def export(self, id: str) -> bytes:
        """Returns an ended, archived run as one file: history, payloads, definition; secrets are redacted."""
        from weft.engine.carrying import export_run

        return await export_run(self._app.engine(), id)

    async def import_(self, data: bytes) -> FoundRun[Any]:
        """Stores an exported run in this app's archive, under its id, and returns a handle on it.

        Raises FileRefused for a file that is damaged or none, and Conflict for an id that is there; then nothing is stored.
        """
        from weft.engine.carrying import import_run

        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidOption(
                f"import_ takes the bytes that `export` returned, not a {type(data).__name__}: read files as bytes",
                option="data",
            )
        engine = self._app.engine()
        await engine.open()
        return self.get(await import_run(engine, bytes(data)))

    async def change(
        self,
        action: str,
        *,
        status: RunStatus | str | None = None,
        name: str | None = None,
        tag: tuple[str, str] | None = None,
        queue: str | None = None,
        limit: int = 1000,
        reason: str = "",
        dry_run: bool = False,
    ) -> Changed:
        """Does `cancel`, `pause`, `resume` or `retry` to all runs of a filter that it can be done to, the newest first.

        `retry` is of graph runs, also those that only the archive has.
        With `dry_run` they are only counted and named (`runs`). At least one filter must be given.
        """
        from weft.engine import bulk
        from weft.engine.pauses import checked_reason

        if action not in bulk.MEANT:
            raise InvalidOption(
                f"there is no {action!r} of many runs; there are {', '.join(bulk.MEANT)}", option="action"
            )
        if status is None and name is None and tag is None and queue is None:
            raise InvalidOption("say which runs are meant: status, name, tag or queue")
        self._check(status, tag)
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise InvalidOption(f"limit must be a whole number of at least 1, not {limit!r}", option="limit")
        engine, text = self._app.engine(), checked_reason(reason)
        wanted = bulk.Meant(status=status, name=name, tag=tag, queue=queue, action=action)
        ids = await bulk.meant_runs(engine, wanted, limit=limit)
        if dry_run:
            return bulk.Changed(len(ids), runs=ids)
        return await bulk.change_runs(engine, action, ids, reason=text, by=engine.actor)


def _check_filter(value: str | None, name: str) -> None:
    """Refuses what no database can be asked for. A NUL may stand in what runs were given, not in what they are called."""
    if value and (any("\ud800" <= char <= "\udfff" for char in value) or ("\0" in value and name != "text")):
        raise InvalidOption(f"{name}: {value!r} is not valid text", option=name)
