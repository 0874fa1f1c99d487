"""restore_graph: a graph run as its events tell it, which goes on or has ended."""

import msgspec
import pytest
from graph_steps import DIGEST, given, ledger, packed, step
from rebuilding import closed

from weft.core.fold import RunState
from weft.core.model import SPEC_ENCODER, ErrorRecord, RunSpec, Value
from weft.store.recovery import restore_graph

pytestmark = pytest.mark.leaves("history", "open runs")


def state(p: int) -> RunState:
    spec = SPEC_ENCODER.encode(RunSpec("flow", definition=DIGEST))
    return RunState(f"r{p}-G", kind="graph", seq=6, created_ms=5, deadline_ms=9_000_000_000_000, spec=spec)


async def restore(ns, p, *, opens=None, error=b""):
    a = b"completed a 1 2 3 -\n" + packed(Value(b"\x01"))
    return await restore_graph(
        ns,
        p,
        state(p),
        definition=DIGEST,
        revision=2,
        given={"a": a},
        opens=opens,
        error=error,
        keep_ms=60_000,
        by="me",
    )


async def test_it_goes_on_by_the_step_that_decides_from_what_nodes_gave(part, p):
    ns = await closed(part)
    run = f"r{p}-G"

    assert await restore(ns, p, opens=step("$recover6>")) == "restored"
    before = part.snapshot()
    assert await restore(ns, p, opens=step("$recover6>")) == "exists"

    assert part.snapshot() == before
    assert part.run(run)["open"] == "1:*" and part.run(run)["seq"] == "7" and part.run(run)["revision"] == "2"
    assert given(part, run) == {"a": "completed"} and ledger(part, run) == {"$recover6>"}
    assert [token["r"] for _, token in part.stream()] == [f"{run}/$recover6>"]
    assert list(part.timers()) == [f"deadline:{run}"]
    assert [(event.seq, event.type) for event in part.events(run)] == [(7, "recovered")]


async def test_what_cannot_go_on_has_ended_and_is_kept_for_a_retry(part, p):
    ns = await closed(part)
    run = f"r{p}-G"

    await restore(ns, p, error=msgspec.msgpack.encode(ErrorRecord("PartitionLost", "lost")))

    assert part.run(run)["open"] == "=1:*" and part.run(run)["status"] == "failed"
    assert 0 < part.ttl(run) <= 60_000 and given(part, run) == {"a": "completed"}
    assert ledger(part, run) == set() and list(part.timers()) == []
    assert [(event.seq, event.type) for event in part.events(run)] == [(7, "failed")]


async def test_only_its_rebuilder_writes_it(part, p, refuses_other_epochs):
    ns = await closed(part)

    await refuses_other_epochs(lambda: restore(ns, p, opens=step("$recover6>")))
