"""The verbs on versions of graphs: list, publish, tag, undo, redo, diff. They act on the database itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from weft.core.acts import Deed, clean
from weft.core.graph.model import to_document
from weft.core.patch import difference
from weft.core.routing import Bundle
from weft.core.versions import (
    ANY,
    Definition,
    DefinitionTag,
    Difference,
    Named,
    Patched,
    check_tag,
    node_differences,
    resolve,
)
from weft.engine.cold import load_archive
from weft.engine.coldruns import open_archive
from weft.engine.definitions import decode_bundle
from weft.engine.engine import Engine, user_name
from weft.engine.histories import history
from weft.errors import Conflict, ForeignArchive, HistoryExpired, InvalidOption, NotFound
from weft.ids import check_name, new_id, partition_of
from weft.store.archived import read_mark

if TYPE_CHECKING:
    from weft.archive.versions import TagRow, VersionRow, Versions


async def list_names(engine: Engine) -> list[str]:
    """Returns the graphs that have versions."""
    return await (await _versions(engine)).names() if await open_archive(engine, "versions") else []


async def list_versions(engine: Engine, name: str, *, limit: int) -> list[Definition]:
    """Returns the versions of a graph, the newest first. Raises NotFound for a graph without any."""
    _check_limit(limit)
    versions, tags = await _known(engine, name)
    return [_define(row, tags) for row in versions[:limit]]


async def get(engine: Engine, name: str, ref: str) -> Definition:
    """Returns the version that a tag, a version or a digest names."""
    versions, tags = await _known(engine, name)
    row = _find(name, ref, versions, tags)
    bundle = decode_bundle(await _data(engine, row.digest))
    return msgspec.structs.replace(_define(row, tags), document=to_document(bundle.graph))


async def whole(engine: Engine, name: str, ref: str) -> tuple[bytes, Bundle, dict[str, bytes]]:
    """Returns what is stored with runs of a version, that taken apart, and by digest what its subgraphs follow."""
    versions, tags = await _known(engine, name)
    data = await _data(engine, _find(name, ref, versions, tags).digest)
    bundle = decode_bundle(data)
    children: dict[str, bytes] = {}
    line = [base.child for base in bundle.steps.values() if base.child]
    while line:
        digest = line.pop()
        if digest not in children:
            children[digest] = await _data(engine, digest)
            line += [base.child for base in decode_bundle(children[digest]).steps.values() if base.child]
    return data, bundle, children


async def publish(
    engine: Engine, name: str, digest: str, data: Mapping[str, bytes], *, by: str, reason: str
) -> Definition:
    """Stores a version without a run; one that is there stays as it is."""
    from weft.archive.versions import VersionRow

    store = await _versions(engine, make=True)
    label = decode_bundle(data[digest]).graph.version or ""
    now_ms, actor = int(time.time() * 1000), _actor(by)
    row = VersionRow(name, digest, label, now_ms, "", actor)
    deed = Deed(
        new_id("a"), now_ms, actor, engine.id, "definition.publish", name, "", digest, clean(reason),
        msgspec.json.encode({"version": label}),
    )  # fmt: skip
    async with engine.cold.turn:
        await store.publish(row, dict(data), deed)
    return await get(engine, name, digest)


async def move(
    engine: Engine, name: str, tag: str, verb: str, *, to: str = "", expected: Any = ANY, by: str, reason: str
) -> DefinitionTag:
    """Moves a tag: `tag` to a version, `untag`, `undo`, `redo`. Raises Conflict when it is not where it was expected."""
    from weft.archive.versions import Move

    store = await _versions(engine, make=True)
    versions, tags = await _known(engine, name)
    named, places = _named(versions), {row.tag: row.digest for row in tags}
    if verb == "tag":
        check_tag(tag, named)
    target = resolve(name, to, named, places) if verb == "tag" else ""
    there = None if expected is ANY else "" if expected is None else resolve(name, expected, named, places)
    asked = Move(
        name, tag, there, verb, target, int(time.time() * 1000), _actor(by), engine.id, clean(reason), new_id("a")
    )
    async with engine.cold.turn:
        word, row = await store.move(asked)
    labels = {one.digest: one.version for one in versions}
    if word == "other":
        where = f"names {labels.get(row.digest) or row.digest[:12]}" if row.digest else "is not there"
        raise Conflict(f"tag {tag} of graph {name} {where}: it was moved meanwhile", name=name, digest=row.digest)
    if word == "end":
        raise Conflict(f"tag {tag} of graph {name} has nothing to {verb}", name=name, tag=tag)
    if word == "same" and verb == "untag":
        raise NotFound(f"graph {name} has no tag {tag!r}", name=name, tag=tag)
    return next(found for found in await list_tags(engine, name) if found.tag == tag)


async def list_tags(engine: Engine, name: str) -> list[DefinitionTag]:
    """Returns the tags of a graph by name, those that were taken away too: that can be undone."""
    versions, tags = await _known(engine, name)
    labels = {row.digest: row.version for row in versions}
    return [
        DefinitionTag(
            name,
            row.tag,
            row.digest,
            labels.get(row.digest, ""),
            _moment(row.at_ms),
            row.actor,
            row.position,
            row.ahead,
        )
        for row in tags
    ]


async def diff(engine: Engine, name: str, before: str, after: str) -> Difference:
    """Returns what differs between two versions of a graph."""
    old, new = [await get(engine, name, ref) for ref in (before, after)]
    assert old.document is not None and new.document is not None
    added, removed, changed = node_differences(old.document, new.document)
    return Difference(old.digest, new.digest, added, removed, changed, difference(old.document, new.document))


# --- patches of runs ------------------------------------------------------------------------------


async def patches_of(engine: Engine, run: str) -> list[Patched]:
    """Returns the patches of one run, the first one first, from whichever store has its history; raises NotFound."""
    try:
        found = await history(engine, run)
    except HistoryExpired:
        # The run has a gap; its patches may be all there.
        return [*reversed(await list_patches(engine, run=run, author=None, before=None, limit=10_000))]
    return [
        Patched(
            run,
            event.data["revision"],
            event.data.get("undoes"),
            event.at,
            event.data["author"],
            event.data["reason"],
            event.data.get("before", ""),
            event.data["definition"],
            event.data["operations"],
            event.data.get("step", ""),
        )
        for event in found
        if event.type == "patched"
    ]


async def list_patches(
    engine: Engine, *, run: str | None, author: str | None, before: datetime | None, limit: int
) -> list[Patched]:
    """Returns archived patches of all runs, the newest first."""
    _check_limit(limit)
    if run is not None:
        partition_of(run)
    if not await open_archive(engine, "versions"):
        return []
    from weft.archive.rows import read_patches

    before_ms = None if before is None else int(before.timestamp() * 1000)
    rows = await read_patches(
        engine.cold.database, engine.ns.keys.namespace, run=run, author=author, before_ms=before_ms, limit=limit
    )
    return [
        Patched(
            row.run,
            row.revision,
            row.undoes or None,
            _moment(row.at_ms),
            row.author,
            row.reason,
            row.previous,
            row.definition,
            msgspec.json.decode(row.operations),
            step,
        )
        for row, step in rows
    ]


# --- the database ---------------------------------------------------------------------------------


async def _versions(engine: Engine, *, make: bool = False) -> Versions:
    """Returns the versions of this namespace. `make`: they are about to be changed, so the database must be the right one."""
    if not await open_archive(engine, "versions"):
        if not make:
            raise NotFound("there is no archive yet, and so no versions: start a worker, or publish one")
        await load_archive("versions")
        from weft.archive.schema import migrate

        async with engine.cold.turn:
            await migrate(engine.cold.database)
    from weft.archive.versions import Versions

    if make:
        from weft.archive.writer import read_identity

        mark = await read_mark(engine.ns, 0)
        if mark.database and mark.database != await read_identity(engine.cold.database):
            raise ForeignArchive(
                f"this namespace is archived to {mark.name}, not to {engine.cold.address.shown}: set WEFT_DATABASE_URL"
            )
    return Versions(engine.cold.database, engine.ns.keys.namespace)


async def _known(engine: Engine, name: str) -> tuple[list[VersionRow], list[TagRow]]:
    check_name(name, what="graph")
    store = await _versions(engine)
    versions = await store.versions(name)
    if not versions:
        others = ", ".join((await store.names())[:10])
        raise NotFound(
            f"graph {name!r} has no versions yet: a run of it, once archived, or app.definitions.publish makes one"
            + (f"; there are versions of {others}" if others else ""),
            name=name,
        )
    return versions, await store.tags(name)


async def _data(engine: Engine, digest: str) -> bytes:
    data = await (await _versions(engine)).blob(digest)
    if data is None:
        raise NotFound(f"the definition cas://sha256:{digest} is not in the archive", digest=digest)
    return data


def _find(name: str, ref: str, versions: list[VersionRow], tags: list[TagRow]) -> VersionRow:
    digest = resolve(name, ref, _named(versions), {row.tag: row.digest for row in tags})
    found = next((row for row in versions if row.digest == digest), None)
    if found is None:
        raise NotFound(f"version {digest[:12]} of graph {name} is not in the archive", name=name, digest=digest)
    return found


def _named(versions: list[VersionRow]) -> list[Named]:
    return [Named(row.digest, row.version) for row in versions]


def _define(row: VersionRow, tags: list[TagRow]) -> Definition:
    mine = [tag.tag for tag in tags if tag.digest == row.digest]
    return Definition(row.name, row.digest, row.version, mine, _moment(row.first_ms), row.run, row.actor)


def _actor(by: str) -> str:
    if not isinstance(by, str) or len(by) > 200:
        raise InvalidOption("by is who does it: a text of at most 200 characters", option="by")
    return clean(by) or user_name()


def _check_limit(limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidOption(f"limit must be a whole number from 1, not {limit!r}", option="limit")


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
