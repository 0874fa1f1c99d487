"""commit_nodes: a step ends once; what follows opens, counts, finishes or fails with it, or not at all."""

import pytest
from graph_steps import DIGEST, begin, claim, commit, end, given, ledger, packed, step
from partition import ERROR, RESULT

from weft.core.effects import Arrive, Cursor, Fail, Finish, Last, Mark, Scatter, Shut
from weft.core.model import ROUTES, Value
from weft.errors import StaleControls
from weft.store.blobs import digest_of, stage_blob
from weft.store.graphs import stage_items

pytestmark = pytest.mark.leaves("open runs", "pending", "repair", "broken keys")


def steps_of(part, run):
    return [(event.type, event.facts.get("step", "")) for event in part.events(run)]


async def test_the_end_of_a_step_is_recorded_and_its_successor_opened(part):
    run = await begin(part, step("a"))
    tokens = await claim(part)

    assert await commit(part, end(tokens["a"], step("b"))) == ["ok"]

    assert ledger(part, run) == {"b"}
    assert given(part, run) == {"a": "completed"}
    assert part.run(f"{run}/a") == {}
    assert [token["r"] for _, token in part.stream()] == [f"{run}/b"]
    assert part.pending() == []
    assert [event.seq for event in part.events(run)] == [1, 2, 3]
    assert steps_of(part, run)[-1] == ("step_completed", "a")


async def test_a_repeated_commit_answers_done_and_changes_nothing(part):
    await begin(part, step("a"))
    tokens = await claim(part)
    await commit(part, end(tokens["a"], step("b")))
    before = part.snapshot()

    assert await commit(part, end(tokens["a"], step("b"))) == ["done"]
    assert part.snapshot() == before


async def test_a_token_that_was_replaced_changes_nothing(part):
    run = await begin(part, step("a"))
    tokens = await claim(part)
    part.raw.hset(part.keys.run(part.p, f"{run}/a"), "open", "2:9-9")
    before = part.snapshot()

    assert await commit(part, end(tokens["a"], step("b"))) == ["stale"]
    assert part.snapshot() == before


async def test_a_definition_that_changed_asks_to_decide_again(part):
    run = await begin(part, step("a"))
    tokens = await claim(part)
    part.raw.hset(part.keys.run(part.p, run), "def", "other")

    assert await commit(part, end(tokens["a"], step("b"))) == ["again"]
    assert ledger(part, run) == {"a"}


async def test_a_join_opens_once_when_all_have_come_and_counts_who_comes_twice_once(part):
    run = await begin(part, step("a"), step("b"))
    tokens = await claim(part)

    await commit(part, end(tokens["a"], Arrive("join", "a+", 2), Arrive("join", "a+", 2)))
    assert ledger(part, run) == {"b"}
    await commit(part, end(tokens["b"], Arrive("join", "b-", 2)))

    assert ledger(part, run) == {"join?"}
    assert [token["r"] for _, token in part.stream(ROUTES)] == [f"{run}/join?"]


async def test_a_join_that_needs_one_opens_at_the_first_and_not_again(part):
    run = await begin(part, step("a"), step("b"))
    tokens = await claim(part)

    await commit(part, end(tokens["a"], Arrive("join", "a+", 2, 1)), end(tokens["b"], Arrive("join", "b+", 2, 1)))

    assert ledger(part, run) == {"join?"}
    assert len(part.stream(ROUTES)) == 1


async def test_the_run_is_finished_when_nothing_is_open_and_not_before(part):
    run = await begin(part, step("a"), step("b"))
    tokens = await claim(part)

    await commit(part, end(tokens["a"], Finish(RESULT)))
    assert part.run(run)["open"] == "1:*"
    await commit(part, end(tokens["b"], Finish(RESULT)))

    assert part.run(run)["status"] == "completed"
    assert part.ttl(run) > 0
    assert list(part.timers()) == [f"close:{run}"]
    assert [event.type for event in part.events(run)].count("completed") == 1


async def test_a_last_step_puts_the_result_together(part):
    run = await begin(part, step("a"))
    tokens = await claim(part)

    await commit(part, end(tokens["a"], Last()))
    assert ledger(part, run) == {"$end"}
    (token,) = (await claim(part, ROUTES)).values()
    await commit(part, end(token, Finish(RESULT)))

    assert part.run(run)["result"] == RESULT
    assert steps_of(part, run)[-2:] == [("routed", "$end"), ("completed", "")]


async def test_a_failure_ends_the_run_and_its_other_steps_change_nothing_more(part):
    run = await begin(part, step("a"), step("b"))
    tokens = await claim(part)

    words = await commit(part, end(tokens["a"], Fail(ERROR), kind="failed", value=ERROR), end(tokens["b"], step("c")))

    assert words == ["ok", "gone"]
    assert part.run(run)["status"] == "failed"
    assert part.stream() == []
    assert given(part, run) == {"a": "failed"}


