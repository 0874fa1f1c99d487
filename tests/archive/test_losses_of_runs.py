"""Graphs of every construct lose their store at random moments: they go on, and nothing archived runs again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from losing import Losing, insisting

from graphs.attending import ALLOWED, input_of, site
from graphs.every import RESULT, declare_every
from weft import NotFound, Weft, current
from weft.errors import Unavailable
from weft.ids import partition_of
from weft.store.graphs import parse_given
from weft.store.lone import parse_lone

pytestmark = [pytest.mark.leaves("history", "open runs"), pytest.mark.usefixtures("quick")]


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
        await losing.lose()
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
        # One that stands alone in the hash of its run gets a place of its own when it is rebuilt.
        alone = dict([parse_lone(own[b"lone"])]) if own.get(b"lone") else {}
        ledger = sorted([*raw.hkeys(keys.ledger(p, run)), *(name.encode() for name in alone)])
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
                    alone.get(name.decode(), {}).get(field)
                    or raw.hget(keys.run(p, f"{run}/{name.decode()}"), field)
                    or b"1"
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
@pytest.mark.parametrize("seed", range(20))
async def test_a_graph_of_every_construct_whose_store_is_wiped_again_and_again(app, losing, start_worker, url, seed):
    await wiped_graph(app, losing, start_worker, url, seed=seed + 100, wipes=1 + seed % 4)
