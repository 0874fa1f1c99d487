"""The verb on graph runs that gives them a signal."""

from __future__ import annotations

from functools import partial
from typing import Any

from weft.codec import TypeCodec, encode_plain
from weft.core.flow import is_flow
from weft.core.fold import write_fact
from weft.engine import flows
from weft.engine.engine import Engine
from weft.engine.graphs import definition_of
from weft.engine.living import load_living
from weft.errors import Conflict, InvalidArguments, PayloadRefused, PayloadTooLarge
from weft.ids import check_key, check_name, new_id, partition_of
from weft.store.waits import MAX_KEPT, signal_run

#: Bytes that the value of a signal may take.
MAX_BYTES = 64 * 1024


async def signal(engine: Engine, run: str, name: str, value: Any, *, request_id: str | None, by: str) -> bool:
    """Gives a run of a graph or workflow a signal; returns whether it was waited for (False: it is kept until it is).

    A repeated call with the same request id changes nothing and answers the same. Raises NotFound for an unknown run,
    Conflict for one that has ended or has too many signals that nobody took.
    """
    check_name(name, what="signal")
    # As the log tells of it: after a loss of the store a repeated call is known by that.
    request = new_id("q") if request_id is None else write_fact(check_key(request_id, what="request_id"))
    data = pack(value, what=f"the value of signal {name}")
    row = await load_living(engine, run)
    if is_flow(row.spec):
        return await flows.signal(engine, row, name, data, request=request, by=by)
    await _check_name(engine, run, row.text("def"), name)
    p, step = partition_of(run), ""
    while True:
        give = partial(signal_run, engine.ns, p, run, name=name, value=data, step=step, request=request, by=by)
        words = await engine.insist(p, give)
        word, _, rest = words.partition(" ")
        if word == "ended":
            raise Conflict(f"run {run} has ended ({rest}): it takes no signal any more", run=run, status=rest)
        if word == "full":
            raise Conflict(f"run {run} has {MAX_KEPT} signals {name} that no step took yet: wait", run=run, name=name)
        if word != "again":
            return word == "given"
        step = rest


def pack(value: Any, *, what: str) -> bytes:
    """Returns the value of a signal or update: plain data, or a dataclass, model, datetime … as its own type has it.

    There is no annotation to go by; whoever receives it says what it is.
    """
    try:
        data = encode_plain(value, what=what)
    except PayloadRefused:
        if type(value) in (object, list, tuple, dict):
            raise
        data = TypeCodec(type(value), what=what).encode(value)
    if len(data) > MAX_BYTES:
        raise PayloadTooLarge(
            f"{what} takes {len(data)} bytes, at most {MAX_BYTES} go with one: store it elsewhere and send where it is"
        )
    return data


async def _check_name(engine: Engine, run: str, definition: str, name: str) -> None:
    """Refuses a signal that no step of the run will ever wait for: most likely a slip of the pen."""
    if not definition:
        raise InvalidArguments(f"run {run} is of a task: only runs of graphs and workflows take signals", run=run)
    published = await definition_of(engine.ns, partition_of(run), definition)
    known = sorted({node.signal for node in published.plan.spec.nodes.values() if node.signal is not None})
    if name not in known:
        graph = published.plan.spec.name
        there = f"it waits for {', '.join(known)}" if known else "it waits for none"
        raise InvalidArguments(f"graph {graph} waits for no signal {name}: {there}", run=run, name=name, signals=known)
