"""Dead letters that only the archive has, imported ones too: shown, replayed once, and known as replayed after a loss."""

from __future__ import annotations

import asyncio

import pytest

from weft import Conflict, Context, NotFound, StepFailed, Weft
from weft.engine import replaying

pytestmark = pytest.mark.leaves("history", "open runs")


def declare(app: Weft, healed: asyncio.Event):
    class Work:
        @app.task
        async def send(text: str, password: str = "") -> int:
            if not healed.is_set():
                raise KeyError("broken")
            return len(text)

        @app.workflow
        async def flow(ctx: Context, n: int) -> int:
            if not healed.is_set():
                raise KeyError("broken too")
            return n + 1

        graph = app.graph("mailing")

    @Work.graph.node
    async def bad() -> int:
        raise KeyError("broken")

    return Work


@pytest.fixture
def healed():
    return asyncio.Event()


@pytest.fixture
def work(app, healed):
    return declare(app, healed)


@pytest.fixture
def fail(start_worker, archive):
    async def run(*runs):
        await start_worker()
        for each in runs:
            with pytest.raises(StepFailed):
                await each.result(20)
        await archive()

    return run


@pytest.fixture
async def elsewhere(server, namespace, tmp_path):
    """Another store: another namespace with its own database, and a worker that can do the work."""
    other = Weft(
        "other",
        redis_url=server.url,
        namespace=f"{namespace}x",
        database_url=f"sqlite:///{tmp_path / 'other.sqlite'}",
    )
    ready = asyncio.Event()
    ready.set()
    declare(other, ready)
    async with other, other.worker():
        yield other
    import redis

    client = redis.Redis.from_url(server.url)
    for key in client.scan_iter(f"{namespace}x:*"):
        client.delete(key)
    client.close()


async def test_what_failed_elsewhere_is_imported_and_replayed_here(app, work, fail, elsewhere):
    runs = [await work.send.enqueue("x" * 6_000), await work.send.enqueue("abc"), await work.flow.start(4)]
    await fail(*runs)
    for run in runs:
        await elsewhere.runs.import_(await app.runs.export(run.id))

    letter = await elsewhere.dlq.get(runs[1].id)
    replays = [await elsewhere.dlq.replay(run.id) for run in runs]

    assert (letter.task, letter.error["type"], letter.input) == ("send", "KeyError", {"text": "abc"})
    assert [await run.result(20) for run in replays] == [6_000, 3, 5]
    assert [(await run.info()).replay_of for run in replays] == [run.id for run in runs]
    with pytest.raises(Conflict, match=f"replayed before, as {replays[1].id}"):
        await elsewhere.dlq.replay(runs[1].id)
    assert (await elsewhere.dlq.get(runs[1].id)).replayed_as == replays[1].id
    again = await elsewhere.dlq.replay(runs[1].id, force=True)
    assert await again.result(20) == 3
    entries = (await elsewhere.audit.list(action="letter.replay")).entries
    assert [entry.detail["replayed_as"] for entry in entries][::-1] == [run.id for run in (*replays, again)]
    assert (await elsewhere.audit.verify()).ok


async def test_arguments_without_their_secrets_are_not_replayed_unless_forced(app, work, fail, elsewhere):
    run = await work.send.enqueue("abc", password="pa55word!")
    await fail(run)
    await elsewhere.runs.import_(await app.runs.export(run.id))

    with pytest.raises(Conflict, match="secrets were taken out"):
        await elsewhere.dlq.replay(run.id)
    report = await elsewhere.dlq.replay_many(ids=[run.id])

    assert report.skipped == {run.id: "redacted"}
    assert await (await elsewhere.dlq.replay(run.id, force=True)).result(20) == 3


async def test_a_letter_that_the_store_let_go_is_replayed_once_by_many(app, work, fail, forget, healed):
    run = await work.send.enqueue("x" * 6_000)
    await fail(run)
    forget(run)
    healed.set()

    found = await asyncio.gather(*(app.dlq.replay(run.id) for _ in range(4)), return_exceptions=True)

    replays = {each.id for each in found if not isinstance(each, Exception)}
    assert len(replays) == 1 and {type(each) for each in found if isinstance(each, Exception)} <= {Conflict}
    assert await app.runs.get(replays.pop()).result(20) == 6_000


async def test_a_replay_that_died_before_its_start_is_gone_on_with(app, work, fail, forget, healed, monkeypatch):
    run = await work.send.enqueue("abc")
    await fail(run)
    forget(run)
    healed.set()
    engine, honest = app.engine(), app.engine().start_batch

    async def die(p, runs):
        raise RuntimeError("killed")

    monkeypatch.setattr(engine, "start_batch", die)
    with pytest.raises(RuntimeError):
        await app.dlq.replay(run.id)
    monkeypatch.setattr(engine, "start_batch", honest)
    reserved = (await app.dlq.get(run.id)).replayed_as

    again = await app.dlq.replay(run.id)

    assert again.id == reserved and await again.result(20) == 3
    with pytest.raises(Conflict, match="replayed before"):
        await app.dlq.replay(run.id)


async def test_many_are_replayed_from_either_store(app, work, fail, forget, healed):
    runs = [await work.send.enqueue("a" * n) for n in (1, 2, 3)]
    await fail(*runs)
    forget(runs[0])
    healed.set()

    report = await replaying.replay_many(
        app.engine(), [*(run.id for run in runs), "r0-01J9ZC5T0FQ8M2X7K4VNBW"], force=False
    )

    assert report.replayed.keys() == {run.id for run in runs}
    assert report.skipped == {"r0-01J9ZC5T0FQ8M2X7K4VNBW": "gone"}
    assert [await app.runs.get(report.replayed[run.id]).result(20) for run in runs] == [1, 2, 3]


async def test_what_was_purged_is_not_replayed_from_the_archive(app, work, fail, archive):
    run = await work.send.enqueue("abc")
    await fail(run)
    await app.dlq.purge(ids=[run.id])
    await archive()

    for verb in (app.dlq.get, app.dlq.replay):
        with pytest.raises(NotFound):
            await verb(run.id)


async def test_an_imported_letter_that_was_replayed_is_known_as_such_after_a_loss(
    app, work, fail, forget, raw, archivers
):
    run = await work.send.enqueue("abc")
    await fail(run)
    forget(run)
    replay = await app.dlq.replay(run.id)
    with pytest.raises(StepFailed):
        await replay.result(20)
    archiving = await archivers()
    for each in archiving:
        await each.drain()
    raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))

    for each in archiving:
        assert await each._recover()

    letters = {letter.id: letter.replayed_as for letter in await app.dlq.list()}
    assert letters == {run.id: replay.id, replay.id: ""}
    with pytest.raises(Conflict, match="replayed before"):
        await app.dlq.replay(run.id)


@pytest.mark.parametrize("hot", [True, False])
async def test_a_graph_is_not_replayed_as_if_it_were_a_task(app, work, fail, forget, quiet, hot):
    run = await work.graph.start()
    await fail(run)
    if not hot:
        await quiet()
        forget(run)

    with pytest.raises(Conflict, match="weft runs retry"):
        await app.dlq.replay(run.id)
    assert (await app.dlq.replay_many(ids=[run.id])).skipped == {run.id: "graph"}
