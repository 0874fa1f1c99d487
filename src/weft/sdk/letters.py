"""`app.dlq`: dead letters, the runs that failed for good. List, group, read, replay, purge, mark as investigated."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from weft.clock import Duration, parse_duration_ms, parse_moment_ms
from weft.codec import decode_plain
from weft.core.letters import DeadLetter, LetterGroup, LetterPage, ReplayReport
from weft.engine import letters as verbs
from weft.engine import replaying
from weft.engine.letters import LetterFilter, Progress
from weft.errors import InvalidOption
from weft.sdk.run import Run

if TYPE_CHECKING:
    from weft.sdk.app import Weft


#: Inside classes that have a verb `list`, the type needs another name.
Groups = list[LetterGroup]


class LetterFilters(TypedDict, total=False):
    """Which dead letters are meant; `since` and `until` are an aware datetime, or how long ago."""

    task: str | None
    queue: str | None
    #: The class name of the error, such as `ValueError`, or its code, such as `timeout` or `poisoned`.
    error: str | None
    fingerprint: str | None
    since: datetime | Duration | None
    until: datetime | Duration | None
    tag: tuple[str, str] | None
    investigated: bool | None
    replayed: bool | None


class DeadLetters:
    """Verbs on the dead letters of an app's namespace."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    @property
    def sync(self) -> SyncDeadLetters:
        """The same verbs for code without a loop."""
        return SyncDeadLetters(self._app)

    async def count(self) -> int:
        """How many there are, in one look."""
        return await verbs.count(self._app.engine())

    async def list(self, *, limit: int = 100, cursor: str = "", **filters: Unpack[LetterFilters]) -> LetterPage:
        """Returns dead letters, newest first; `cursor` of the page leads to the next one, and is empty on the last."""
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise InvalidOption(f"limit must be a whole number from 1 on, not {limit!r}", option="limit")
        return await verbs.page(self._app.engine(), await _filter(self._app, filters), limit=limit, cursor=cursor or "")

    async def groups(self, **filters: Unpack[LetterFilters]) -> Groups:
        """Returns dead letters by what their errors have in common, the largest group first. Reads all that are meant."""
        return await verbs.groups(self._app.engine(), await _filter(self._app, filters))

    async def find(
        self, *, ids: Sequence[str] | None = None, all: bool = False, **filters: Unpack[LetterFilters]
    ) -> Sequence[str]:
        """Returns the ids of all dead letters that are meant, oldest first: to act on them and on none that comes later."""
        return await _meant(self._app, ids, all, filters)

    async def get(self, id: str) -> DeadLetter:
        """Returns one dead letter with its arguments; raises NotFound."""
        return await verbs.get(self._app.engine(), id)

    async def replay(self, id: str, *, force: bool = False) -> Run[Any]:
        """Starts the same work as a new run.

        Raises Conflict when that was done before, or when a call that counts as one with it is active, unless forced.
        """
        return self._run(await replaying.replay(self._app.engine(), id, force=force))

    async def replay_many(
        self,
        *,
        ids: Sequence[str] | None = None,
        all: bool = False,
        dry_run: bool = False,
        force: bool = False,
        progress: Progress | None = None,
        **filters: Unpack[LetterFilters],
    ) -> ReplayReport:
        """Replays the dead letters of a filter, those with these ids, or all; with `dry_run` only counts them.

        What was replayed before, or has an active equal, is left out unless forced. `progress(done, matched)` is called as
        it goes on. Safe to repeat after an error.
        """
        found = await _meant(self._app, ids, all, filters, replayed=None if force else False)
        if dry_run:
            return ReplayReport(len(found))
        return await replaying.replay_many(self._app.engine(), found, force=force, progress=progress)

    async def purge(
        self,
        *,
        ids: Sequence[str] | None = None,
        all: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
        **filters: Unpack[LetterFilters],
    ) -> int:
        """Deletes dead letters, arguments and all; returns how many went, with `dry_run` how many would."""
        found = await _meant(self._app, ids, all, filters)
        return len(found) if dry_run else await verbs.purge(self._app.engine(), found, progress=progress)

    async def investigate(self, id: str, note: str | None, *, by: str | None = None) -> DeadLetter:
        """Marks a dead letter as looked into, with a note; None takes the mark back. Returns the letter."""
        engine = self._app.engine()
        await verbs.investigate(engine, id, note, by=by or engine.id)
        return await verbs.get(engine, id)

    def _run(self, id: str) -> Run[Any]:
        return Run(self._app, id, decode_plain, accepted=True)


