"""The archiver: every event once, rows and checkpoint together, whatever happens in between."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from weft import Discard, Retry, RunCancelled, Snooze, StepFailed
from weft.core.fold import Logged, RunState, fold
from weft.core.model import SPEC_ENCODER, RunSpec
from weft.engine.coldruns import fold_fields
from weft.errors import CheckpointMoved
from weft.store.archived import read_mark
from weft.store.runs import read_runs


def keys_of(rows):
    return [(row.run, row.seq, row.entry) for row in rows]


@pytest.fixture
def mixed(app):
    """Tasks that end in every way there is."""

    @app.task
    async def good(n: int) -> int:
        return n * n

    @app.task(retries=2, retry_delay="1ms", jitter=False)
    async def flaky(n: int) -> int:
        from weft import current

        if current().attempt < 2:
            raise ValueError(f"not yet {n}")
        return n

    @app.task
    async def bad(n: int) -> None:
        raise KeyError(n)

    @app.task
    async def large(n: int) -> str:
        return "x" * 10_000 + str(n)

    @app.task
    async def sleepy(n: int) -> int:
        from weft import current

        if current().delivery == 1:
            raise Snooze("1ms")
        if current().delivery == 2:
            raise Retry(after="1ms")
        return n

    @app.task
    async def dropped(n: int) -> None:
        raise Discard("not needed")

    return [good, flaky, bad, large, sleepy, dropped]


async def wait_all(runs):
    async def end(run):
        with contextlib.suppress(StepFailed, RunCancelled):
            await run.result(60)

    await asyncio.gather(*(end(run) for run in runs))


async def test_a_thousand_mixed_runs_are_archived_once_and_fold_to_the_hot_state(
    app, mixed, start_worker, archivers, rows, logged
):
    archiving = await archivers()
    for each in archiving:
        each.start()
    await start_worker(concurrency=50)
    runs = []
    for task in mixed:
        runs += await task.enqueue_many([(n,) for n in range(170)])
    runs += [await mixed[0].options(delay="1h").enqueue(n) for n in range(10)]
    for run in runs[-10:]:
        assert await run.cancel("changed my mind")
    await wait_all(runs)
    await asyncio.gather(*(each.stop() for each in archiving))

    last = await archivers()
    for each in last:
        await each.drain()

    # Every event, once.
    stored = keys_of(await rows("events"))
    assert len(stored) == len(set(stored)) and set(stored) == logged()
    # What folding gives is what the hot store has.
    ns = app.engine().ns
    states = {row.id: row for row in await rows("runs")}
    assert set(states) == {run.id for run in runs}
    payloads = {(row.run, row.seq): bytes(row.payload) for row in await rows("events")}
    for p in range(ns.partitions):
        ids = [run.id for run in runs if run.id.startswith(f"r{p}-")]
        for hot in await read_runs(ns, p, ids):
            _, _, *columns, rest, spec, value = states[hot.id]
            state = RunState.restore(columns, bytes(rest), bytes(spec), bytes(value))
            assert state.gap == 0 and state.value == payloads[hot.id, state.seq]
            folded = fold_fields(state, hot.spec, state.value)
            known = {name: value for name, value in hot.fields.items() if name in folded and name != "open"}
            known.setdefault("attempt", b"1")
            if hot.text("status") == "completed":
                known.pop("error", None)
            if known.get("started") == b"0":
                del known["started"]
            assert {name: value for name, value in folded.items() if name != "open"} == known
            assert folded["open"].startswith(f"={hot.delivery}:".encode())


async def test_two_archivers_at_once_store_everything_once(app, mixed, start_worker, archivers, rows, logged):
    await start_worker()
    pairs = [*await archivers(), *await archivers()]
    runs = await mixed[0].enqueue_many([(n,) for n in range(300)])

    async def insist(each):
        """Archives without a lease, as one would that does not know it has lost it."""
        for _ in range(40):
            try:
                await each.tick()
            except CheckpointMoved:
                each.on_fault()
            await asyncio.sleep(0.002)

    await asyncio.gather(wait_all(runs), *(insist(each) for each in pairs))
    for each in await archivers():
        await each.drain()

    stored = keys_of(await rows("events"))
    assert len(stored) == len(set(stored)) and set(stored) == logged()
    assert all(row.gap == 0 and row.status == "completed" for row in await rows("runs"))


async def test_the_checkpoint_is_the_last_entry_and_the_store_knows_it(app, mixed, start_worker, archive, rows, logged):
    await start_worker()
    await wait_all([await mixed[0].enqueue(n) for n in range(3)])

    assert await archive() == len(logged())
    assert await archive() == 0

    ns = app.engine().ns
    for row in await rows("checkpoints"):
        mark = await read_mark(ns, row.partition)
        assert (mark.entry, mark.lag_entries, mark.lag_ms) == (row.entry, 0, 0)


async def test_an_event_nobody_archived_yet_is_the_lag(app, mixed, start_worker, archive, one_home):
    await start_worker()
    await wait_all([await mixed[0].enqueue(1)])
    await archive()

    await wait_all([await mixed[0].enqueue(2)])

    mark = await read_mark(app.engine().ns, 0)
    assert mark.lag_entries == 2 and mark.lag_ms >= 0
    metrics = await app.queues.metrics()
    assert "weft_archive_lag_entries 2\n" in metrics and "weft_archive_lag_seconds " in metrics


@pytest.mark.leaves("history")
async def test_what_is_no_event_is_put_aside_and_its_run_has_a_gap(
    app, mixed, start_worker, archive, rows, raw, one_home
):
    await start_worker()
    good = await mixed[0].enqueue(1)
    await wait_all([good])
    key = app.engine().ns.keys.log(0)
    damage = [
        raw.xadd(key, {"at": "1", "by": "me", good.id: "3|progress||0.5 half", "r0-garbage": "no event"}),
        raw.xadd(key, {"at": "never", "by": "me"}),
        raw.xadd(key, {"at": "1", "by": "me", "r0-spec": b"1|queued||\xc1\xff"}),
    ]
    after = await mixed[0].enqueue(2)
    await wait_all([after])

    await archive()

    gaps = {row.run: row for row in await rows("gaps")}
    assert set(gaps) == {"r0-garbage", "", "r0-spec"}
    assert bytes(gaps["r0-spec"].raw) == b"\xc1\xff" and "queued" in gaps["r0-spec"].error
    states = {row.id: row for row in await rows("runs")}
    assert states["r0-garbage"].gap == states["r0-spec"].gap == 1
    assert states[after.id].gap == 0 and states[after.id].status == "completed"
    assert states[good.id].gap == 0 and b"0.5 half" in bytes(states[good.id].rest)
    raw.xdel(key, *damage)


@pytest.mark.leaves("history")
async def test_events_that_do_not_follow_on_are_never_folded(app, mixed, start_worker, archive, rows, raw, one_home):
    await start_worker()
    run = await mixed[0].enqueue(1)
    await wait_all([run])
    raw.xadd(app.engine().ns.keys.log(0), {"at": "1", "by": "me", run.id: "7|failed||"})

    await archive()

    (row,) = await rows("runs")
    assert (row.gap, row.seq, row.status) == (1, 7, "completed")


def test_a_state_with_a_gap_only_counts_on():
    state = RunState("r0-x", seq=3, status="waiting")
    fold(state, Logged("r0-x", 5, "1-0", "completed", 1, "", "", b""))
    fold(state, Logged("r0-x", 6, "2-0", "completed", 1, "", "", b""))
    assert (state.gap, state.seq, state.status) == (1, 6, "waiting")


def test_a_debounced_run_has_the_deadline_of_its_newest_call():
    state, spec = RunState("r0-x"), RunSpec("save", delay_ms=5_000, deadline_ms=8_000, debounced=True)
    fold(state, Logged("r0-x", 1, "1000-0", "queued", 1_000, "", "", SPEC_ENCODER.encode(spec)))
    assert state.deadline_ms == 9_000
    fold(state, Logged("r0-x", 2, "4000-0", "debounced", 4_000, "", "due=9000", SPEC_ENCODER.encode(spec)))
    assert (state.due_ms, state.deadline_ms) == (9_000, 12_000)


async def test_a_row_the_database_refuses_becomes_a_gap_and_its_neighbours_go_on(
    app, mixed, start_worker, archive, rows, monkeypatch, one_home
):
    from weft.archive import writer

    await start_worker()
    runs = [await mixed[0].enqueue(n) for n in range(5)]
    await wait_all(runs)
    # A column that must not be empty, in the middle of the batch.
    honest = writer._state_values
    monkeypatch.setattr(
        writer,
        "_state_values",
        lambda state: (None if state.id == runs[2].id and not state.gap else state.id, *honest(state)[1:]),
    )

    await archive()

    (gap,) = await rows("gaps")
    assert gap.run == runs[2].id and gap.error
    states = {row.id: row for row in await rows("runs")}
    assert states[runs[2].id].gap == 1
    assert all(states[run.id].status == "completed" for run in runs if run != runs[2])
