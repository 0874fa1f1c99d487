"""debounce_run: a run that still waits gets newer arguments and waits anew; one that does not is left alone."""

import pytest

from weft.core.model import SPEC_ENCODER, RunSpec
from weft.ids import new_run_id
from weft.store.runs import NewRun, debounce_run, start_runs


def call(part, run: str, *, data: bytes = b"", blob: str = "") -> NewRun:
    spec = RunSpec("job", input=data, blob=blob, delay_ms=5_000)
    return NewRun(run, spec, SPEC_ENCODER.encode(spec), policy="j", unique="u", unique_ms=60_000)


async def waiting(part) -> str:
    run = new_run_id(part.p)
    assert await start_runs(part.ns, part.p, [call(part, run)], by="c-1") == ["started"]
    return run


async def debounce(part, run: str, **options) -> str:
    return await debounce_run(part.ns, part.p, run, call(part, run, **options), by="c-2")


@pytest.mark.leaves("open runs")
async def test_it_gets_the_newer_arguments_and_waits_anew(part):
    run = await waiting(part)
    before = part.timers()[f"open:{run}"]
    await part.advance(2_000)

    assert await debounce(part, run, data=b"new") == "waits"

    due = part.timers()[f"open:{run}"]
    assert due >= before + 2_000
    assert part.run(run)["open"] == f"1:@{due}"
    assert b"new" in part.run(run)["spec"]
    assert [event.type for event in part.events(run)] == ["queued", "debounced"]
    assert part.timer_pebbles() == 1


@pytest.mark.leaves("open runs")
async def test_one_that_no_longer_waits_is_left_alone(part):
    run = await waiting(part)
    part.raw.hset(part.keys.run(part.p, run), "open", "1:5-0")
    before = part.snapshot()
    assert await debounce(part, run) == "gone"
    assert part.snapshot() == before
    part.raw.hset(part.keys.run(part.p, run), "open", f"1:@{part.timers()[f'open:{run}']}")


@pytest.mark.leaves("open runs")
async def test_a_record_that_names_another_run_is_left_alone(part):
    run = await waiting(part)
    part.raw.set(part.keys.unique(part.p, "u"), "another", px=1000)
    assert await debounce(part, run) == "gone"


@pytest.mark.leaves("open runs")
async def test_an_input_that_is_gone_changes_nothing(part):
    run = await waiting(part)
    before = part.snapshot()
    assert await debounce(part, run, blob="0" * 64) == "blob_gone"
    assert part.snapshot() == before


@pytest.mark.leaves("open runs")
async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    run = await waiting(part)
    await refuses_other_epochs(lambda: debounce(part, run))
