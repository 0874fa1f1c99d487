"""Rows besides runs: versions of definitions, patches, approvals, what was done to dead letters, schedules, and the audit.

They are written in the transaction that moves the checkpoint, and few: statement by statement, not in bulk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import String, and_, cast, select
from sqlalchemy.ext.asyncio import AsyncConnection

from weft.archive import acts, bulk, schedules
from weft.archive.database import Database
from weft.archive.tables import approvals, audit, definitions, letters, patches, steps
from weft.core.acts import BY_STEP, OWN_CHAIN, Deed
from weft.core.fold import StepState
from weft.core.rows import DecidedRow, LetterRow, PatchRow, Rows

_STEPS = [column.name for column in steps.columns]
_PATCH = [column.name for column in patches.columns][1:]


async def write_rows(
    connection: AsyncConnection, namespace: str, chain: int, rows: Rows, labels: Mapping[str, str]
) -> None:
    """Stores what a stretch of the log tells; what is there is left alone. `labels`: what versions are called, by digest."""
    versions = [
        (namespace, name, digest, labels.get(digest, ""), at_ms, run, by)
        for name, digest, run, at_ms, by in rows.versions
    ]
    told = [(namespace, *(getattr(one, name) for name in _PATCH)) for one in rows.patches]
    asked = [
        (
            namespace,
            one.run,
            one.step,
            one.seq,
            one.opened_ms,
            one.title,
            one.digest,
            "pending",
            0,
            "",
            "",
            one.asked,
            b"",
        )
        for one in rows.asked
    ]
    for table, values in ((definitions, versions), (patches, told), (approvals, asked)):
        if values:
            await bulk.insert(connection, table, values, update=False)
    for decided in rows.decided:
        await _write_decision(connection, namespace, decided)
    for letter in rows.letters:
        await _write_letter(connection, namespace, letter)
    if rows.schedules:
        await schedules.tell_acts(connection, namespace, chain, rows.schedules)
    await acts.add(connection, namespace, chain, rows.deeds)


async def _write_decision(connection: AsyncConnection, namespace: str, decided: DecidedRow) -> None:
    # The newest time it was asked: a run that is retried asks again.
    mine = (
        approvals.c.namespace == namespace,
        approvals.c.run == decided.run,
        approvals.c.step == decided.step,
        approvals.c.decided_ms == 0,
        approvals.c.digest == decided.digest,
    )
    await connection.execute(
        approvals.update()
        .where(*mine)
        .values(
            status=decided.status,
            decided_ms=decided.decided_ms,
            decided_by=decided.by,
            via=decided.via,
            decision=decided.decision,
        )
    )


async def _write_letter(connection: AsyncConnection, namespace: str, letter: LetterRow) -> None:
    await bulk.insert(connection, letters, [(namespace, letter.run, "", "", "", letter.at_ms, 0)], update=False)
    values: dict[str, Any] = {"at_ms": letter.at_ms}
    if letter.what == "replay":
        values["replayed_as"] = str(letter.detail["replayed_as"])
    elif letter.what == "investigate":
        note = str(letter.detail["note"]).replace("\0", "\\0")
        values |= {"note": note, "investigated_by": letter.by if note else ""}
    elif letter.what == "retry":
        values["replayed_as"] = str(letter.detail["retried_as"])
    else:
        values["purged_ms"] = letter.at_ms
    await connection.execute(
        letters.update().where(letters.c.namespace == namespace, letters.c.run == letter.run).values(**values)
    )


async def reserve_replay(
    database: Database, namespace: str, run: str, fresh: str, deed: Deed, *, force: bool
) -> tuple[str, bool]:
    """Notes as which run a dead letter is replayed, unless it was before; returns that run, and whether it was noted now."""
    mine = (letters.c.namespace == namespace, letters.c.run == run)
    async with database.writing() as connection:
        await bulk.insert(connection, letters, [(namespace, run, "", "", "", deed.at_ms, 0)], update=False)
        # Taken by a write: whoever comes second waits, and sees it.
        await connection.execute(letters.update().where(*mine).values(run=run))
        found = str((await connection.execute(select(letters.c.replayed_as).where(*mine))).scalar_one())
        if found and not force:
            return found, False
        await connection.execute(letters.update().where(*mine).values(replayed_as=fresh, at_ms=deed.at_ms))
        await acts.add(connection, namespace, OWN_CHAIN, [deed])
    return fresh, True


# --- reading --------------------------------------------------------------------------------------


async def read_patches(
    database: Database, namespace: str, *, run: str | None, author: str | None, before_ms: int | None, limit: int
) -> list[tuple[PatchRow, str]]:
    """Returns patches, the newest first, each with the step whose code made it, if one did: the audit has that."""
    source = patches.c.run + ":" + cast(patches.c.seq, String)
    same = (audit.c.namespace == namespace, audit.c.object == patches.c.run, audit.c.source == source)
    told = patches.outerjoin(audit, and_(*same, audit.c.via.startswith(BY_STEP)))
    columns = (*(patches.c[name] for name in _PATCH), audit.c.via.label("told_via"))
    query = select(*columns).select_from(told).where(patches.c.namespace == namespace)
    if run is not None:
        query = query.where(patches.c.run == run)
    if author is not None:
        query = query.where(patches.c.author == author)
    if before_ms is not None:
        query = query.where(patches.c.at_ms < before_ms)
    query = query.order_by(patches.c.at_ms.desc(), patches.c.run, patches.c.seq.desc()).limit(limit)
    async with database.reading() as connection:
        found = (await connection.execute(query)).all()
    return [_patch_row(dict(row._mapping)) for row in found]


def _patch_row(values: dict[str, Any]) -> tuple[PatchRow, str]:
    via = values.pop("told_via") or ""
    return PatchRow(**{**values, "operations": bytes(values["operations"])}), via.removeprefix(BY_STEP)


async def read_approval(database: Database, namespace: str, run: str, step: str) -> Any:
    """Returns the newest row of an approval, or None."""
    mine = (approvals.c.namespace == namespace, approvals.c.run == run, approvals.c.step == step)
    query = select(approvals).where(*mine).order_by(approvals.c.seq.desc()).limit(1)
    async with database.reading() as connection:
        return (await connection.execute(query)).first()


async def read_letter(database: Database, namespace: str, run: str) -> Any:
    """Returns what was done to a dead letter, or None."""
    query = select(letters).where(letters.c.namespace == namespace, letters.c.run == run)
    async with database.reading() as connection:
        return (await connection.execute(query)).first()


async def read_replays(database: Database, namespace: str, runs: Sequence[str]) -> dict[str, str]:
    """Returns as which runs dead letters were replayed; those that were not are left out."""
    mine = (letters.c.namespace == namespace, letters.c.run.in_(runs), letters.c.replayed_as != "")
    async with database.reading() as connection:
        found = await connection.execute(select(letters.c.run, letters.c.replayed_as).where(*mine))
        return {str(run): str(new) for run, new in found}


async def read_all_steps(database: Database, run: str) -> Sequence[StepState]:
    """Returns all steps of a run, in the order in which they were opened."""
    query = select(steps).where(steps.c.run == run).order_by(steps.c.created_ms, steps.c.step)
    async with database.reading() as connection:
        rows = (await connection.execute(query)).all()
    return [StepState(**{name: getattr(row, name) for name in _STEPS}) for row in rows]
