"""Runs of graphs within graph runs: a step starts a child, waits without a worker, and takes over how the child ended.

The step is put off while its child runs. When the child has ended, what puts it away lets the step go on at once; should that
be lost, the step looks by itself. The child's id follows from run, step and attempt: whoever starts it again starts the same.
"""

from __future__ import annotations

from typing import Any

import msgspec

from weft.codec import decode_plain
from weft.core.effects import run_of, step_of
from weft.core.graph.schema import check_input
from weft.core.model import ERROR_DECODER, ErrorRecord, Outcome, RunSpec, Token
from weft.core.steering import Sequel
from weft.engine import steps
from weft.engine.children import find_child
from weft.engine.definitions import definition_of
from weft.engine.holding import follow_pause
from weft.engine.keeping import definitions_below
from weft.engine.opening import prepare
from weft.engine.runs import result_at
from weft.errors import Conflict, InvalidArguments, NotFound, WeftError
from weft.store.controls import informed
from weft.store.graphs import start_graph
from weft.store.namespace import Namespace
from weft.store.runs import RunRow, read_runs, reschedule_run

#: Milliseconds after which a step looks after its child by itself: the first time, and at most.
LOOK_MS, MAX_LOOK_MS = 5_000, 300_000
#: Milliseconds a child is kept at least once it has ended: longer than workers may be away.
CHILD_KEEP_MS = 24 * 3_600_000


async def tend_child(ns: Namespace, p: int, token: Token, started_ms: int) -> Outcome:
    """Starts the child of a step, or tells how it ended; while it runs, the step is put off."""
    own = (await read_runs(ns, p, [token.run]))[0]
    born = 0 if own is None else own.number("born", 0)
    child, row = await find_child(ns, p, run_of(token.run), step_of(token.run), token.attempt, since_ms=born)
    if row is None:
        try:
            await _launch(ns, p, token, child)
        except WeftError as error:
            if error.retryable:
                raise
            record = ErrorRecord(type(error).__name__, str(error), code=error.code)
            return steps.concluded(token, Sequel("fail", record), started_ms)
        row, above = await read_runs(ns, p, [child, run_of(token.run)])  # one that has nothing to do has ended at once
        if row is not None and row.open and above is not None and "paused" in above.fields:
            await follow_pause(ns, p, row, above)  # who paused the run may not have seen the child
    if row is None or row.open:
        wait_ms = min(LOOK_MS << min(token.delivery - 1, 10), MAX_LOOK_MS)
        return Outcome(token, "snoozed", f"waits for run {child}".encode(), wait_ms, started_ms)
    return await _ended(ns, p, token, row, row.number("born", started_ms))


async def _launch(ns: Namespace, p: int, token: Token, child: str) -> None:
    asked: dict[str, Any] = decode_plain(await steps.input_bytes(ns, token))
    published = await definition_of(ns, p, asked["definition"])
    if wrong := check_input(published.plan.spec.input, asked["input"]):
        raise InvalidArguments(f"what `with` gives does not fit graph {asked['graph']}: {'; '.join(wrong)}")
    above = (await read_runs(ns, p, [run_of(token.run)]))[0]
    if above is None:
        return
    spec = RunSpec(
        asked["graph"],
        definition=published.address,
        keep_ms=max(above.spec.keep_ms, CHILD_KEEP_MS),
        deadline_ms=asked["timeout_ms"],
        tags=above.spec.tags,
    )
    new, effects, result = await prepare(ns, p, child, published, spec, asked["input"])
    below, parent, by = await definitions_below(ns, p, published), (token.run, token.ledger), f"run {token.run}"
    word = await informed(
        ns,
        p,
        lambda: start_graph(ns, p, new, effects, definition=b"", result=result, by=by, parent=parent, below=below),
    )
    if word == "no_definition":
        raise NotFound(f"the definition cas://sha256:{published.address} of graph {spec.name} is gone from the store")


async def _ended(ns: Namespace, p: int, token: Token, row: RunRow, started_ms: int) -> Outcome:
    status = row.text("status")
    if status == "completed":
        data = await result_at(ns, p, row.id, row.fields["result"])
        return await steps.completed(ns, token, data, started_ms)
    record = ERROR_DECODER.decode(row.fields["error"])
    told = msgspec.structs.replace(record, message=f"run {row.id}: {record.message}")
    # Somebody wanted it to end: another attempt would go against that.
    return steps.concluded(token, Sequel("fail" if status == "cancelled" else "retry", told), started_ms)


async def tell_parent(ns: Namespace, p: int, row: RunRow, *, by: str) -> bool:
    """Lets the step go on whose child has ended; False when it cannot be told now and must be later."""
    id = row.text("parent")
    above = (await read_runs(ns, p, [id]))[0] if id else None
    if above is None or not above.open:
        return True
    try:
        await reschedule_run(ns, p, id, "0", by=by)
    except Conflict:
        return False  # a worker has it in hand, and may have looked a moment too early
    except NotFound:
        return True
    return True
