"""Runs that no live worker can do: they rest without a write, and what became of them is not forgotten."""

import pytest

from weft import Weft
from weft.engine.health import examine
from weft.engine.serving import Rousing, Serving, read_serving
from weft.ids import partition_of


@pytest.fixture
def resting(app, server, namespace, start_worker, raw, eventually):
    """Returns a run that rests, and the partition that it is in, beside a worker that does not know its task."""

    async def make(*, queue: str = "default"):
        @app.task(queue=queue)
        async def work(n: int) -> int:
            return n

        await start_worker(Weft("stranger", redis_url=server.url, namespace=namespace), queues=[queue])
        run = await work.enqueue(1)
        p = partition_of(run.id)
        index = app.engine().ns.keys.unserved(p)
        await eventually(lambda: raw.zcard(index))
        return run, p, index

    return make


@pytest.mark.leaves("open runs")
async def test_nothing_is_written_while_it_rests(app, resting, raw):
    run, p, index = await resting()
    ns, keys = app.engine().ns, app.engine().ns.keys
    rousing = Rousing(ns, p)

    def written():
        return (
            raw.xlen(keys.log(p)),
            raw.hgetall(keys.run(p, run.id)),
            raw.zrange(index, 0, -1),
            raw.zcard(keys.timers(p)),
        )

    before = written()
    for _ in range(3):
        assert await rousing.look(await read_serving(ns, p)) == 0
    assert written() == before
    (finding,) = [one for one in (await examine(app.engine())).findings if one.about == "resting"]
    assert (finding.level, finding.message) == ("warning", "1 runs rest: no live worker of queue default knows work")
    await run.cancel()


@pytest.mark.leaves("open runs")
async def test_a_run_that_is_rescheduled_waits_for_its_moment(app, resting, start_worker, raw, eventually):
    run, _, index = await resting()

    await run.reschedule(delay="1h")

    assert (await run.explain()).reason == "delayed"
    await start_worker()
    await eventually(lambda: not raw.exists(index))
    assert (await run.explain()).reason == "delayed" and await run.status() == "queued"
    await run.reschedule(delay=0)
    assert await run.result(20) == 1


async def test_a_run_that_ends_meanwhile_is_forgotten(resting, raw, eventually):
    run, _, index = await resting()
    await run.cancel(reason="nobody came")
    await eventually(lambda: not raw.exists(index))


async def test_many_needs_are_gone_through_one_after_the_other(app, raw, monkeypatch):
    monkeypatch.setattr("weft.engine.serving.MAX_NEEDS", 3)
    monkeypatch.setattr("weft.engine.serving.PAGE", 2)
    async with app:
        ns = app.engine().ns
        index = ns.keys.unserved(0)
        # No such runs: each look drops some, as if they had ended.
        raw.zadd(index, {f"default task{n:02} - 2 r0-{n}": 0 for n in range(10)})
        rousing = Rousing(ns, 0)
        for _ in range(6):
            assert await rousing.look(Serving([])) == 0
        assert not raw.exists(index)
