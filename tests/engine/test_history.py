"""Events of a run: gapless, live, resumable; progress on the way."""

import asyncio

import pytest

from weft import HistoryExpired, InvalidOption, current
from weft.core.model import RunSpec
from weft.ids import partition_of
from weft.store.log import trim_log
from weft.store.steps import claim_steps, report_steps


async def read_all(run, after=None) -> list:
    return [event async for event in run.events(after=after)]


async def test_a_history_tells_who_did_what_when(app, add, start_worker):
    worker = await start_worker()
    run = await add.enqueue(2, 3)
    await run.result(10)

    first, last = await run.history()

    assert (first.run_id, first.seq, first.type) == (run.id, 1, "queued")
    assert first.data["input"] == {"a": 2, "b": 3}
    assert (first.data["name"], first.data["queue"], first.data["by"]) == ("add", "default", app.engine().id)
    assert (last.seq, last.type, last.data["result"], last.data["by"]) == (2, "completed", 5, worker.session)
    assert first.at <= last.at
    assert last.terminal
    assert not first.terminal


async def test_live_events_arrive_as_they_happen_and_end_with_the_run(app, start_worker):
    gates = [asyncio.Event() for _ in range(2)]

    @app.task
    async def steps() -> str:
        for n, gate in enumerate(gates, start=1):
            current().progress(n / 2, f"step {n}")
            await gate.wait()
        return "done"

    await start_worker()
    run = await steps.enqueue()
    seen: list[str] = []

    async def follow() -> None:
        async for event in run.events():
            seen.append(event.type)
            if event.type == "progress":
                # Only what was seen lets the task go on: nothing is delivered late, at the end.
                gates[round(event.data["progress"] * 2) - 1].set()

    await asyncio.wait_for(follow(), 20)

    assert seen == ["queued", "started", "progress", "progress", "completed"]
    assert await run.result(10) == "done"


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 99])
async def test_events_can_be_resumed_after_any_of_them(app, start_worker, after):
    @app.task(retries=2, retry_delay="1ms")
    async def flaky() -> None:
        if current().attempt < 3:
            raise ValueError("no")

    await start_worker()
    run = await flaky.enqueue()
    await run.result(10)

    # Also after the last one: a client that reconnects then must not wait for ever.
    events = await asyncio.wait_for(read_all(run, after), 5)

    assert [event.seq for event in events] == [seq for seq in (1, 2, 3, 4) if seq > after]


async def test_many_readers_follow_one_run(app, start_worker):
    release = asyncio.Event()

    @app.task
    async def job() -> None:
        await release.wait()

    await start_worker()
    run = await job.enqueue()
    readers = [asyncio.create_task(read_all(run)) for _ in range(10)]
    while len(app.engine().waiting._news.get(run.id, ())) < 10:
        await asyncio.sleep(0)
    release.set()

    read = await asyncio.wait_for(asyncio.gather(*readers), 10)

    assert [[e.type for e in events] for events in read] == [["queued", "completed"]] * 10
    assert not app.engine().waiting._news


async def test_a_history_longer_than_the_run_has_pointers_for_is_read_from_the_log(app, ns, eventually):
    @app.task
    async def chatty() -> None: ...

    # Given a run that reported more often than its hash keeps pointers, between events of others.
    run = await chatty.enqueue()
    other = await chatty.options(queue="other").enqueue()
    p = partition_of(run.id)
    (token,) = await claim_steps(ns, p, session="s-1", queues=["default"], room=1)
    for n in range(300):
        await report_steps(ns, p, [(token, 1, f"0.5 {n}")], session="s-1")

    events = await run.history()

    assert [event.seq for event in events] == list(range(1, 303))
    assert events[-1].data["message"] == "299"
    await run.cancel()
    await other.cancel()


async def test_a_history_that_was_trimmed_says_so(app, ns, start_worker, raw):
    @app.task(retries=1, retry_delay="1ms")
    async def flaky() -> None:
        if current().attempt == 1:
            raise ValueError("no")

    await start_worker()
    run = await flaky.enqueue()
    await run.result(10)
    p = partition_of(run.id)
    assert await trim_log(ns, p, before_ms=0, limit=1000) == 0
    raw.xdel(ns.keys.log(p), raw.hget(ns.keys.run(p, run.id), "born"))

    with pytest.raises(HistoryExpired, match=r"has 3 events.*\[2, 3\]"):
        await run.history()
    # What it came to is still known.
    assert await run.status() == "completed"
    raw.delete(ns.keys.log(p))


# --- progress -------------------------------------------------------------------------------------


async def test_progress_shows_in_the_info_and_in_the_history(app, start_worker, eventually):
    release = asyncio.Event()

    @app.task
    async def job() -> None:
        await current().progress(0.4, "nearly | there, a=b")
        await release.wait()

    await start_worker()
    run = await job.enqueue()

    async def reported() -> bool:
        return (await run.info()).progress is not None

    await eventually(reported)
    info = await run.info()
    assert (info.status, info.progress, info.message) == ("running", 0.4, "nearly | there, a=b")
    assert info.started_at is not None
    release.set()
    await run.result(10)
    progress = next(e for e in await run.history() if e.type == "progress")
    assert (progress.data["progress"], progress.data["message"]) == (0.4, "nearly | there, a=b")


async def test_progress_from_a_thread_arrives_too(app, start_worker, eventually):
    import threading

    release = threading.Event()

    @app.task
    def job() -> None:
        current().progress(1)
        release.wait(30)

    await start_worker()
    run = await job.enqueue()

    async def reported() -> bool:
        return (await run.info()).progress == 1.0

    await eventually(reported)
    release.set()
    await run.result(10)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half", None])
async def test_progress_goes_from_zero_to_one(app, start_worker, fraction):
    @app.task
    async def job() -> str:
        try:
            current().progress(fraction)
        except InvalidOption as error:
            return str(error)
        return "accepted"

    await start_worker()

    assert "from 0 to 1" in await (await job.enqueue()).result(10)


async def test_a_message_that_is_no_valid_text_does_not_silence_the_reports_of_others(app, start_worker, eventually):
    release = asyncio.Event()

    @app.task
    async def job(message: bytes) -> None:
        current().progress(0.5, message.decode("utf-8", "surrogateescape"))
        await release.wait()

    await start_worker()
    odd = await job.enqueue(b"\xff\xfe")

    async def reported(run) -> bool:
        return (await run.info()).progress == 0.5

    await eventually(lambda: reported(odd))
    fine = await job.enqueue(b"fine")
    await eventually(lambda: reported(fine))
    release.set()
    await odd.result(10)
    await fine.result(10)


def test_a_run_spec_has_short_names_on_the_wire():
    from weft.core.model import SPEC_ENCODER

    assert len(SPEC_ENCODER.encode(RunSpec("add"))) < 10
