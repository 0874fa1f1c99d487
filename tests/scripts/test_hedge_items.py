"""hedge_items: an item that still runs gets a copy, once; who ends the item first wins, and the other changes nothing."""

import pytest
from graph_steps import begin, claim, commit, end, ledger, step
from partition import ERROR, RESULT

from weft.core.effects import Cursor, Fail, Failing, Scatter, Watch
from weft.errors import StaleControls
from weft.store.graphs import stage_items
from weft.store.hedges import hedge_items, read_running_ms
from weft.store.runs import read_runs

pytestmark = pytest.mark.leaves("open runs", "pending", "broken keys")


async def scattered(part, n=2, need=0):
    """Starts a run with a map of n items, all of them claimed; returns the run and their tokens."""
    run = await begin(part, step("a"))
    tokens = await claim(part)
    await stage_items(part.ns, part.p, run, "m", list(range(n)))
    opens = [step(f"m#{i}") for i in range(n)]
    await commit(part, end(tokens["a"], Scatter("m", n, n, need), Watch("m", 500), *opens, Cursor("m", n)))
    return run, await claim(part)


async def rows(part, run, *indexes):
    return await read_runs(part.ns, part.p, [f"{run}/m#{i}" for i in indexes])


async def hedge(part, *items):
    return await hedge_items(part.ns, part.p, "m", items, by="s-9")


def ended(token, *effects, **options):
    return end(token, *effects, hedged=True, **options)


def counted(part, run):
    row = part.raw.hgetall(part.keys.map(part.p, run, "m"))
    return int(row[b"done"]), int(row[b"failed"]), int(row.get(b"copies", 0))


async def test_a_running_item_gets_a_copy_with_the_same_spec_once(part):
    run, _ = await scattered(part)
    (item,) = await rows(part, run, 1)
    assert await read_running_ms(part.ns, part.p, [item]) != {}

    assert await hedge(part, item) == ["started"]
    assert await hedge(part, item) == ["done"]

    (token,) = (await claim(part)).values()
    assert (token.run, token.spec) == (f"{run}/m#1^", item.spec)
    assert counted(part, run) == (0, 0, 1)
    assert ledger(part, run) == {"m"}
    last = part.events(run)[-1]
    assert (last.type, last.facts, last.by) == ("step_hedged", {"step": "m#1", "attempt": "1"}, "s-9")
    assert [event.seq for event in part.events(run)] == list(range(1, last.seq + 1))


async def test_an_item_that_has_ended_or_was_given_to_another_gets_none(part):
    run, tokens = await scattered(part, 3)
    items = await rows(part, run, 0, 1)
    await commit(part, ended(tokens["m#0"]))
    part.raw.hset(part.keys.run(part.p, f"{run}/m#1"), "open", "2:9-9")
    before = part.snapshot()

    assert await hedge(part, *items) == ["stale", "stale"]
    assert part.snapshot() == before


async def test_nothing_is_started_for_a_map_or_a_run_that_is_over_or_fails(part):
    run, tokens = await scattered(part, 2, need=1)
    items = await rows(part, run, 1)
    await commit(part, ended(tokens["m#0"]))
    assert await hedge(part, *items) == ["over"]

    for effect in (Fail(ERROR), Failing(ERROR)):
        run, tokens = await scattered(part)
        items = await rows(part, run, 1)
        await commit(part, ended(tokens["m#0"], effect, kind="failed", value=ERROR))
        assert await hedge(part, *items) == ["over"]


@pytest.mark.parametrize(("first", "second"), [("m#0", "m#0^"), ("m#0^", "m#0")])
async def test_the_first_end_counts_and_the_second_changes_nothing(part, first, second):
    run, tokens = await scattered(part)
    await hedge(part, *await rows(part, run, 0))
    tokens |= await claim(part)

    assert await commit(part, ended(tokens[first], value=b"mine")) == ["ok"]
    assert counted(part, run) == (1, 0, 1)
    assert f"stop:{run}/{second}" in part.timers()
    assert await commit(part, ended(tokens[second])) == ["gone"]

    assert counted(part, run) == (1, 0, 1)
    assert part.raw.hgetall(part.keys.results(part.p, run, "m", 0)) == {b"0": b"completed\nmine"}
    assert part.run(f"{run}/m#0") == part.run(f"{run}/m#0^") == {}
    last = part.events(run)[-1]
    assert (last.type, last.facts["step"], last.facts.get("copy")) == (
        "step_completed",
        "m#0",
        "1" if "^" in first else None,
    )
    assert await commit(part, ended(tokens[first], value=b"mine")) == ["done"]