class SyncDeadLetters:
    """`app.dlq.sync`: the same verbs, for code without a loop."""

    def __init__(self, app: Weft) -> None:
        self._app = app

    def list(self, *, limit: int = 100, cursor: str = "", **filters: Unpack[LetterFilters]) -> LetterPage:
        return self._app.portal.call(self._app.dlq.list(limit=limit, cursor=cursor, **filters))

    def count(self) -> int:
        return self._app.portal.call(self._app.dlq.count())

    def groups(self, **filters: Unpack[LetterFilters]) -> Groups:
        return self._app.portal.call(self._app.dlq.groups(**filters))

    def find(self, **options: Any) -> Sequence[str]:
        """Takes what `app.dlq.find` takes."""
        return self._app.portal.call(self._app.dlq.find(**options))

    def get(self, id: str) -> DeadLetter:
        return self._app.portal.call(self._app.dlq.get(id))

    def replay(self, id: str, *, force: bool = False) -> Run[Any]:
        return self._app.portal.call(self._app.dlq.replay(id, force=force))

    def replay_many(self, **options: Any) -> ReplayReport:
        """Takes what `app.dlq.replay_many` takes."""
        return self._app.portal.call(self._app.dlq.replay_many(**options))

    def purge(self, **options: Any) -> int:
        """Takes what `app.dlq.purge` takes."""
        return self._app.portal.call(self._app.dlq.purge(**options))

    def investigate(self, id: str, note: str | None, *, by: str | None = None) -> DeadLetter:
        return self._app.portal.call(self._app.dlq.investigate(id, note, by=by))


async def _meant(
    app: Weft, ids: Sequence[str] | None, all: bool, filters: LetterFilters, *, replayed: bool | None = None
) -> list[str]:
    """Returns the ids that are meant. `replayed` narrows a filter that says nothing about it."""
    given = [name for name, value in filters.items() if value is not None]
    if (ids is not None) + bool(given) + bool(all) != 1:
        raise InvalidOption(
            "say which dead letters are meant: ids=[…], or filters (task, queue, error, fingerprint, since, until,"
            " tag, investigated, replayed), or all=True"
        )
    if ids is None:
        wanted: LetterFilters = filters if "replayed" in filters else {**filters, "replayed": replayed}
        return await verbs.find(app.engine(), await _filter(app, wanted))
    if isinstance(ids, str):
        raise InvalidOption(f"ids takes a list of run ids, not the text {ids[:60]!r}", option="ids")
    for id in ids:
        verbs.home_of(id)
    await app.engine().open()
    return list(dict.fromkeys(ids))


async def _filter(app: Weft, filters: LetterFilters) -> LetterFilter:
    known = LetterFilters.__annotations__
    for name in filters.keys() - known.keys():
        close = difflib.get_close_matches(name, known, n=1)
        hint = f": did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
        raise InvalidOption(f"there is no filter {name!r}{hint}", option=name)
    given: dict[str, Any] = {name: value for name, value in filters.items() if name not in ("since", "until")}
    for name in ("task", "queue", "error", "fingerprint"):
        if not isinstance(given.get(name), str | None):
            raise InvalidOption(f"{name} must be a text, not {given[name]!r}", option=name)
    for name in ("investigated", "replayed"):
        if not isinstance(given.get(name), bool | None):
            raise InvalidOption(f"{name} must be True or False, not {given[name]!r}", option=name)
    tag = given.get("tag")
    if tag is not None and not (isinstance(tag, tuple) and len(tag) == 2 and {type(x) for x in tag} == {str}):
        raise InvalidOption(f"tag takes a name and a value, as in tag=('team', 'a'), not {tag!r}", option="tag")
    since, until = filters.get("since"), filters.get("until")
    return LetterFilter(
        **given,
        since_ms=None if since is None else await _moment_ms(app, since, "since"),
        until_ms=None if until is None else await _moment_ms(app, until, "until"),
    )


async def _moment_ms(app: Weft, value: datetime | Duration, what: str) -> int:
    if isinstance(value, datetime):
        return parse_moment_ms(value, what=what, now=datetime.now(UTC))
    ago_ms = parse_duration_ms(value, what=what)
    return await verbs.now_ms(app.engine()) - ago_ms
