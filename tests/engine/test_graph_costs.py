"""What following a graph run costs, counted in Redis calls: time says nothing on a busy machine."""

import asyncio

import pytest

from weft import StepFailed, current
from weft.ids import partition_of

STEPS = 10


def calls_so_far(facts):
    return sum(about["calls"] for about in facts.values())


async def test_a_step_of_a_chain_takes_few_calls(app, raw, start_worker):
    graph = app.graph("chain")

    @app.task
    async def add(x: int) -> int:
        return x + 1

    for i in range(STEPS):
        graph.task(f"s{i}", add, with_={"x": f"${{s{i - 1}}}" if i else "${input.x}"}, after=[f"s{i - 1}"] if i else [])
    await start_worker(concurrency=50)
    await (await graph.start({"x": 0})).result(10)
    before = calls_so_far(raw.info("commandstats"))

    runs = await asyncio.gather(*[graph.start({"x": 0}) for _ in range(100)])
    results = await asyncio.gather(*[run.result(30) for run in runs])

    spent = calls_so_far(raw.info("commandstats")) - before
    assert results == [STEPS] * 100
    # 4, and what starting, claiming and the worker's own housekeeping take. One call more per step is 1,000 more here.
    assert spent < 100 * STEPS * 10


async def test_the_only_open_step_of_a_chain_stands_in_the_hash_of_its_run(app, raw, start_worker):
    graph, keys = app.graph("alone"), app.engine().ns.keys

    @app.task
    async def look() -> bool:
        run, step = current().run_id, current().step
        p = partition_of(run)
        assert not raw.exists(keys.run(p, f"{run}/{step}"), keys.ledger(p, run))
        return raw.hget(keys.run(p, run), "lone").startswith(step.encode() + b" 1:")

    for i in range(4):
        graph.task(f"s{i}", look, after=[f"s{i - 1}"] if i else [])
    await start_worker()
    before = {name: about["calls"] for name, about in raw.info("commandstats").items()}
    run = await graph.start()

    assert await run.result(10) is True
    # Presumed to stand alone and found so: nothing went the long way, and nothing had to be unfolded.
    spent = {name: about["calls"] - before.get(name, 0) for name, about in raw.info("commandstats").items()}
    assert spent.get("cmdstat_hsetnx", 0) == 0


async def test_a_step_that_fails_once_goes_on_by_the_ledger(app, raw, start_worker):
    graph, keys, tries = app.graph("again"), app.engine().ns.keys, []

    @app.task(retries=1)
    async def shaky() -> int:
        tries.append(1)
        if len(tries) == 2:
            raise ValueError("once")
        return len(tries)

    @app.task
    async def look() -> bool:
        run, step = current().run_id, current().step
        p = partition_of(run)
        return raw.hkeys(keys.ledger(p, run)) == [step.encode()] and bool(raw.exists(keys.run(p, f"{run}/{step}")))

    for i in range(3):
        graph.task(f"s{i}", shaky, after=[f"s{i - 1}"] if i else [])
    graph.task("last", look, after=["s2"])
    await start_worker()

    assert await (await graph.start()).result(20) is True
    assert len(tries) == 4


async def test_an_item_of_a_map_takes_few_calls(app, raw, start_worker):
    graph = app.graph("wide")

    @graph.node(map="input.xs")
    async def twice(item: int) -> int:
        return item * 2

    await start_worker(concurrency=100)
    await (await graph.start({"xs": [1]})).result(10)
    before = calls_so_far(raw.info("commandstats"))

    found = await (await graph.start({"xs": list(range(2_000))})).result(60)

    assert found == [i * 2 for i in range(2_000)]
    assert calls_so_far(raw.info("commandstats")) - before < 2_000 * 12


async def test_an_output_is_filled_in_where_the_last_node_ends(app, start_worker):
    graph = app.graph("told", output={"all": "${first + last}", "of": "${input.name}"})

    @graph.node
    async def first() -> int:
        return 1

    @graph.node(after=first)
    async def last(first: int) -> int:
        return first + 1

    await start_worker()
    run = await graph.start({"name": "x"})

    assert await run.result(10) == {"all": 3, "of": "x"}
    assert [event.step for event in await run.history()] == ["", "", "first", "last", ""]


