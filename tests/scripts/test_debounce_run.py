"""debounce_run: a run that still waits gets newer arguments and waits anew; one that does not is left alone."""

import asyncio

import pytest

from weft.core.model import SPEC_ENCODER, RunSpec
from weft.ids import new_run_id
from weft.store.blobs import STAGING_MS, stage_blob
from weft.store.runs import NewRun, debounce_run, end_run, read_runs, start_runs
from weft.store.timers import fire_timers, read_specs


def call(part, run: str, *, data: bytes = b"", blob: str = "", deadline_ms: int = 0) -> NewRun:
    spec = RunSpec("job", input=data, blob=blob, delay_ms=5_000, deadline_ms=deadline_ms)
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
async def test_one_of_a_later_delivery_waits_anew_only_if_its_moment_was_asked_for(part):
    run = await waiting(part)
    due = part.timers()[f"open:{run}"]
    key = part.keys.run(part.p, run)
    part.raw.hset(key, "open", f"2:@{due}")

    assert await debounce(part, run, data=b"new") == "gone"

    part.raw.hset(key, "promised", "1")
    assert await debounce(part, run, data=b"new") == "waits"
    assert part.run(run)["open"] == f"2:@{part.timers()[f'open:{run}']}"


@pytest.mark.leaves("open runs")
async def test_its_deadline_counts_from_the_newer_call(part):
    run = await waiting(part)
    assert await debounce(part, run, deadline_ms=8_000) == "waits"
    first = part.timers()[f"deadline:{run}"]
    await part.advance(3_000)

    assert await debounce(part, run, deadline_ms=8_000) == "waits"

    assert part.timers()[f"deadline:{run}"] >= first + 3_000
    assert part.run(run)["deadline"] == str(part.timers()[f"deadline:{run}"])

    assert await debounce(part, run) == "waits"
    assert f"deadline:{run}" not in part.timers()
    assert "deadline" not in part.run(run)


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


# --- others that had read it before ---------------------------------------------------------------


async def moved(part, run: str) -> RunSpec:
    """Has a newer call move the run into another queue, and lets its new timer come due."""
    spec = RunSpec("job", queue="other", delay_ms=5_000, once="u")
    newer = NewRun(run, spec, SPEC_ENCODER.encode(spec), policy="j", unique="u", unique_ms=60_000)
    assert await debounce_run(part.ns, part.p, run, newer, by="c-2") == "waits"
    await part.advance(20_000)
    return spec


@pytest.mark.leaves("open runs")
async def test_a_timer_does_not_fire_by_what_was_read_before_the_newer_call(part):
    run = await waiting(part)
    await part.advance(5_001)
    ((old, ledger),) = await read_specs(part.ns, part.p, [run])
    spec = await moved(part, run)

    assert await fire_timers(part.ns, part.p, [(run, old)], seen={run: ledger}) == ["early"]
    assert part.stream() == []

    ((new, ledger),) = await read_specs(part.ns, part.p, [run])
    assert new.queue == spec.queue
    assert await fire_timers(part.ns, part.p, [(run, new)], seen={run: ledger}) == ["fired"]
    ((entry, _),) = part.stream("other")
    assert part.run(run)["open"] == f"1:{entry}"


@pytest.mark.leaves("open runs")
async def test_who_ends_it_by_what_was_read_before_the_newer_call_reads_again(part):
    run = new_run_id(part.p)
    spec = RunSpec("job", delay_ms=5_000, once="u")
    first = NewRun(run, spec, SPEC_ENCODER.encode(spec), policy="j", unique="u", unique_ms=60_000)
    assert await start_runs(part.ns, part.p, [first], by="c-1") == ["started"]
    (before,) = await read_runs(part.ns, part.p, [run])
    await moved(part, run)
    ((new, ledger),) = await read_specs(part.ns, part.p, [run])
    assert await fire_timers(part.ns, part.p, [(run, new)], seen={run: ledger}) == ["fired"]

    async def end(row) -> tuple[str, bool]:
        return await end_run(part.ns, part.p, row, kind="cancelled", value=b"\x80", keep_ms=1_000, by="c-3")

    assert await end(before) == ("again", False)
    (now,) = await read_runs(part.ns, part.p, [run])
    assert await end(now) == ("cancelled", True)
    assert part.stream("other") == []  # its token went with it


# --- large inputs ---------------------------------------------------------------------------------


async def with_blob(part, run: str, data: bytes, *, start: bool = False) -> bytes:
    """Calls with a large input; returns the key of its blob."""
    digest = await stage_blob(part.ns, part.p, run, data)
    new = call(part, run, blob=digest)
    if start:
        assert await start_runs(part.ns, part.p, [new], by="c-1") == ["started"]
    else:
        assert await debounce_run(part.ns, part.p, run, new, by="c-2") == "waits"
    return part.keys.blob(part.p, run, digest).encode()


@pytest.mark.leaves("open runs")
async def test_the_input_it_had_goes_and_the_new_one_stays(part):
    run = new_run_id(part.p)
    first = await with_blob(part, run, b"one" * 2000, start=True)
    second = await with_blob(part, run, b"two" * 2000)
    assert (part.raw.pttl(second), 0 < part.raw.pttl(first) <= STAGING_MS) == (-1, True)

    again = await with_blob(part, run, b"one" * 2000)
    assert again == first
    assert (part.raw.pttl(first), 0 < part.raw.pttl(second) <= STAGING_MS) == (-1, True)

    assert await with_blob(part, run, b"one" * 2000) == first  # the same once more
    assert part.raw.pttl(first) == -1

    assert await debounce(part, run, data=b"small") == "waits"
    assert 0 < part.raw.pttl(first) <= STAGING_MS


@pytest.mark.leaves("open runs")
async def test_of_many_calls_at_once_only_the_input_of_the_last_stays(part):
    run = new_run_id(part.p)
    keys = [await with_blob(part, run, b"first" * 2000, start=True)]
    keys += await asyncio.gather(*(with_blob(part, run, bytes([65 + n]) * 5000) for n in range(12)))
    (row,) = await read_runs(part.ns, part.p, [run])
    kept = [key for key in keys if part.raw.pttl(key) == -1]
    assert kept == [part.keys.blob(part.p, run, row.spec.blob).encode()]
