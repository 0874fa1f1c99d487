"""Graphs of every construct and workflows lose their store at random moments: they go on, and nothing archived runs again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from graphs.attending import ALLOWED, input_of, site
from graphs.every import RESULT, declare_every
from weft import Conflict, Context, NotFound, Weft, current
from weft.core.effects import effect_key
from weft.core.fold import read_facts
from weft.core.history import read_history
from weft.engine.cold import Cold
from weft.errors import Unavailable
from weft.ids import partition_of
from weft.store.graphs import parse_given
from weft.store.recovery import Closed, read_hot

pytestmark = pytest.mark.leaves("history", "open runs")


@pytest.fixture
def database_url(tmp_path) -> str:
    """SQLite only: what is looked at here is the store."""
    return f"sqlite:///{tmp_path / 'archive.sqlite'}"


@pytest.fixture
def url(monkeypatch):
    for name, value in ALLOWED.items():
        monkeypatch.setenv(name, value)
    with site() as found:
        monkeypatch.setenv("WEFT_EGRESS_PORTS", found.split(":")[2].partition("/")[0])
        yield found


class Losing:
    """An app whose store is wiped while archivers run; what its tasks did outside is kept here."""

    def __init__(self, app: Weft, raw: Any) -> None:
        self.app, self.raw = app, raw
        self.effects: list[str] = []
        self.cold = Cold(app.database(), app.engine().ns.keys.namespace)
        #: Steps that were archived as ended at a loss, and how often each had run by then.
        self.ended: dict[str, int] = {}

    def note(self) -> None:
        self.effects.append(current().effect_key)

    async def lose(self, run: str) -> None:
        """Wipes the store, notes what was archived as ended, and waits until it is rebuilt."""
        space = self.app.engine().ns
        keys = [*self.raw.scan_iter(match=f"{space.keys.namespace}:*")]
        ran = Counter(self.effects)
        if keys:
            self.raw.delete(*keys)
        for event in read_history(run, await self.cold.reader.all_events(run)).events:
            if event.type in ("step_completed", "step_failed", "step_cached"):
                key = effect_key(f"{run}/{read_facts(event.facts)['step']}", "")
                self.ended.setdefault(key, ran[key])
        closed = Closed(space, space.partitions)
        while any([(await read_hot(closed, p, "1-1")).epoch == 0 for p in range(space.partitions)]):
            await asyncio.sleep(0.02)

    async def until_finished(self, run: str, seconds: float = 90) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not await self.finished(run):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            keys, p = self.app.engine().ns.keys, partition_of(run)
            names = [name.decode() for name in self.raw.hkeys(keys.ledger(p, run))]
            steps = {name: self.raw.hgetall(keys.run(p, f"{run}/{name}")) for name in names}
            maps = {name: self.raw.hgetall(keys.map(p, run, name)) for name in names}
            pytest.fail(f"it does not end: {self.raw.hgetall(keys.run(p, run))}\n{steps}\n{maps}")

    async def finished(self, run: str) -> bool:
        found = await self.cold.reader.run(run)
        return found is not None and found.state.finished

    def nothing_ran_again(self) -> None:
        again = Counter(self.effects)
        assert {key: again[key] for key, n in self.ended.items() if again[key] != n} == {}


@pytest.fixture
async def losing(app, archive, archivers, raw):
    await archive()
    archiving = await archivers()
    for each in archiving:
        each.start()
    made = Losing(app, raw)
    yield made
    await asyncio.gather(*(each.stop() for each in archiving))
    await made.cold.close()


async def insisting(work: Callable[[], Any]) -> None:
    """Does something from outside, whatever the store is going through; what it does not know any more is left."""
    with contextlib.suppress(Conflict, NotFound, Unavailable):
        await work()


async def attend(app: Weft, run: Any, done: asyncio.Event) -> None:
    while not done.is_set():
        await insisting(lambda: run.signal("go", {"by": "bo"}, request_id="go"))
        with contextlib.suppress(NotFound, Unavailable):
            for asked in await app.approvals.list(run=run.id):
                await insisting(lambda asked=asked: app.approvals.approve(asked.id, by="ann", digest=asked.digest))
        await asyncio.sleep(0.05)


def declare_acts(app: Weft, losing: Losing, chance: random.Random) -> None:
    """Declares the tasks of the graph of every construct, which note what they do."""

    @app.task
    async def act(gives: Any, fails: int = 0) -> Any:
        losing.note()
        await asyncio.sleep(chance.random() * 0.03)
        if current().attempt <= fails:
            raise ValueError(f"attempt {current().attempt} of {fails} fails")
        return gives

    @app.task
    async def slow(n: int, ms: int) -> int:
        await asyncio.sleep(ms / 1000)
        return n + ms


async def wiped_graph(app: Weft, losing: Losing, start_worker, url: str, *, seed: int, wipes: int) -> None:
    chance = random.Random(seed)
    declare_acts(app, losing, chance)
    run = await declare_every(app).start(input_of(url))
    while await losing.cold.reader.run(run.id) is None:
        await asyncio.sleep(0.01)
    await start_worker(concurrency=4)
    done = asyncio.Event()
    attending = asyncio.create_task(attend(app, run, done))
    for _ in range(wipes):
        await asyncio.sleep(0.1 + chance.random() * 0.8)
        if await losing.finished(run.id):
            break
        await losing.lose(run.id)
    await losing.until_finished(run.id)
    done.set()
    await attending
    found = await losing.cold.reader.run(run.id)
    assert found is not None and found.state.status == "completed", found
    assert await run.result(10) == RESULT
    losing.nothing_ran_again()


def stand(raw: Any, keys: Any, p: int, runs: list[str]) -> dict[str, Any]:
    """Returns what the store has of open runs, as far as it is not a moment or a token."""
    found: dict[str, Any] = {}
    for run in runs:
        own = raw.hgetall(keys.run(p, run))
        if not own or own[b"open"].startswith(b"="):
            continue
        context = {name: (parse_given(one), one) for name, one in raw.hgetall(keys.context(p, run)).items()}
        ledger = sorted(raw.hkeys(keys.ledger(p, run)))
        maps = [name.decode() for name in ledger if raw.exists(keys.map(p, run, name.decode()))]
        found[run] = {
            "run": {name: own.get(name) for name in (b"spec", b"def", b"parent", b"failing", b"born")},
            "context": {name: (one.status, one.step, one.attempt, one.value) for name, (one, _) in context.items()},
            "ledger": ledger,
            "arrivals": raw.hgetall(keys.arrivals(p, run)),
            "undo": raw.lrange(keys.undo(p, run), 0, -1),
            "maps": {name: raw.hgetall(keys.map(p, run, name)) for name in maps},
            "items": {name: raw.hgetall(keys.items(p, run, name)) for name in maps},
            "results": {name: raw.hgetall(keys.results(p, run, name, 0)) for name in maps},
            "steps": {
                name: [
                    raw.hget(keys.run(p, f"{run}/{name.decode()}"), field) or b"1"
                    for field in ("spec", "attempt", "born")
                ]
                for name in ledger
            },
        }
    return found


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.chaos) for n in (2, 3))])
async def test_a_rebuilt_graph_run_has_what_it_had(app, archive, archivers, start_worker, raw, url, seed):
    losing, chance = Losing(app, raw), random.Random(seed)
    declare_acts(app, losing, chance)
    run = await declare_every(app).start(input_of(url))
    keys, p = app.engine().ns.keys, partition_of(run.id)
    done = asyncio.Event()
    worker = await start_worker(concurrency=3)
    attending = asyncio.create_task(attend(app, run, done))
    await asyncio.sleep(0.05 + 0.15 * seed + chance.random() * 0.1)
    done.set()
    await attending
    await worker.stop()
    await archive()
    runs = [key.decode().rpartition(":")[2] for key in raw.scan_iter(match=keys.run(p, "*")) if b"/" not in key]
    before = stand(raw, keys, p, runs)

    for key in [*raw.scan_iter(match=f"{keys.namespace}:*")]:
        raw.delete(key)
    for each in await archivers():
        assert await each._recover()

    after = stand(raw, keys, p, runs)
    assert after.keys() == before.keys()
    for one in before:
        for what, had in before[one].items():
            assert after[one][what] == had, (one, what)
    await losing.cold.close()


@pytest.mark.parametrize("seed", range(2))
async def test_a_graph_of_every_construct_whose_store_is_wiped(app, losing, start_worker, url, seed):
    await wiped_graph(app, losing, start_worker, url, seed=seed, wipes=2)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(10))
async def test_a_graph_of_every_construct_whose_store_is_wiped_again_and_again(app, losing, start_worker, url, seed):
    await wiped_graph(app, losing, start_worker, url, seed=seed + 100, wipes=4)


async def wiped_flow(app: Weft, losing: Losing, start_worker, *, seed: int, wipes: int) -> None:
    chance = random.Random(seed)

    async def charge(what: str) -> str:
        losing.note()
        await asyncio.sleep(chance.random() * 0.05)
        if what == "flaky" and current().attempt == 1:
            raise ValueError("once")
        return what + "!" * (9_000 if what == "large" else 1)

    @app.task(retries=1, retry_delay="10ms")
    async def pack(order: str) -> str:
        return await charge(order)

    @app.workflow
    async def below(ctx: Context, n: int) -> int:
        await ctx.step(charge, f"below {n}")
        await ctx.sleep("50ms")
        return n + 1

    @app.workflow
    async def order(ctx: Context, id: str) -> dict[str, Any]:
        paid = [await ctx.step(charge, f"{id} {i}") for i in range(3)]
        large = await ctx.step(charge, "large")
        flaky = await ctx.step(pack, "flaky")
        await ctx.sleep("80ms")
        packed = await asyncio.gather(ctx.call(pack, id), ctx.call(pack, "flaky"), ctx.child(below, 1))
        address = await ctx.receive("address", type=str)
        return {"paid": paid, "large": len(large), "flaky": flaky, "packed": packed, "address": address}

    run = await order.start("o")
    while await losing.cold.reader.run(run.id) is None:
        await asyncio.sleep(0.01)
    await start_worker(concurrency=4)
    for _ in range(wipes):
        await asyncio.sleep(0.05 + chance.random() * 0.5)
        await losing.lose(run.id)
    while not await losing.finished(run.id):
        await insisting(lambda: run.signal("address", "here", request_id="address"))
        await asyncio.sleep(0.05)
    assert await run.result(10) == {
        "paid": ["o 0!", "o 1!", "o 2!"],
        "large": 9_005,
        "flaky": "flaky!",
        "packed": ["o!", "flaky!", 2],
        "address": "here",
    }
    losing.nothing_ran_again()


@pytest.mark.parametrize("seed", range(2))
async def test_a_workflow_whose_store_is_wiped(app, losing, start_worker, seed):
    await asyncio.wait_for(wiped_flow(app, losing, start_worker, seed=seed, wipes=2), 90)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(10))
async def test_a_workflow_whose_store_is_wiped_again_and_again(app, losing, start_worker, seed):
    await asyncio.wait_for(wiped_flow(app, losing, start_worker, seed=seed + 100, wipes=5), 90)