async def test_a_large_output_and_one_that_cannot_be_filled_in_end_as_before(app, raw, start_worker, eventually):
    large = app.graph("large", output="${big + big}")
    wrong = app.graph("wrong", output="${small.missing}")

    @large.node
    async def big() -> str:
        return "x" * 3_000

    @wrong.node
    async def small() -> dict:
        return {}

    await start_worker()
    kept, failed = await large.start(), await wrong.start()

    assert await kept.result(10) == "x" * 6_000
    with pytest.raises(StepFailed, match="missing"):
        await failed.result(10)
    ns = app.engine().ns
    timers = [ns.keys.timers(p) for p in range(ns.partitions)]
    await eventually(lambda: not any(raw.zcount(key, 0, "+inf") for key in timers))


async def test_a_run_that_leaves_nothing_leaves_no_timer(app, raw, start_worker, eventually):
    graph = app.graph("tidy")

    @graph.node
    async def only() -> int:
        return 1

    await start_worker()
    run = await graph.start()
    await run.result(10)

    keys, p = app.engine().ns.keys, partition_of(run.id)
    assert not [name for name in raw.zrange(keys.timers(p), 0, -1) if run.id.encode() in name]
    for key in (keys.run(p, run.id), keys.context(p, run.id)):
        assert raw.pttl(key) > 0
    assert not raw.exists(keys.ledger(p, run.id))


async def test_large_values_of_a_plain_run_are_put_away(app, raw, start_worker, eventually):
    graph = app.graph("heavy")

    @graph.node
    async def big() -> str:
        return "x" * 10_000

    @graph.node(after=big)
    async def size(big: str) -> int:
        return len(big)

    await start_worker()
    run = await graph.start()
    assert await run.result(10) == 10_000

    def expires():
        keys = list(raw.scan_iter(f"*:blob:{run.id}:*"))
        return keys and all(raw.pttl(key) > 0 for key in keys)

    await eventually(expires)


async def test_arguments_that_do_not_fit_fail_their_node(app, start_worker):
    graph = app.graph("misfit")

    @graph.node
    async def first() -> dict:
        return {"n": 1}

    @graph.node(after=first, with_={"n": "${first.n.deeper}"})
    async def second(n: int) -> int:
        return n

    await start_worker()
    run = await graph.start()

    with pytest.raises(StepFailed, match="deeper"):
        await run.result(10)
    assert (await run.graph())["nodes"]["second"]["status"] == "failed"


async def test_a_plain_run_carries_its_tags_from_step_to_step(app, start_worker):
    graph = app.graph("tagged")

    @app.task
    async def one() -> dict[str, str]:
        return dict(current().tags)

    @app.task(tags={"team": "a"})
    async def two(one: dict[str, str]) -> list[dict[str, str]]:
        return [one, dict(current().tags)]

    @app.task
    async def three(two: list[dict[str, str]]) -> list[dict[str, str]]:
        return [*two, dict(current().tags)]

    for name, task, after in (("one", one, []), ("two", two, ["one"]), ("three", three, ["two"])):
        graph.task(name, task, after=after)
    await start_worker()

    for tags in ({}, {"who": "me"}):
        found = await (await graph.options(tags=tags).start()).result(10)
        assert found == [tags, {"team": "a", **tags}, tags]


async def test_log_lines_of_a_plain_run_expire_with_it(app, raw, start_worker, eventually):
    graph = app.graph("wordy")

    @graph.node
    async def say() -> int:
        current().log.info("something")
        return 1

    await start_worker()
    run = await graph.start()

    assert await run.result(10) == 1
    (key,) = await eventually(lambda: list(raw.scan_iter("*:tasklog:*")))
    await eventually(lambda: raw.ttl(key) > 0)


async def test_a_key_of_the_wrong_type_costs_its_own_run(app, raw, start_worker, eventually):
    graph = app.graph("two")

    @graph.node
    async def first() -> int:
        return 1

    @graph.node(after=first)
    async def second(first: int) -> int:
        return first + 1

    broken, fine = await graph.start(), await graph.start()
    key = app.engine().ns.keys.context(partition_of(broken.id), broken.id)
    raw.set(key, "x")
    await start_worker()

    assert await fine.result(10) == 2
    (repair,) = await eventually(lambda: list(raw.scan_iter("*:repair")))
    assert raw.zrange(repair, 0, -1) == [broken.id.encode()]
    raw.delete(key, repair)
    assert await broken.result(30) == 2
