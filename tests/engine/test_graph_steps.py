"""What a step of a graph run knows about itself, and what it leaves with the run: log lines, progress, hooks, resources."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from weft import Depends, Fatal, InvalidOption, Weft, current
from weft.core.routing import Router
from weft.ids import partition_of


def about() -> dict:
    here = current()
    return {
        "run": here.run_id,
        "step": here.step,
        "task": here.task,
        "key": here.effect_key,
        "attempt": here.attempt,
        "fence": here.fence,
        "tags": dict(here.tags),
    }


async def test_a_step_knows_its_run_its_name_its_key_and_the_tags_of_both(app: Weft, start_worker):
    @app.task(tags={"team": "a", "size": "s"})
    async def look(item: int) -> dict:
        return about()

    graph = app.graph("g")

    @graph.node
    async def first() -> dict:
        return about()

    graph.task("each", look, after=first, map="[7, 8]")
    await start_worker()
    run = await graph.options(tags={"size": "m", "who": "me"}).start()

    assert await run.result(10)
    nodes = (await run.graph())["nodes"]
    one = nodes["first"]["output"]
    assert (one["run"], one["step"], one["task"], one["key"]) == (run.id, "first", "g.first", f"{run.id}/first/0/0")
    assert one["tags"] == {"size": "m", "who": "me"}
    each = nodes["each"]["output"]
    assert [(item["step"], item["task"]) for item in each] == [("each#0", "look"), ("each#1", "look")]
    assert [item["key"] for item in each] == [f"{run.id}/each/0/{i}" for i in range(2)]
    assert each[0]["tags"] == {"team": "a", "size": "m", "who": "me"}


async def test_the_effect_key_is_the_same_in_every_attempt_and_another_in_every_iteration(app: Weft, start_worker):
    seen: list[tuple[str, int, int]] = []
    graph = app.graph("g")

    @graph.node(retries=1, retry_delay="10ms", jitter=False)
    async def work(iteration: int) -> int:
        here = current()
        seen.append((here.effect_key, here.attempt, here.fence))
        if here.attempt == 1:
            raise ValueError("once more")
        return iteration

    graph.loop("again", after=work, to=work, while_="work < 1", max_iterations=3)
    await start_worker()
    run = await graph.start()
    await run.result(10)

    first, second = f"{run.id}/work/0/0", f"{run.id}/work/1/0"
    assert [(key, attempt) for key, attempt, _ in seen] == [(first, 1), (first, 2), (second, 1), (second, 2)]
    assert seen[0][2] < seen[1][2], "the fence rises with every delivery of a step"


async def test_lines_of_all_steps_stay_with_the_run_in_order_and_under_their_names(app: Weft, start_worker, raw, ns):
    graph = app.graph("g")

    @graph.node(retries=1, retry_delay="10ms", jitter=False)
    async def fetch() -> list:
        current().log.info("attempt %d", current().attempt, url="a")
        if current().attempt == 1:
            raise ValueError("not yet")
        return [1, 2]

    @graph.node(after=fetch, map="fetch", max_parallel=1)
    def each(item: int) -> int:
        current().log.warning("item %d", item)
        return item

    await start_worker()
    run = await graph.start()
    await run.result(10)

    lines = await run.logs()
    assert [(line.step, line.attempt, line.level, line.message) for line in lines] == [
        ("fetch", 1, "info", "attempt 1"),
        ("fetch", 2, "info", "attempt 2"),
        ("each#0", 1, "warning", "item 1"),
        ("each#1", 1, "warning", "item 2"),
    ]
    assert lines[0].fields == {"url": "a"} and lines[0].dropped == 0


async def test_lines_of_a_step_that_runs_on_are_there_once(app: Weft, start_worker, eventually):
    """A line leaves ahead of the step's end, and again with its commit when nobody knows whether it arrived."""
    go = asyncio.Event()
    graph = app.graph("g")

    @graph.node(timeout="1m")
    async def slow() -> None:
        current().log.info("begun")
        await go.wait()
        current().log.info("done")

    await start_worker()
    run = await graph.start()

    async def told() -> bool:
        return [line.message for line in await run.logs()] == ["begun"]

    await eventually(told)
    go.set()
    await run.result(10)
    assert [line.message for line in await run.logs()] == ["begun", "done"]


async def test_only_the_last_lines_of_a_large_map_are_kept_and_the_rest_is_counted(app: Weft, start_worker):
    graph = app.graph("g")

    @graph.node(map="input.items")
    async def each(item: int) -> int:
        current().log.info("item %d", item)
        return item

    await start_worker()
    run = await graph.start({"items": list(range(150))})
    await run.result(20)

    lines = await run.logs()
    assert len(lines) == 100 and lines[0].dropped == 50
    assert len({line.step for line in lines}) == 100


