"""Outputs of all types a task may return go on to what follows: by name as they are, through expressions in JSON form."""

import datetime as dt

import pydantic
import pytest

from weft import StepFailed, Weft

NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)


class Visit(pydantic.BaseModel):
    at: dt.datetime
    counts: dict[int, str] = {}


KINDS = {
    "moment": (dt.datetime, NOON),
    "moments": (list[dt.datetime], [NOON]),
    "model": (Visit, Visit(at=NOON, counts={7: "a"})),
    "keys": (dict[int, str], {1: "a"}),
    "dates": (dict[dt.datetime, int], {NOON: 1}),
    "bytes": (bytes, b"\x00\xff"),
    "bytes_in": (dict[int, bytes], {1: b"\x00\xff"}),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_an_output_of_any_type_is_an_argument_an_item_and_a_result(app: Weft, start_worker, kind):
    annotation, value = KINDS[kind]
    graph, undone = app.graph("g"), []

    @app.task
    async def undo(made: annotation) -> None:
        undone.append(made)

    @graph.node(compensate=undo)
    async def made() -> annotation:
        return value

    @graph.node(after=made)
    async def straight(made: annotation) -> annotation:
        return made

    @graph.node(after=straight, map="[made, straight]")
    async def each(item: annotation) -> annotation:
        assert item == value
        return item

    graph.gather("all", after=[made, each])

    @graph.node(after="all", with_={"one": "${made}"})
    def last(one: annotation, made: annotation, all: tuple[annotation, list[annotation]]) -> annotation:
        assert one == made == value
        assert all == (value, [value, value])
        return made

    @graph.node(after=last, when="input.fails")
    async def fails() -> None:
        raise ValueError("on purpose")

    await start_worker()

    assert await (await graph.start({"fails": False})).result(10) is None
    with pytest.raises(StepFailed, match="on purpose"):
        await (await graph.start({"fails": True})).result(10)
    assert undone == [value]


async def test_a_result_of_several_nodes_may_hold_moments(app: Weft, start_worker):
    graph = app.graph("g")

    @graph.node
    async def one() -> dt.datetime:
        return NOON

    @graph.node
    async def other() -> dict[int, str]:
        return {1: "a"}

    await start_worker()
    assert await (await graph.start()).result(10) == {"one": NOON, "other": {1: "a"}}


async def test_arguments_that_fit_neither_as_they_are_nor_from_json_say_what_was_there(app: Weft, start_worker):
    graph = app.graph("g")

    @graph.node
    async def made() -> str:
        return "no base64"

    @graph.node(after=made)
    async def takes(made: bytes) -> None: ...

    await start_worker()
    with pytest.raises(StepFailed, match="expected `bytes`, got `str` at `made`"):
        await (await graph.start()).result(10)


async def test_what_grows_deeper_with_each_turn_of_a_loop_fails_with_the_reason(app: Weft, start_worker):
    graph = app.graph("g")
    graph.gather("deep", after=["first", "deep_before"])
    graph.transform("first", 1)
    graph.transform("deep_before", "${[deep]}", after="first")
    graph.loop("again", after="deep", to="first", while_="true", max_iterations=500)
    await start_worker()
    with pytest.raises(StepFailed, match="nested deeper than 200 levels"):
        await (await graph.start()).result(30)


async def test_a_map_whose_results_are_too_large_together_has_failed_and_on_error_decides(app: Weft, start_worker):
    @app.task
    async def large() -> str:
        return "x" * 6_000_000

    careful = app.graph("careful")
    careful.task("each", large, map="[1, 2, 3]", on_error="continue")
    careful.transform("told", "${[status.each, errors.each.type]}", after="each")
    careless = app.graph("careless")
    careless.task("each", large, map="[1, 2, 3]")
    await start_worker()

    assert await (await careful.start()).result(20) == ["failed", "PayloadTooLarge"]
    run = await careless.start()
    with pytest.raises(StepFailed, match="the output of map each takes"):
        await run.result(20)
    node = (await run.graph())["nodes"]["each"]
    assert (node["status"], node["error"]["code"]) == ("failed", "payload_too_large")


async def test_a_dead_letter_of_a_step_is_replayed_with_what_expressions_gave_it(app: Weft, start_worker):
    broken = True

    @app.task
    async def read(data: bytes, at: dt.datetime) -> str:
        if broken:
            raise ValueError("not yet")
        return f"{len(data)} {at:%Y}"

    graph = app.graph("letters")

    @graph.node
    async def made() -> bytes:
        return b"\x00\xff"

    @graph.node
    async def at() -> dt.datetime:
        return NOON

    graph.task("read", read, after=[made, at], with_={"data": "${made}"}, on_error="dead_letter")
    await start_worker()
    run = await graph.start()
    assert await run.result(10) is None
    broken = False
    assert await (await app.dlq.replay(f"{run.id}/read")).result(10) == "2 2024"
