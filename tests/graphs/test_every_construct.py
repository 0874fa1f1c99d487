"""The graph of every construct comes to what its table says, and its events alone tell how it stands, at any moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from graphs.attending import ALLOWED, attend, input_of, site
from graphs.every import KEPT, MAYBE, NODES_COME_TO, RESULT, STEPS, declare_every
from graphs.folding import Stand, fold
from graphs.workload import declare
from weft import Weft
from weft.core.given import parse_given
from weft.ids import partition_of
from weft.store.keys import Keyspace
from weft.store.log import parse_entry


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in ALLOWED.items():
        monkeypatch.setenv(name, value)
    with site() as url:
        monkeypatch.setenv("WEFT_EGRESS_PORTS", url.split(":")[2].partition("/")[0])
        yield url


def declare_tasks(app: Weft) -> None:
    declare(app)

    @app.task
    async def slow(n: int, ms: int) -> int:
        await asyncio.sleep(ms / 1000)
        return n + ms


#: All that a run has, in one moment; the log as it stands, with all fields of its entries.
LOOK = """
return {redis.call('XRANGE', KEYS[1], '-', '+'), redis.call('HKEYS', KEYS[2]), redis.call('HGETALL', KEYS[3]),
  redis.call('HMGET', KEYS[4], 'status', 'result', 'error', 'open', 'failing', 'def', 'lone')}
"""


def read_at_once(raw: redis.Redis, keys: Keyspace, run: str) -> tuple[Stand, Stand]:
    """Reads a run's events and its keys in one moment; returns how it stands by the events, and by the keys."""
    p = partition_of(run)
    names = keys.log(p), keys.ledger(p, run), keys.context(p, run), keys.run(p, run)
    entries, ledger, context, hash = raw.eval(LOOK, 4, *names)
    status, result, error, open, failing, definition, lone = hash
    ledger += [lone.partition(b" ")[0]] if lone else []
    events = [event for entry, fields in entries for event in parse_entry(entry.decode(), fields) if event.run == run]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    given = {context[i].decode(): parse_given(context[i + 1]) for i in range(0, len(context), 2)}
    kept = Stand(
        {name: (one.status, one.step, one.value) for name, one in given.items()},
        open=set() if open.startswith(b"=") else {step.decode() for step in ledger},
        status=status.decode() if status else None,
        value=result or error or b"",
        failing=failing,
        definition=definition.decode(),
    )
    return fold(events), kept


def assert_same(folded: Stand, kept: Stand) -> None:
    assert (folded.status, folded.value) == (kept.status, kept.value)
    assert folded.given == kept.given
    assert folded.open == kept.open
    assert folded.failing == kept.failing


async def test_every_construct_comes_to_what_its_table_says(app: Weft, start_worker, put_away, url: str) -> None:
    declare_tasks(app)
    run = await declare_every(app).start(input_of(url))
    await start_worker(concurrency=20)

    await asyncio.wait_for(attend(app, run), 60)

    assert await run.result(10) == RESULT
    found = (await run.graph())["nodes"]
    assert found.keys() == NODES_COME_TO.keys()
    for id, (status, wanted) in NODES_COME_TO.items():
        output = found[id].get("output")
        assert found[id]["status"] == status, f"{id}: {found[id]}"
        assert wanted(output) if callable(wanted) else output == wanted, f"{id}: {found[id]}"
    events = await run.history()
    ends = Counter(event.step for event in events if event.type in ("step_completed", "step_failed"))
    assert {step for step in ends if not step.startswith(MAYBE)} == STEPS
    assert set(ends.values()) == {1}
    assert {event.step for event in events if event.type == "step_cached"} == KEPT
    assert [(letter.run_id, letter.step) for letter in await app.dlq.list()] == [(run.id, "lost")]
    await put_away()


async def test_events_fold_to_how_the_run_stands_at_any_moment(
    app: Weft, start_worker, raw, put_away, url: str
) -> None:
    declare_tasks(app)
    run = await declare_every(app).start(input_of(url))
    keys, looks = app.engine().ns.keys, 0
    assert_same(*read_at_once(raw, keys, run.id))
    await start_worker(concurrency=3)
    attending = asyncio.ensure_future(attend(app, run))

    while not attending.done():
        assert_same(*read_at_once(raw, keys, run.id))
        looks += 1
        await asyncio.sleep(0.003)

    await attending
    assert looks > 20
    assert_same(*read_at_once(raw, keys, run.id))
    await _items_are_told(app, run, raw)
    # Also those of the children: one of them undid what it had done, and failed.
    children = [info.id for info in await app.runs.list() if info.id != run.id]
    assert len(children) == 3
    folded = [read_at_once(raw, keys, child) for child in children]
    for one in folded:
        assert_same(*one)
    (trip,) = (stand for stand, _ in folded if stand.status == "failed")
    undone = {name for name in trip.given if name.endswith("!")}
    assert undone == {"flight!", "rooms#0!", "rooms#1!"} and trip.failing == trip.value
    await put_away()


async def _items_are_told(app: Weft, run: Any, raw: redis.Redis) -> None:
    """What the items of maps gave is in the events too, also of those that took a kept output."""
    from weft.store.graphs import read_results

    ns, p = app.engine().ns, partition_of(run.id)
    folded, _ = read_at_once(raw, ns.keys, run.id)
    for map, n in {"each": 2, "batches": 3, "some": 3, "memo": 3, "keyed": 4, "pairs": 2, "p_first": 3}.items():
        assert folded.items[map] == await read_results(ns, p, run.id, map, n)


async def test_events_of_a_run_that_was_patched_retried_and_forked_fold_too(app: Weft, start_worker, raw, put_away):
    declare(app)
    graph = app.graph("g")
    graph.task("a", "act", with_={"gives": "${input.n}"})
    graph.task("m", "act", after="a", map="[1, 2]", on_error="continue", with_={"gives": 1, "fails": "${index * 9}"})
    graph.transform("t", "${a + size(m)}", after="m")
    graph.task("z", "act", after="t", with_={"gives": "${t}", "fails": "${input.n}"})
    run = await graph.start({"n": 1})
    keys = app.engine().ns.keys
    node = {"type": "transform", "after": ["t"], "value": "${t * 2}"}
    await run.patch([{"op": "add", "path": "/nodes/more", "value": node}])
    await start_worker()
    with pytest.raises(Exception, match="fails"):
        await run.result(20)
    assert_same(*read_at_once(raw, keys, run.id))
    await put_away()

    await run.retry(from_step="t")
    with pytest.raises(Exception, match="fails"):
        await run.result(20)
    folded, kept = read_at_once(raw, keys, run.id)
    assert_same(folded, kept)
    assert folded.definition == kept.definition
    assert folded.given["more"][0] == "completed"

    fork = await run.fork("t", {"n": 0})
    assert await fork.result(20) is not None
    folded, kept = read_at_once(raw, keys, fork.id)
    assert_same(folded, kept)
    assert folded.given.keys() >= {"a", "m", "m*", "t", "z", "more"}
    await put_away()
