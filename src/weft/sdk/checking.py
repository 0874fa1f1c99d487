"""Tells whether stored workflow runs fit the code at hand: their journals are replayed, nothing is written, no step runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from weft.core.flow import is_flow
from weft.engine.resolving import Row, Stored, read_archived, read_newest, read_stored
from weft.errors import NotFound, ResultExpired, WeftError

if TYPE_CHECKING:
    from weft.sdk.app import Weft

COMPATIBLE, NEEDS_PIN, BREAKS = "compatible", "needs pin", "breaks"


class Checked(msgspec.Struct, frozen=True):
    """Whether one stored run fits the code."""

    id: str
    run_id: str
    name: str
    status: str
    #: compatible, needs pin, or breaks.
    verdict: str
    #: The version of the code that went on last.
    version: str
    #: What does not fit, and where.
    text: str = ""


async def check_runs(app: Weft, *, last: int = 500, name: str | None = None, ended: bool = False) -> list[Checked]:
    """Replays the newest stored workflow runs against the code of an app; completed runs keep no journal."""
    found: list[Checked] = []
    async for row in _rows(app, name, ended):
        try:
            stored = await read_stored(app.engine(), row.id, row)
        except (NotFound, ResultExpired) as error:
            if row.open:  # one that ended meanwhile needs no code any more
                found.append(_checked(row, BREAKS, "", error.message))
            continue
        if stored.entries or row.open:
            found.append(_check(app, stored))
        if len(found) >= last:
            break
    return found


async def check_run(app: Weft, run: str) -> Checked:
    """Replays one workflow run against the code of an app, an archived or imported one too."""
    try:
        stored = await read_stored(app.engine(), run)
    except NotFound:
        stored = await read_archived(app.engine(), run)
    else:
        if not stored.row.open and not stored.entries:
            stored = await read_archived(app.engine(), run)
    return _check(app, stored)


async def _rows(app: Weft, name: str | None, ended: bool) -> AsyncIterator[Row]:
    async for row in read_newest(app.engine()):
        if is_flow(row.spec) and (row.open or ended) and name in (None, row.spec.name):
            yield row


def _check(app: Weft, stored: Stored) -> Checked:
    row, version = stored.row, stored.version
    spec = row.spec
    workflow = app.workflows.get(spec.name)
    if workflow is None:
        return _checked(row, BREAKS, version, f"app {app.name!r} has no workflow {spec.name!r}")
    if spec.version and spec.version not in workflow.versions:
        text = f"it is pinned to version {spec.version}, which this code does not have: keep a worker that has it"
        return _checked(row, NEEDS_PIN, version, text)
    if spec.version:
        workflow = workflow.versions[spec.version]
    # Pinning helps if the run last went on with other code than this.
    misfit = NEEDS_PIN if version and version != workflow.version and row.open else BREAKS
    try:
        program = workflow.retrace(row.id, spec, stored.data, stored.told)
    except WeftError as error:  # what it did does not fit, or what it was given
        return _checked(row, misfit, version, error.message)
    failed = program.done and program.main is not None and not program.main.cancelled() and program.main.exception()
    program.close()
    if failed and row.open and version != workflow.version:
        text = f"the code fails where the run is: {type(failed).__name__}: {failed}"
        return _checked(row, misfit, version, text)
    return _checked(row, COMPATIBLE, version)


def _checked(row: Row, verdict: str, version: str, text: str = "") -> Checked:
    status = row.text("status") or ("open" if row.open else "")
    return Checked(row.id, row.id, row.spec.name, status, verdict, version, text)
