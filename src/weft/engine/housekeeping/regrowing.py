"""Graph runs of a partition that is rebuilt: carried on from what their nodes gave, or ended for somebody to retry.

A run is carried on by itself when its events tell enough: tasks, requests, approvals, branches, joins and waits. What of it was
open begins anew. Maps, loops, subgraphs and compensation keep state that no event tells; such a run ends as failed, with all
that its nodes gave, and `retry` goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from weft.core.effects import Open, route_spec
from weft.core.model import VALUE_DECODER, ErrorRecord, RunSpec
from weft.core.patch import Ended
from weft.core.redo import plan_redo
from weft.core.regrow import Given, Regrown, doubts_of, regrow
from weft.core.routing import Published
from weft.engine.definitions import decode_bundle
from weft.engine.patches import ended_of
from weft.engine.steps import keep_failed_ms
from weft.store.graphs import Gave
from weft.store.recovery import Closed, restore_blob, restore_definition, restore_graph

if TYPE_CHECKING:
    from weft.archive.reader import ColdRun, Reader
    from weft.archive.recovery import Recovery

_pack = msgspec.msgpack.Encoder().encode


async def regrow_run(ns: Closed, p: int, archive: Recovery, reader: Reader, run: ColdRun, *, by: str) -> str:
    """Writes one graph run; returns `open`, `ended` (somebody must retry it) or `gap` (the archive has not all of it)."""
    state, spec = run.state, run.spec
    assert spec is not None
    found = regrow(spec.definition, await reader.events(state.id))
    data = await archive.blob(found.definition)
    if data is None:
        return "gap"
    published = Published(decode_bundle(data), found.definition)
    found.doubts += doubts_of(published)
    if not await _restore_values(ns, p, archive, run, found):
        return "gap"
    await restore_definition(ns, p, found.definition, data)
    opens, error = None, b""
    if found.doubts:
        message = (
            f"the store lost this run, which has {', '.join(found.doubts)}: it is not carried on by itself; retry it to go on"
            " from what is archived"
        )
        error = msgspec.msgpack.encode(ErrorRecord("PartitionLost", message, code="partition_lost"))
    else:
        opens = Open(f"$recover{state.seq}>", _route(published, found))
    await restore_graph(
        ns,
        p,
        state,
        definition=found.definition,
        revision=found.revision,
        given={node: one.pack() for node, one in found.given.items()},
        opens=opens,
        error=error,
        keep_ms=keep_failed_ms(spec),
        by=by,
    )
    return "ended" if error else "open"


def _route(published: Published, found: Regrown) -> RunSpec:
    """Returns what the step is asked that goes on: everybody who has ended reaches those that have not."""
    ended = {id: _ended(published, id, one) for id, one in found.given.items() if id in published.plan}
    jobs = plan_redo(published.plan, ended, None).jobs
    packed = _pack([(job.what, job.id, job.iterations, job.mark) for job in jobs])
    return msgspec.structs.replace(route_spec(published.address), input=packed)


def _ended(published: Published, id: str, one: Given) -> Ended:
    return ended_of(
        published.plan, id, Gave(one.status, one.step, one.attempt, one.started_ms, one.ended_ms, one.value)
    )


async def _restore_values(ns: Closed, p: int, archive: Recovery, run: ColdRun, found: Regrown) -> bool:
    """Writes the large values that the run has; returns False when the archive lacks one."""
    assert run.spec is not None
    digests = {run.spec.blob} | {
        VALUE_DECODER.decode(one.value).blob for one in found.given.values() if one.status == "completed"
    }
    for digest in digests - {""}:
        data = await archive.blob(digest)
        if data is None:
            return False
        await restore_blob(ns, p, run.state.id, digest, data, of_graph=True)
    return True