async def test_a_large_value_is_kept_and_one_that_is_gone_is_refused(part):
    run = await begin(part, step("a"))
    tokens = await claim(part)
    digest = digest_of(b"big")
    value = packed(Value(blob=digest, size=3))

    assert await commit(part, end(tokens["a"], value=value, blob=digest)) == ["blob_gone"]
    marked = Mark("b", "b", "completed", value, digest)
    assert await commit(part, end(tokens["a"], marked)) == ["blob_gone"]
    await stage_blob(part.ns, part.p, run, b"big")
    assert await commit(part, end(tokens["a"], marked, step("c"))) == ["ok"]

    assert part.ttl_of(part.keys.blob(part.p, run, digest)) == -1
    assert part.raw.smembers(part.keys.belongings(part.p, run)) == {f"blob {digest}".encode()}


async def test_a_map_counts_its_items_opens_more_and_is_gathered_once(part):
    run = await begin(part, step("a"))
    tokens = await claim(part)
    opens = [step(f"m#{i}") for i in range(2)]
    assert await commit(part, end(tokens["a"], Scatter("m", 3, 2), *opens, Cursor("m", 2))) == ["blob_gone"]
    await stage_items(part.ns, part.p, run, "m", [1, 2, 3])
    await commit(part, end(tokens["a"], Scatter("m", 3, 2), *opens, Cursor("m", 2)))
    assert ledger(part, run) == {"m"}
    assert part.ttl_of(part.keys.items(part.p, run, "m")) == -1

    # The first end makes room for one more.
    items = await claim(part)
    assert await commit(part, end(items["m#0"])) == ["ok"]
    assert await commit(part, end(items["m#0"])) == ["done"]
    assert ledger(part, run) == {"m", "m+0"}
    refill = (await claim(part, ROUTES))["m+0"]
    await commit(part, end(refill, step("m#2"), Cursor("m", 3)))
    await commit(part, end(items["m#1"]), end((await claim(part))["m#2"], kind="failed", value=ERROR))

    assert ledger(part, run) == {"m", "m="}
    row = part.raw.hgetall(part.keys.map(part.p, run, "m"))
    assert (row[b"done"], row[b"failed"]) == (b"2", b"1")
    gather = (await claim(part, ROUTES))["m="]
    await commit(part, end(gather, Mark("m", "m", "completed", RESULT), Shut("m"), Finish(RESULT)))
    assert part.run(run)["status"] == "completed"
    assert [step for kind, step in steps_of(part, run) if kind.startswith("step_")] == ["a", "m#0", "m#1", "m#2"]


async def test_a_map_that_needs_one_is_gathered_at_the_first_and_one_that_cannot_have_it_at_the_last(part):
    for kinds, gathered in ((["completed"], True), (["failed"], False), (["failed", "failed"], True)):
        run = await begin(part, step("a"))
        token = (await claim(part))["a"]
        await stage_items(part.ns, part.p, run, "m", [1, 2])
        opens = [step(f"m#{i}") for i in range(2)]
        await commit(part, end(token, Scatter("m", 2, 2, 1), *opens, Cursor("m", 2)))
        items = await claim(part)
        for i, kind in enumerate(kinds):
            await commit(part, end(items[f"m#{i}"], kind=kind, value=RESULT if kind == "completed" else ERROR))
        assert ("m=" in ledger(part, run)) is gathered
        await claim(part, ROUTES)


async def test_a_step_that_somebody_else_ended_goes_on_without_a_token(part):
    run = await begin(part, step("a"))
    token = (await claim(part))["a"]
    key = part.keys.run(part.p, f"{run}/a")
    part.raw.hset(key, "open", f"={token.ledger}")
    part.raw.zadd(part.keys.timers(part.p), {f"route:{run}/a": 1})
    closed = token.__class__(
        token.partition, token.epoch, token.run, token.entry, token.delivery, token.attempt, token.spec,
        token.claimed_ms, closed=True,
    )  # fmt: skip

    assert await commit(part, end(closed, step("b"), kind="failed", value=ERROR)) == ["ok"]

    assert ledger(part, run) == {"b"}
    assert part.timers() == {}


async def test_a_run_that_is_no_hash_costs_only_itself(part):
    broken, fine = await begin(part, step("a")), await begin(part, step("b"))
    tokens = await claim(part)
    part.raw.delete(part.keys.run(part.p, broken))
    part.raw.set(part.keys.run(part.p, broken), "x")

    assert await commit(part, end(tokens["a"]), end(tokens["b"], step("c"))) == ["broken", "ok"]

    assert part.raw.zrange(part.keys.repair(part.p), 0, -1) == [broken.encode()]
    assert ledger(part, fine) == {"c"}


async def test_it_refuses_who_does_not_know_the_controls(part):
    await begin(part, step("a"))
    token = (await claim(part))["a"]
    part.raw.hset(part.keys.epoch(part.p), "controls", "7")
    with pytest.raises(StaleControls):
        await commit(part, end(token))
    part.raw.hdel(part.keys.epoch(part.p), "controls")


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    await begin(part, step("a"))
    token = (await claim(part))["a"]
    assert token.spec.definition == DIGEST
    await refuses_other_epochs(lambda: commit(part, end(token)))
