"""The verbs that carry a run from store to store: export it as one file, import it, tell its journal from its events."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from weft import __version__ as version
from weft.codec import decode_plain
from weft.core.carrying import FORM, MARK, Carried, Redaction, read_file, write_file
from weft.core.fold import Logged, definition_of
from weft.core.history import read_history
from weft.core.reflow import reflow
from weft.core.rows import TELLING, Rows, tell
from weft.engine.coldruns import as_row, cold_events, readable
from weft.engine.definitions import decode_bundle
from weft.engine.engine import Engine
from weft.engine.events import error_dict, event_of
from weft.engine.lag import migrate_database
from weft.engine.runs import find, input_of, load, result_bytes
from weft.errors import Conflict, FileRefused, NotFound
from weft.settings import read_setting
from weft.store.blobs import digest_of
from weft.store.runs import RunRow

#: Shortest text that counts as a secret: a shorter one would be found everywhere.
MIN_SECRET = 4
#: What environment variables with secrets begin with.
PREFIX = "WEFT_SECRET_"


async def export_run(engine: Engine, run: str) -> bytes:
    """Returns a finished, archived run as one file: events, values, definition; secrets are taken out of all of them."""
    row = await find(engine, run)
    if row.open:
        raise Conflict(f"run {run} has not ended: only ended runs are exported", run=run)
    if (
        not await readable(engine)
        or (found := await engine.cold.reader.run(run)) is None
        or (found.state.seq < row.number("seq", 1) or found.state.gap)
    ):
        raise Conflict(
            f"run {run} is not archived yet, or its archive has a gap: `weft doctor` tells how far it is", run=run
        )
    from weft.archive.carrying import read_values

    hidden = Redaction(_secrets())
    events = await engine.cold.reader.all_events(run)
    values = await read_values(engine.cold.database, run)
    shared = await _definitions(engine, row, events)
    clean, names = {}, {}
    for name, data in (values | shared).items():
        told = hidden.packed(data)
        names[name] = name if told == data or " " in name else digest_of(told)
        clean[names[name]] = told
    renamed = {old.encode(): new.encode() for old, new in names.items() if old != new}
    told_events = [_cleaned(event, hidden, renamed) for event in events]
    row = as_row(found)
    carried = Carried(
        mark=MARK,
        form=FORM,
        id=run,
        name=found.state.name,
        kind=found.state.kind,
        status=found.state.status,
        weft=version,
        exported_ms=int(datetime.now(UTC).timestamp() * 1000),
        input=hidden.value(await _shown(engine, row, "input")),
        result=hidden.value(await _shown(engine, row, "result")),
        error=hidden.value(error_dict(row.fields["error"])) if "error" in row.fields else None,
        history=hidden.value(
            [msgspec.to_builtins(event_of(event), enc_hook=str) for event in await cold_events(engine, run)]
        ),
        events=told_events,
        values={name: _renamed(data, renamed) for name, data in clean.items()},
        definitions=[names[name] for name in shared],
        redacted=hidden.n,
    )
    return write_file(carried)


async def import_run(engine: Engine, data: bytes) -> str:
    """Stores a run that a file brings in the archive; returns its id. Refused whole when anything of it is wrong."""
    carried, state, steps = read_file(data)
    for name, value in carried.values.items():
        if " " not in name and name not in carried.definitions and digest_of(value) != name:
            raise FileRefused(f"this file is damaged: the value {name[:64]} is not what its name says")
    if missing := _missing(carried, state.spec):
        raise FileRefused(f"this file is damaged: it has no {missing}")
    told = _told(carried)
    try:
        await load(engine, state.id)
    except NotFound:
        pass
    else:
        raise Conflict(f"this store has a run {state.id} already: nothing was imported", run=state.id)
    await migrate_database(engine.cold, apply=True)
    from weft.archive.carrying import write_run

    # Its idempotency key and its place among equal calls belong to the store it came from.
    state.claims_ms = 0
    async with engine.cold.turn:
        await write_run(
            engine.cold.database,
            engine.ns.keys.namespace,
            state,
            list(steps.values()),
            carried.events,
            carried.values,
            set(carried.definitions),
            told,
        )
    return state.id


def _told(carried: Carried) -> Rows:
    """Returns the patches and approvals of a run. What people did to it stands in the audit of the store it came from."""
    rows = Rows()
    try:
        for event in carried.events:
            if event.run == carried.id and event.type in TELLING:
                tell(rows, event)
    except (ValueError, msgspec.MsgspecError, KeyError) as error:
        raise FileRefused(f"this file is damaged: an event cannot be read: {error!r}") from None
    return Rows(patches=rows.patches, asked=rows.asked, decided=rows.decided)


async def cold_journal(engine: Engine, run: str) -> tuple[list[bytes], list[str]]:
    """Returns the journal of an archived workflow run, told by its events, and what in it cannot be told."""
    if not await readable(engine):
        return [], [f"there is no archive of run {run}"]
    found = reflow(read_history(run, await engine.cold.reader.all_events(run)))
    ends = ("completed", "failed", "cancelled")
    return found.journal, [doubt for doubt in found.doubts if not any(f"event {end}," in doubt for end in ends)]


async def _definitions(engine: Engine, row: RunRow, events: list[Logged]) -> dict[str, bytes]:
    """Returns the definitions that a run followed, and those below them."""
    line = {row.spec.definition} - {""}
    for event in events:
        line |= definition_of(event)
    found: dict[str, bytes] = {}
    while line:
        digest = line.pop()
        data = await engine.cold.reader.blob(digest)
        if data is None:
            continue
        found[digest] = data
        line |= {base.child for base in decode_bundle(data).steps.values() if base.child} - found.keys()
    return found


def _missing(carried: Carried, packed: bytes) -> str:
    from weft.core.model import SPEC_DECODER

    spec = SPEC_DECODER.decode(packed)
    if spec.definition and spec.definition not in carried.values:
        return f"definition {spec.definition}"
    return f"input {spec.blob}" if spec.blob and spec.blob not in carried.values else ""


async def _shown(engine: Engine, row: RunRow, what: str) -> Any:
    if what == "input":
        data = await input_of(engine, row)
        return decode_plain(data) if data else None
    return decode_plain(await result_bytes(engine, row.id, row.fields["result"])) if "result" in row.fields else None


def _cleaned(event: Logged, hidden: Redaction, renamed: dict[bytes, bytes]) -> Logged:
    payload = _renamed(hidden.packed(event.payload), renamed) if event.payload else b""
    return msgspec.structs.replace(event, payload=payload, facts=hidden.value(event.facts))


def _renamed(data: bytes, names: dict[bytes, bytes]) -> bytes:
    for old, new in names.items():
        data = data.replace(old, new)
    return data


def _secrets() -> list[str]:
    """Returns the secrets that this process can read: what is in none of them cannot be known to be one."""
    found = {value for name, value in os.environ.items() if name.startswith(PREFIX) and name != f"{PREFIX}KEY"}
    directory = read_setting("WEFT_SECRETS_DIR")
    if directory is not None and Path(directory).is_dir():
        for path in Path(directory).iterdir():
            if path.is_file():
                found.add(path.read_bytes().decode("utf-8", "replace").strip())
    return [text for text in found if len(text) >= MIN_SECRET]


__all__ = ["cold_journal", "export_run", "import_run"]