async def test_both_ends_in_one_call_count_once(part):
    run, tokens = await scattered(part)
    await hedge(part, *await rows(part, run, 0))
    tokens |= await claim(part)

    assert await commit(part, ended(tokens["m#0^"]), ended(tokens["m#0"])) == ["ok", "gone"]
    assert counted(part, run) == (1, 0, 1)


@pytest.mark.parametrize("order", [("m#0", "m#0^"), ("m#0^", "m#0")])
async def test_two_failures_in_one_call_count_once(part, order):
    run, tokens = await scattered(part)
    await hedge(part, *await rows(part, run, 0))
    tokens |= await claim(part)
    ends = [ended(tokens[name], kind="failed", value=ERROR) for name in order]

    assert await commit(part, *ends) == ["gone", "ok"]
    assert counted(part, run) == (0, 1, 1)
    assert [event.type for event in part.events(run)[-2:]] == ["step_yielded", "step_failed"]
    assert await commit(part, ends[1]) == ["done"]


@pytest.mark.leaves("repair")
async def test_a_rival_that_is_no_hash_costs_only_its_run(part):
    run, tokens = await scattered(part)
    other, others = await scattered(part)
    part.raw.set(part.keys.run(part.p, f"{run}/m#0^"), "spoilt")

    assert await commit(part, ended(tokens["m#0"]), ended(others["m#0"])) == ["broken", "ok"]
    assert (counted(part, run), counted(part, other)) == ((0, 0, 0), (1, 0, 0))


async def test_room_that_an_item_and_its_copy_leave_is_filled_by_steps_of_different_names(part):
    run = await begin(part, step("a"))
    tokens = await claim(part)
    await stage_items(part.ns, part.p, run, "m", list(range(9)))
    opens = [step(f"m#{i}") for i in range(2)]
    await commit(part, end(tokens["a"], Scatter("m", 9, 2, 0), Watch("m", 500), *opens, Cursor("m", 2)))
    tokens = await claim(part)
    await hedge(part, *await rows(part, run, 0))
    tokens |= await claim(part)

    # The item gives way to its copy; what another one leaves in the same call is filled by a step that is named after it.
    failed = ended(tokens["m#0"], kind="failed", value=ERROR)
    assert await commit(part, failed, ended(tokens["m#1"])) == ["gone", "ok"]
    (first,) = (await claim(part, "@routes")).values()
    await commit(part, end(first, step("m#2"), Cursor("m", 3)))
    assert await commit(part, ended(tokens["m#0^"])) == ["ok"]
    (second,) = (await claim(part, "@routes")).values()

    assert (first.run, second.run) == (f"{run}/m+0", f"{run}/m+0.copy1")


async def test_a_failure_gives_way_while_the_other_is_at_it(part):
    run, tokens = await scattered(part)
    await hedge(part, *await rows(part, run, 0))
    tokens |= await claim(part)
    failing = Fail(ERROR)

    assert await commit(part, ended(tokens["m#0"], failing, kind="failed", value=ERROR)) == ["gone"]
    assert counted(part, run) == (0, 0, 1)
    assert part.events(run)[-1].type == "step_yielded"
    assert part.run(run)["open"] == "1:*"
    assert await commit(part, ended(tokens["m#0^"], failing, kind="failed", value=ERROR)) == ["ok"]

    assert part.run(run)["status"] == "failed"


async def test_a_map_that_begins_is_looked_at_later_and_no_more_when_it_is_over(part):
    run, tokens = await scattered(part)
    assert f"hedge:{run}/m" in part.timers()

    await commit(part, ended(tokens["m#0"]), ended(tokens["m#1"]))
    gather = (await claim(part, "@routes"))["m="]
    await commit(part, end(gather, Watch("m", 0), value=RESULT))

    assert f"hedge:{run}/m" not in part.timers()


async def test_it_refuses_who_does_not_know_the_controls(part):
    run, _ = await scattered(part)
    items = await rows(part, run, 0)
    part.raw.hset(part.keys.epoch(part.p), "controls", "7")
    with pytest.raises(StaleControls):
        await hedge(part, *items)
    part.raw.hdel(part.keys.epoch(part.p), "controls")


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    run, _ = await scattered(part)
    items = await rows(part, run, 0)
    await refuses_other_epochs(lambda: hedge(part, *items))
