"""pause_run and resume_run: a gate before all steps of a graph run, set once and lifted once."""

import graph_runs
import msgspec
import pytest
from partition import ERROR

from weft.errors import Conflict, NotFound
from weft.ids import new_run_id
from weft.store import pauses
from weft.store.controls import read_controls
from weft.store.pauses import pause_run, resume_run
from weft.store.runs import end_run, read_runs


async def pause(part, run, **options):
    return await pause_run(part.ns, part.p, run, **{"by": "c-1", "reason": "why", "at_ms": 5, **options})


async def resume(part, run):
    return await resume_run(part.ns, part.p, run, by="c-2")


async def end(part, run):
    (row,) = await read_runs(part.ns, part.p, [run])
    await end_run(part.ns, part.p, row, kind="cancelled", value=ERROR, keep_ms=1000, by="c-3")


def controls(part):
    found = part.raw.hgetall(part.keys.controls(part.p))
    return {name.decode(): msgspec.json.decode(value) for name, value in found.items()}


@pytest.mark.leaves("open runs", "broken keys")
async def test_pausing_sets_a_control_tells_the_log_and_is_done_once(part):
    run = await graph_runs.start(part, "a")

    assert await pause(part, run) == ("paused", True)
    assert await pause(part, run, by="c-9") == ("paused", False)

    assert controls(part) == {f"run:{run}": {"by": "c-1", "reason": "why", "at_ms": 5}}
    assert (await read_controls(part.ns, part.p)).version == "1"
    last = part.events(run)[-1]
    assert (last.seq, last.type, last.by, last.payload) == (3, "paused", "c-1", b"why")
    assert part.run(run)["paused"].endswith(" c-1")


@pytest.mark.leaves("open runs", "broken keys")
async def test_resuming_lifts_it_and_has_the_line_looked_at(part):
    run = await graph_runs.start(part, "a")
    await pause(part, run)
    part.take_pebbles()

    assert await resume(part, run) == ("running", True)
    assert await resume(part, run) == ("running", False)

    assert controls(part) == {}
    assert "paused" not in part.run(run)
    assert part.raw.smembers(part.keys.admit(part.p)) == {f"run|{run}".encode()}
    assert part.timer_pebbles() == 1
    assert [(event.seq, event.type) for event in part.events(run)][2:] == [(3, "paused"), (4, "resumed")]


@pytest.mark.leaves("open runs", "broken keys")
async def test_what_has_ended_is_not_paused_and_leaves_no_control_when_it_is_resumed(part):
    run = await graph_runs.start(part, "a")
    await pause(part, run)
    await end(part, run)

    assert await resume(part, run) == ("cancelled", False)
    assert await pause(part, run) == ("cancelled", False)

    assert controls(part) == {}
    assert part.events(run)[-1].type == "cancelled"


@pytest.mark.leaves("open runs", "broken keys")
async def test_tasks_unknown_runs_and_too_many_pauses_are_refused_and_nothing_is_written(part, monkeypatch):
    (task,) = await part.start()
    run = await graph_runs.start(part, "a")
    monkeypatch.setattr(pauses, "MAX_CONTROLS", 0)

    with pytest.raises(Conflict, match="is one task"):
        await pause(part, task)
    with pytest.raises(NotFound):
        await pause(part, new_run_id(part.p))
    with pytest.raises(NotFound):
        await resume(part, new_run_id(part.p))
    with pytest.raises(Conflict, match="pause a queue or a task instead"):
        await pause(part, run)

    assert controls(part) == {}
    assert (await read_controls(part.ns, part.p)).version == "0"


@pytest.mark.leaves("open runs", "broken keys")
async def test_they_refuse_other_epochs(part, refuses_other_epochs):
    run = await graph_runs.start(part, "a")
    await refuses_other_epochs(lambda: pause(part, run))
    await refuses_other_epochs(lambda: resume(part, run))
