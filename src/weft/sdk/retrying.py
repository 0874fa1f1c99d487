"""Tries a failed or cancelled workflow run again, with the code at hand: what it did is kept, what failed is done again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from weft.core.again import began, culprit_of, is_failure, kept_places
from weft.core.flow import Told, is_flow
from weft.core.model import ERROR_DECODER, RunStatus
from weft.engine import flowretries as verbs
from weft.engine import retries
from weft.engine.pauses import checked_reason
from weft.engine.resolving import Stored
from weft.engine.runs import find
from weft.errors import Conflict, NonDeterminism, UserError, WeftError
from weft.sdk.program import Program
from weft.sdk.resolving import workflow_of
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.sdk.app import Weft
    from weft.sdk.workflow import Workflow


#: Milliseconds that a run which is tried again leaves its children to be there before it.
AHEAD_MS = 1_000
#: Milliseconds after it that they begin.
BEHIND_MS = 100

log = get_logger("weft.workflows")


async def retry(app: Weft, run: str, from_step: str | None = None, *, reason: str = "", by: str = "") -> str:
    """Does what `run.retry` says; returns the id of the new run."""
    return await _retry(app, run, from_step or "", checked_reason(reason), by or app.engine().actor)


async def _retry(
    app: Weft,
    run: str,
    from_step: str,
    reason: str,
    by: str,
    child_of: tuple[str, str] | None = None,
    delay_ms: int = 0,
) -> str:
    engine = app.engine()
    stored = await verbs.read_ended(engine, run)
    workflow = workflow_of(app, stored.row.spec.name)
    places, children = _choose(workflow, stored, from_step, engine.ns.partitions)
    # Failed children go on too, so that they are there when the code asks for them. A child that is not there starts over.
    delay_ms = delay_ms or (AHEAD_MS if children else 0)
    facts: Any = {"reason": reason, "by": by, "child_of": child_of, "delay_ms": delay_ms}
    new = await verbs.retry(engine, stored, places, **facts)
    for key, child in children.items():
        try:
            await _retry(app, child, "", reason, by, (new, key), delay_ms + BEHIND_MS)
        except UserError as error:
            log.info("a child of a workflow that is tried again begins anew", run=new, step=key, why=error.message)
    return new


async def retry_any(app: Weft, run: str, from_step: str | None, *, reason: str, by: str) -> tuple[str, list[str]]:
    """Tries a run of a graph or workflow again; returns the run that goes on, and of a graph the nodes that run anew."""
    engine = app.engine()
    if is_flow((await find(engine, run)).spec):
        return await retry(app, run, from_step, reason=reason, by=by), []
    return run, await retries.retry(engine, run, from_step=from_step, reason=checked_reason(reason), by=by)


def _choose(
    workflow: Workflow[Any, Any], stored: Stored, from_step: str, partitions: int
) -> tuple[list[int], dict[str, str]]:
    """Returns the entries that the new run begins with: its code, told these, waits for what is to be done again.

    Also the children among that, by the command that each is.
    """
    row, entries = stored.row, stored.entries
    if from_step and from_step not in began(entries):
        known = ", ".join(began(entries)[-10:]) or "none"
        raise Conflict(f"run {row.id} never began step {from_step}; it began {known}", run=row.id)
    again: set[str] = set()
    if not from_step and row.text("status") == RunStatus.FAILED:
        again = {culprit_of(entries, ERROR_DECODER.decode(row.fields["error"]))} - {""}
    while True:
        places = kept_places(entries, again, from_step)
        if not places or all(entries[i].type != "begin" for i in places):
            return [], {}  # nothing was done: it begins anew
        program = _told(workflow, stored, places, again, partitions)
        error = _error_of(program)
        children = {key: one.work[0] for key in again if (one := program.commands.get(key)) and one.kind == "child"}
        program.close()
        if error is None:
            return places, children
        # The code ends as it did. Failures that it was told of may be why.
        others = set() if from_step else _failures_in(error) - again
        if not others:
            told = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise Conflict(
                f"run {row.id} would end as it did, with {told}. No step of it failed, its code did: mend that first, or start"
                f" it anew, by `weft dlq replay {row.id}`",
                run=row.id,
            )
        again |= others


def _told(workflow: Workflow[Any, Any], stored: Stored, places: list[int], again: set[str], partitions: int) -> Program:
    run, told = stored.row.id, Told([stored.entries[i] for i in places])
    try:
        return workflow.retrace(run, stored.row.spec, stored.data, told, partitions=partitions)
    except NonDeterminism as error:
        failed = next((i for i, entry in enumerate(stored.entries) if _ends_run(stored, i) or entry.key in again), None)
        did = began(stored.entries[failed:]) if failed is not None else []
        reacted = [key for key in did if key not in again]
        if not reacted:
            raise Conflict(f"run {run} cannot be tried again with this code. {error.message}", run=run) from None
        raise Conflict(
            f"run {run} did {', '.join(reacted[:5])} because it failed or was cancelled: to go on as if it had not would mix"
            f" both. Retry from a step before that, or start it anew, by `weft dlq replay {run}`",
            run=run,
            did=reacted,
        ) from None


def _ends_run(stored: Stored, i: int) -> bool:
    entry = stored.entries[i]
    return entry.type == "cancel" or (is_failure(entry) and stored.row.text("status") == RunStatus.FAILED)


def _error_of(program: Program) -> BaseException | None:
    """Returns what the code fails with, told what it was told; None: it goes on, or has a result."""
    main = program.main
    if main is None or not main.done():
        return None
    return asyncio.CancelledError() if main.cancelled() else main.exception()


def _failures_in(error: BaseException | None, depth: int = 20) -> set[str]:
    """Returns the steps, calls and children whose failures made an error: itself, or what it is about or comes from."""
    if error is None or not depth:
        return set()
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    own = {str(error.facts["step"])} if isinstance(error, WeftError) and "step" in error.facts else set()
    return own.union(*(_failures_in(one, depth - 1) for one in (*within, behind)))