async def test_a_step_that_outlives_its_run_leaves_no_lines_behind(app: Weft, start_worker, raw, ns, eventually):
    """Its list was put away with the run: one that is made anew would stay for ever (the leak check looks for it)."""
    stay, stopped = asyncio.Event(), asyncio.Event()
    graph = app.graph("g")

    @graph.node
    async def bad() -> None:
        current().log.info("about to fail")
        await stay.wait()
        raise Fatal("no")

    @graph.node(timeout="1m")
    async def slow() -> None:
        stay.set()
        try:
            await asyncio.sleep(60)
        finally:
            current().log.info("too late")
            stopped.set()

    await start_worker()
    run = await graph.start()
    with pytest.raises(Exception, match="no"):
        await run.result(10)
    await asyncio.wait_for(stopped.wait(), 10)

    assert [line.message for line in await run.logs()] == ["about to fail"]
    key = ns.keys.tasklog(partition_of(run.id), run.id)

    async def expires() -> bool:
        return raw.pttl(key) > 0

    await eventually(expires)


async def test_progress_of_a_running_step_is_told_with_its_node(app: Weft, start_worker, eventually):
    go = asyncio.Event()
    graph = app.graph("g")

    @graph.node(timeout="1m")
    async def slow() -> str:
        current().progress(0.25, "a quarter")
        await go.wait()
        return "done"

    await start_worker()
    run = await graph.start()

    async def told() -> bool:
        node = (await run.graph())["nodes"]["slow"]
        return node.get("progress") == 0.25 and node["message"] == "a quarter" and node["status"] == "running"

    await eventually(told)
    go.set()
    assert await run.result(10) == "done"


async def test_hooks_are_called_around_every_step_of_a_graph(app: Weft, start_worker):
    told: list[tuple[str, str]] = []

    @app.before_task
    def before(here) -> None:
        told.append(("before", here.step))

    @app.after_task
    async def after(here, result) -> None:
        told.append(("after", f"{here.step}={result}"))

    @app.on_error
    def error(here, error) -> None:
        told.append(("error", f"{here.step}: {error}"))

    graph = app.graph("g")

    @graph.node
    async def one() -> int:
        return 1

    @graph.node(after=one, on_error="continue")
    def two(one: int) -> int:
        raise Fatal("no two")

    await start_worker()
    run = await graph.start()
    await run.result(10)

    assert told == [("before", "one"), ("after", "one=1"), ("before", "two"), ("error", "two: no two")]


async def test_a_hook_before_a_step_can_fail_its_node(app: Weft, start_worker):
    @app.before_task
    def guard(here) -> None:
        raise Fatal(f"{here.step} is not allowed")

    graph = app.graph("g")

    @graph.node
    async def one() -> int:
        return 1

    await start_worker()
    run = await graph.start()
    with pytest.raises(Exception, match="one is not allowed"):
        await run.result(10)
    assert (await run.graph())["nodes"]["one"]["status"] == "failed"


async def open_db() -> AsyncIterator[str]:
    yield "the database"


async def test_nodes_get_their_resources_and_name_only_the_other_parameters(app: Weft, start_worker):
    graph = app.graph("g")

    @graph.node
    async def load() -> int:
        return 4

    @graph.node(after=load)
    async def use(load: int, db: str = Depends(open_db)) -> str:
        return f"{load} from {db}"

    await start_worker()
    run = await graph.start()
    assert await run.result(10) == "4 from the database"


async def test_a_step_lists_what_its_run_has_given_so_far(app, start_worker):
    graph = app.graph("listing")
    graph.transform("one", 1)

    @graph.node(after="one")
    async def look() -> dict:
        found = app.runs.get(current().run_id)
        with pytest.raises(AttributeError, match=r"\(await app.runs.get\(id\)\).graph"):
            found.graph  # noqa: B018
        nodes = (await (await found).graph())["nodes"]
        return {id: (node["status"], node.get("output")) for id, node in nodes.items()}

    await start_worker()
    assert await (await graph.start()).result(10) == {"one": ["completed", 1], "look": ["running", None]}


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("delay", "1s", "begins at once; let the graph begin with a wait"),
        ("eta", None, "begins at once; let the graph begin with a wait"),
        ("queue", "q", "queue belongs to the nodes of a graph"),
        ("priority", 9, "priority belongs to the nodes of a graph"),
        ("retries", 3, "retries belongs to the nodes of a graph"),
        ("timeout", "1s", "timeout belongs to the nodes of a graph"),
        ("concurrency", 1, "has no option 'concurrency'; known are deadline"),
        ("tag", {}, "has no option 'tag': did you mean tags"),
    ],
)
async def test_options_that_a_start_of_a_graph_does_not_have_are_refused(app, option, value, text):
    graph = app.graph("g")
    graph.transform("one", 1)
    with pytest.raises(InvalidOption, match=text):
        graph.options(**{option: value})
    with pytest.raises(InvalidOption, match=text):
        await app.definitions.start("g", "1", **{option: value})


async def test_a_step_whose_sequel_cannot_be_decided_at_first_is_not_forgotten(app, start_worker, monkeypatch):
    """By something unforeseen: the run must neither stand still nor run the step again."""
    ran = []
    graph = app.graph("unforeseen")

    @graph.node
    async def first() -> int:
        ran.append("first")
        return 1

    graph.transform("second", "${first + 1}", after=first, when="first > 0")
    go, failures = Router.go, iter([KeyError("unforeseen")])

    def fail_once(router, jobs):
        for error in failures:
            raise error
        return go(router, jobs)

    run = await graph.start()
    monkeypatch.setattr(Router, "go", fail_once)
    await start_worker()

    assert await run.result(10) == 2
    assert ran == ["first"] and next(failures, None) is None
