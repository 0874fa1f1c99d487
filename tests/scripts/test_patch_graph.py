"""patch_graph: another definition for a run, if nothing has happened to it since the caller looked."""

import hashlib

import graph_runs
import pytest
from partition import ERROR

from weft.core.effects import Arrive, Open, route_spec
from weft.core.gates import run_gate
from weft.core.model import RunSpec
from weft.errors import NotFound, StaleControls
from weft.ids import new_run_id
from weft.store.controls import informed, read_controls, set_control
from weft.store.graphs import read_arrivals, read_open_steps
from weft.store.patches import patch_graph
from weft.store.pauses import pause_run
from weft.store.runs import end_run, read_runs

pytestmark = pytest.mark.leaves("open runs", "broken keys")

NEW = b'{"new": 1}'
DIGEST = hashlib.sha256(NEW).hexdigest()


async def patch(part, run, **options):
    given = {
        "definition": NEW,
        "revision": 1,
        "open_steps": await read_open_steps(part.ns, part.p, run),
        "withdraw": {},
        "reset": [],
        "opens": [],
        "payload": b"{}",
        "by": "c-1",
        **options,
    }
    return await patch_graph(part.ns, part.p, run, **given)


def nothing_changed(part, run):
    assert part.run(run)["def"] == graph_runs.DEFINITION
    assert not part.raw.exists(part.keys.ir(part.p, DIGEST))
    assert "patched" not in [event.type for event in part.events(run)]


async def test_the_run_follows_the_new_definition_and_the_log_tells(part):
    run = await graph_runs.start(part, "a", effects=[Arrive("j", "x+", 3)])
    opens = [Open("$patch2>", route_spec(DIGEST))]

    assert await patch(part, run, reset=["j"], opens=opens, payload=b'{"author":"me"}') == "patched"

    after = part.run(run)
    assert (after["def"], after["before"], after["revision"]) == (DIGEST, graph_runs.DEFINITION, "2")
    assert part.raw.get(part.keys.ir(part.p, DIGEST)) == NEW
    assert await read_arrivals(part.ns, part.p, run, "j") == {}
    assert set(await read_open_steps(part.ns, part.p, run)) == {"a", "$patch2>"}
    assert [entry["r"] for _, entry in part.stream("@routes")] == [f"{run}/$patch2>"]
    last = part.events(run)[-1]
    assert (last.seq, last.type, last.facts, last.payload) == (3, "patched", {"opened": "$patch2>"}, b'{"author":"me"}')


async def test_a_repeated_call_changes_nothing_more(part):
    run = await graph_runs.start(part, "a")
    assert [await patch(part, run), await patch(part, run)] == ["patched", "done"]
    assert part.run(run)["revision"] == "2"


async def test_another_revision_is_a_conflict(part):
    run = await graph_runs.start(part, "a")
    assert await patch(part, run, revision=4) == "conflict 1"
    nothing_changed(part, run)


@pytest.mark.parametrize("seen", [{}, {"a": 1}, {"b": 1}, "more"])
async def test_other_open_steps_than_the_caller_saw_refuse(part, seen):
    run = await graph_runs.start(part, "a")
    if seen == "more":
        seen = {**await read_open_steps(part.ns, part.p, run), "gone": 5}
    assert await patch(part, run, open_steps=seen) == "moved"
    nothing_changed(part, run)


async def test_a_step_that_the_pause_holds_is_taken_back(part):
    run = await graph_runs.start(part, "a")
    await pause_run(part.ns, part.p, run, by="c-1", reason="", at_ms=1)
    part.ns.controls[part.p] = await read_controls(part.ns, part.p)
    opens = [Open("b", RunSpec("job", definition=DIGEST))]
    assert await informed(part.ns, part.p, lambda: patch(part, run, opens=opens)) == "patched"
    assert part.run(f"{run}/b")["open"] == f"1:#{run_gate(run)}"

    assert await patch(part, run, revision=2, definition=b"{}", withdraw={"b": run_gate(run)}) == "patched"

    assert part.run(f"{run}/b") == {}
    assert part.raw.zcard(part.keys.line(part.p, run_gate(run))) == 0
    assert set(await read_open_steps(part.ns, part.p, run)) == {"a"}


async def test_a_step_that_nothing_holds_is_not_taken_back(part):
    run = await graph_runs.start(part, "a")
    assert await patch(part, run, withdraw={"a": run_gate(run)}) == "moved"
    nothing_changed(part, run)


async def test_what_has_ended_or_never_was_is_told(part):
    run = await graph_runs.start(part, "a")
    (row,) = await read_runs(part.ns, part.p, [run])
    await end_run(part.ns, part.p, row, kind="cancelled", value=ERROR, keep_ms=1000, by="c-3")
    assert await patch(part, run) == "ended cancelled"
    nothing_changed(part, run)
    with pytest.raises(NotFound):
        await patch(part, new_run_id(part.p), open_steps={})


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    run = await graph_runs.start(part, "a")
    await refuses_other_epochs(lambda: patch(part, run))


async def test_it_refuses_whoever_does_not_know_what_operators_set(part):
    run = await graph_runs.start(part, "a")
    await set_control(part.ns, part.p, "pause:queue|mail", {"by": "me"}, gates=[], queues=[])
    with pytest.raises(StaleControls):
        await patch(part, run)
    nothing_changed(part, run)
