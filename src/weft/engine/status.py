"""The verbs on the status of work elsewhere: publish, read. What the hot store no longer has, the archive tells."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from weft.core.status import (
    FeedPage,
    Observation,
    Seen,
    check_place,
    check_task,
    digest_of,
    pack_seen,
    unpack,
)
from weft.engine.coldruns import readable
from weft.engine.engine import Engine
from weft.errors import ArchiveUnavailable, Conflict, HistoryExpired, InvalidOption, NotFound
from weft.settings import read_setting
from weft.store.status import (
    Answer,
    Bounds,
    adopt_status,
    newest_of_feed,
    publish_status,
    read_children,
    read_feed,
    read_observations,
    read_statuses,
)

#: Most that one call returns.
MAX_LIMIT = 1_000
#: The feed before its first entry.
START = "0-0"
#: What stands between the places of a cursor, one per partition.
JOINT = "."


async def publish(engine: Engine, seen: Seen) -> Observation:
    """Keeps an observation; the same one again gives the first. Raises Conflict when an event id or a parent contradicts."""
    bounds = read_bounds()
    await engine.open()
    ns, p = engine.ns, engine.home(seen.task)
    above = engine.home(seen.parent) if seen.parent else p
    if above != p:
        await _check_parent(engine, p, seen)
        # First: a child that nobody has observed is left out by readers, one that its parent does not know would be lost.
        await adopt_status(ns, above, seen.parent, seen.task, keep_ms=bounds.keep_ms)

    async def call() -> Answer:
        return await publish_status(ns, p, seen, bounds, by=engine.id, near=above == p)

    # Only an event id tells a call that is repeated from another one that says the same after something else was said.
    answer = await (engine.insist(p, call) if seen.event else call())
    if answer.word == "other_event":
        raise Conflict(
            f"event {seen.event!r} of task {seen.task!r} was published before with another status, meta, parent or source:"
            " another observation needs another event_id",
            task=seen.task,
            event=seen.event,
        )
    if answer.word == "other_parent":
        raise _other_parent(seen, answer.parent)
    known = answer.word == "known"
    return unpack(answer.entry, answer.at_ms, pack_seen(seen), parent=answer.parent, known=known)


def read_bounds() -> Bounds:
    """Returns how much of it is kept, as it is set."""
    return Bounds(
        keep_ms=read_setting("WEFT_STATUS_KEEP"),
        seen_ms=read_setting("WEFT_STATUS_EVENTS"),
        history=read_setting("WEFT_STATUS_HISTORY"),
        feed=read_setting("WEFT_STATUS_FEED"),
    )


async def _check_parent(engine: Engine, p: int, seen: Seen) -> None:
    """Refuses another parent before anything is written: the one of another partition is told first."""
    (known,) = await read_statuses(engine.ns, p, [seen.task])
    if known is not None and known.parent_id and known.parent_id != seen.parent:
        raise _other_parent(seen, known.parent_id)


def _other_parent(seen: Seen, parent: str) -> Conflict:
    return Conflict(
        f"task {seen.task!r} belongs to {parent!r}, not to {seen.parent!r}: a task keeps its parent", task=seen.task
    )


async def latest(engine: Engine, task_id: str) -> Observation:
    """Returns how a task stands; raises NotFound."""
    task = check_task(task_id)
    await engine.open()
    (found,) = await read_statuses(engine.ns, engine.home(task), [task])
    found = found or await _cold_latest(engine, digest_of(task))
    if found is None:
        raise NotFound(f"nothing was published about task {task!r}, or it is no longer kept", task=task)
    return found


async def history(engine: Engine, task_id: str, *, limit: int, before: str | None) -> list[Observation]:
    """Returns what was observed of a task, the newest first; nothing for a task nobody published about."""
    task, limit = check_task(task_id), _limit(limit)
    place = None if before is None else check_place(before, what="before")
    await engine.open()
    kept = read_setting("WEFT_STATUS_HISTORY") if place is not None else limit
    found = await read_observations(engine.ns, engine.home(task), task, limit=kept)
    found = [each for each in found if place is None or _place(each) < place][:limit]
    if len(found) < limit and await readable(engine):
        from weft.archive import statuses

        rows = await statuses.read_observations(
            engine.cold.database,
            engine.ns.keys.namespace,
            digest_of(task),
            before=_place(found[-1]) if found else place,
            limit=limit - len(found),
        )
        parent = found[0].parent_id if found else await _cold_parent(engine, digest_of(task)) if rows else ""
        found += [unpack(f"{moment}-{n}", at_ms, seen, parent=parent) for (moment, n), at_ms, seen in rows]
    return found


async def children(engine: Engine, parent_id: str, *, limit: int) -> list[Observation]:
    """Returns how the children of a task stand, those that were observed first in front."""
    parent, limit = check_task(parent_id), _limit(limit)
    await engine.open()
    ids = await read_children(engine.ns, engine.home(parent), parent, limit=limit)
    homes: dict[int, list[str]] = {}
    for id in ids:
        homes.setdefault(engine.home(id), []).append(id)
    parts = await asyncio.gather(*(read_statuses(engine.ns, p, tasks) for p, tasks in homes.items()))
    found = {
        digest_of(id): one
        for tasks, part in zip(homes.values(), parts, strict=True)
        for id, one in zip(tasks, part, strict=True)
    }
    order = [digest_of(id) for id in ids]
    if len(ids) < limit and await readable(engine):
        from weft.archive import statuses

        cold = await statuses.read_children(
            engine.cold.database, engine.ns.keys.namespace, digest_of(parent), limit=limit
        )
        # Those that the hot store has forgotten were there before those it knows.
        order = [digest for digest in cold if digest not in found] + order
    stand = [found.get(digest) or await _cold_latest(engine, digest) for digest in order[:limit]]
    return [each for each in stand if each is not None]


async def feed(engine: Engine, *, after: str | None, limit: int) -> FeedPage:
    """Returns what was observed of all tasks after a cursor, the oldest first.

    None: from the oldest that the store has; `$`: from now. Raises HistoryExpired when what follows the cursor is gone.
    """
    limit = _limit(limit)
    await engine.open()
    parts = range(engine.ns.partitions)
    if after == "$":
        return FeedPage([], JOINT.join([await newest_of_feed(engine.ns, p) for p in parts]))
    places = [START] * len(parts) if after is None else _cursor(after, len(parts))
    read = await asyncio.gather(*(_feed_of(engine, p, places[p], fresh=after is None, limit=limit) for p in parts))
    merged = sorted(
        ((each.at, p, n, entry, each) for p, part in enumerate(read) for n, (entry, each) in enumerate(part)),
        key=lambda item: item[:3],
    )[:limit]
    for _, p, _, entry, _ in merged:
        places[p] = entry
    return FeedPage([item[-1] for item in merged], JOINT.join(places))


async def _feed_of(engine: Engine, p: int, after: str, *, fresh: bool, limit: int) -> Sequence[tuple[str, Observation]]:
    part = await read_feed(engine.ns, p, after, limit=limit)
    if fresh or not part.torn:
        return part.observations
    if not await readable(engine):
        if not part.first:
            return []
        raise HistoryExpired(
            f"the feed goes back to {part.first} only, and nobody archives: what followed {after} is gone. Read on from"
            " after=None, and raise WEFT_STATUS_FEED or read more often",
            cursor=after,
        )
    from weft.archive import statuses

    first = check_place(part.first, what="first") if part.first else None
    rows = await statuses.read_feed(
        engine.cold.database,
        engine.ns.keys.namespace,
        p,
        after=check_place(after, what="after"),
        before=first,
        limit=limit,
    )
    found = [(f"{moment}-{n}", unpack(f"{moment}-{n}", at_ms, seen)) for (moment, n), at_ms, seen in rows]
    reached = await engine.cold.reader.checkpoint(p)
    if first is None or (reached and check_place(reached, what="checkpoint") >= first):
        return [*found, *part.observations]
    if not found:
        raise ArchiveUnavailable(
            f"what follows {after} has left the feed and is not archived yet: try again when the archive has caught up"
            " (`weft doctor` shows how far behind it is)"
        )
    return found


async def _cold_latest(engine: Engine, digest: str) -> Observation | None:
    if not await readable(engine):
        return None
    from weft.archive import statuses

    rows = await statuses.read_observations(
        engine.cold.database, engine.ns.keys.namespace, digest, before=None, limit=1
    )
    if not rows:
        return None
    (moment, n), at_ms, seen = rows[0]
    return unpack(f"{moment}-{n}", at_ms, seen, parent=await _cold_parent(engine, digest))


async def _cold_parent(engine: Engine, digest: str) -> str:
    from weft.archive import statuses

    seen = await statuses.read_parent(engine.cold.database, engine.ns.keys.namespace, digest)
    return unpack(START, 0, seen).parent_id if seen is not None else ""


def _cursor(text: str, n: int) -> list[str]:
    places = text.split(JOINT) if isinstance(text, str) else [str(text)]
    for place in places:
        check_place(place, what="after")
    if len(places) != n:
        raise InvalidOption(
            f"after: a cursor of this feed has {n} places, this one {len(places)}: it comes from another namespace",
            option="after",
        )
    return places


def _place(observation: Observation) -> tuple[int, int]:
    return check_place(observation.id, what="id")


def _limit(value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_LIMIT:
        raise InvalidOption(f"limit must be a whole number from 1 to {MAX_LIMIT}, not {value!r}", option="limit")
    return value
