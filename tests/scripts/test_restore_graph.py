"""restore_graph: a graph run as its events tell it, which goes on or has ended."""

import msgspec
import pytest
from graph_steps import DIGEST
from rebuilding import closed

from weft.core.fold import RunState
from weft.core.model import SPEC_ENCODER, ErrorRecord, RunSpec
from weft.store.recovery import restore_graph, write_plain

pytestmark = pytest.mark.leaves("history", "open runs")


def state(p: int) -> RunState:
    spec = SPEC_ENCODER.encode(RunSpec("flow", definition=DIGEST))
    return RunState(f"r{p}-G", kind="graph", seq=6, created_ms=5, deadline_ms=9_000_000_000_000, spec=spec)


async def restore(ns, p, *, error=b""):
    fields = {"def": DIGEST, "revision": 2}
    return await restore_graph(ns, p, state(p), fields=fields, error=error, keep_ms=60_000, by="me")


async def test_it_goes_on_and_is_written_once(part, p):
    ns = await closed(part)
    run = f"r{p}-G"

    await write_plain(ns, p, [("HSET", ns.keys.ledger(p, run), "a", 1)])
    assert await restore(ns, p) == "restored"
    before = part.snapshot()
    assert await restore(ns, p) == "exists"

    assert part.snapshot() == before
    assert part.run(run)["open"] == "1:*" and part.run(run)["seq"] == "7" and part.run(run)["revision"] == "2"
    assert part.run(run)["def"] == DIGEST and list(part.timers()) == [f"deadline:{run}"]
    assert [(event.seq, event.type) for event in part.events(run)] == [(7, "recovered")]


async def test_what_cannot_go_on_has_ended_and_is_kept_for_a_retry(part, p):
    ns = await closed(part)
    run = f"r{p}-G"
    await write_plain(ns, p, [("HSET", ns.keys.context(p, run), "a", b"completed a 1 2 3 -\n")])

    await restore(ns, p, error=msgspec.msgpack.encode(ErrorRecord("PartitionLost", "lost")))

    assert part.run(run)["open"] == "=1:*" and part.run(run)["status"] == "failed"
    assert 0 < part.ttl(run) <= 60_000 and list(part.timers()) == []
    assert [(event.seq, event.type) for event in part.events(run)] == [(7, "failed")]


async def test_only_its_rebuilder_writes_it(part, p, refuses_other_epochs):
    ns = await closed(part)

    await refuses_other_epochs(lambda: restore(ns, p))
