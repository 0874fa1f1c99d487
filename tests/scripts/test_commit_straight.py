"""commit_straight: the short way of commit_nodes leaves what the long one leaves, and leaves alone what it does not know."""

import re

import pytest
from graph_steps import DIGEST, begin, claim, end, given, ledger, step
from partition import RESULT

from weft.core.effects import Fail, Finish
from weft.core.gates import Controls
from weft.core.model import Limit
from weft.errors import StaleControls
from weft.store.graphs import _commit_wide, commit_nodes
from weft.store.keys import GROUP
from weft.store.straight import commit_straight, is_straight

pytestmark = pytest.mark.leaves("open runs", "pending", "repair", "broken keys")


async def short(part, *ends):
    return await commit_straight(part.ns, part.p, ends, session="s-1")


def left_by(part, run):
    """Returns everything there is of a run, without its id and without what tells time."""

    def plain(value):
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return re.sub(r"\d{13}(-\d+)?|\+\d+", "<time>", text.replace(run, "<run>"))

    keys, p = part.keys, part.p
    hashes = [keys.run(p, run), keys.run(p, f"{run}/b"), keys.ledger(p, run), keys.context(p, run)]
    return {
        "hashes": [{plain(k): plain(v) for k, v in part.raw.hgetall(key).items()} for key in hashes],
        "gone": part.raw.exists(keys.run(p, f"{run}/a")),
        "tokens": [{k: plain(v) for k, v in token.items()} for _, token in part.stream() if run in token["r"]],
        "events": [
            (event.seq, event.type, {k: plain(v) for k, v in event.facts.items()}, plain(event.payload))
            for name in (run, f"{run}/a", f"{run}/b")
            for event in part.events(name)
        ],
    }


async def test_both_ways_leave_the_same(part):
    first, second = await begin(part, step("a")), await begin(part, step("a"))
    tokens = {token.run.partition("/")[0]: token for token in await part.claim(room=100)}

    assert await short(part, end(tokens[first], step("b"))) == ["ok"]
    assert await _commit_wide(part.ns, part.p, [end(tokens[second], step("b"))], session="s-1") == ["ok"]

    assert left_by(part, first) == left_by(part, second)
    assert part.pending() == []


async def test_steps_that_share_their_way_keep_what_is_their_own(part):
    runs = [await begin(part, step("a")) for _ in range(3)]
    tokens = {token.run.partition("/")[0]: token for token in await part.claim(room=100)}
    shared, other = step("b"), step("c")
    values = [RESULT, b"\x81\xa1v\xc4\x01\x07", RESULT]
    ways = [shared, shared, other]

    ends = [end(tokens[run], way, value=value) for run, way, value in zip(runs, ways, values, strict=True)]
    assert await short(part, *ends) == ["ok", "ok", "ok"]

    for run, way, value in zip(runs, ways, values, strict=True):
        assert part.raw.hget(part.keys.context(part.p, run), "a").endswith(b"\n" + value)
        assert list(ledger(part, run)) == [way.step]
        assert part.run(f"{run}/{way.step}")["spec"]
    assert sorted(token["r"] for _, token in part.stream()) == sorted(
        f"{run}/{way.step}" for run, way in zip(runs, ways, strict=True)
    )


async def test_what_the_definition_tells_is_not_told_again(part):
    run = await begin(part, step("a"))
    follows = step("b")
    follows.straight = True

    assert await short(part, end((await claim(part))["a"], follows)) == ["ok"]

    facts = part.events(run)[-1].facts
    assert (facts["opened"], facts["asks"]) == ("b", "job")
    assert part.events(f"{run}/b") == []
    assert part.run(f"{run}/b")["open"] == (await claim(part))["b"].ledger


async def test_a_step_that_is_open_already_stays_as_it_is(part):
    run = await begin(part, step("a"), step("b"))
    tokens = await claim(part)
    before = part.run(f"{run}/b")

    assert await short(part, end(tokens["a"], step("b"))) == ["ok"]

    assert ledger(part, run) == {"b"}
    assert part.run(f"{run}/b") == before
    assert "opened" not in part.events(run)[-1].facts


async def test_what_it_does_not_know_is_left_alone_and_goes_the_long_way(part):
    run = await begin(part, step("a"))
    one = end((await claim(part))["a"], step("b"))
    key = part.keys.run(part.p, run)
    for field, value in (("open", "=1:*"), ("def", "other"), ("failing", "x")):
        known = part.raw.hget(key, field)
        part.raw.hset(key, field, value)
        before = part.snapshot()
        assert await short(part, one) == ["wide"], field
        assert part.snapshot() == before
        part.raw.hset(key, field, known) if known else part.raw.hdel(key, field)

    assert await commit_nodes(part.ns, part.p, [one, one], session="s-1") == ["ok", "done"]
    assert await short(part, one) == ["wide"]
    assert await commit_nodes(part.ns, part.p, [one], session="s-1") == ["done"]


async def test_tokens_that_nobody_holds_are_refused(part):
    run = await begin(part, step("a"))
    token = (await claim(part))["a"]
    stream = part.keys.tasks(part.p, "default", 5)
    part.raw.xgroup_delconsumer(stream, GROUP, "s-1")

    assert await short(part, end(token, step("b"))) == ["stale"]

    assert ledger(part, run) == {"a"}
    assert given(part, run) == {}
    assert part.run(f"{run}/a")["open"] == token.ledger


@pytest.mark.parametrize("family", ["context", "ledger"])
async def test_a_key_of_the_wrong_type_costs_its_run_alone(part, family):
    broken, fine = await begin(part, step("a")), await begin(part, step("c"))
    tokens = await claim(part)
    key = getattr(part.keys, family)(part.p, broken)
    part.raw.delete(key)
    part.raw.set(key, "x")

    assert await short(part, end(tokens["a"], step("b")), end(tokens["c"], step("d"))) == ["broken", "ok"]

    assert part.raw.zrange(part.keys.repair(part.p), 0, -1) == [broken.encode()]
    assert part.run(f"{broken}/b") == {}
    if family == "context":
        assert ledger(part, broken) == {"a"}  # nothing was opened that would have no token
    assert ledger(part, fine) == {"d"}
    part.raw.delete(key)


async def test_what_asks_for_more_does_not_come_here(part):
    await begin(part, step("a"), step("a~1"))
    tokens = await claim(part)
    token = tokens["a"]

    assert is_straight(part.ns, part.p, end(token, step("b")))
    for other in (
        end(token),
        end(token, step("b"), step("c")),
        end(token, Finish(RESULT)),
        end(token, Fail(b"x")),
        end(token, step("b"), kind="failed"),
        end(token, step("b"), lines=b"1|"),
        end(token, step("b"), blob="x"),
        end(token, step("b"), hedged=True),
        end(token, step("b#1")),
        end(token, step("b?")),
        end(token, step("b", limits=[Limit("key|job|x", 1)])),
        end(tokens["a~1"], step("b")),
    ):
        assert not is_straight(part.ns, part.p, other)
    token.attempt = 2
    assert not is_straight(part.ns, part.p, end(token, step("b")))


async def test_a_paused_task_is_held_by_the_long_way(part):
    await begin(part, step("a"))
    one = end((await claim(part))["a"], step("b"))
    part.ns.controls[part.p] = Controls("0", {"pause:task|job": {}})

    assert not is_straight(part.ns, part.p, one)
    part.ns.controls[part.p] = Controls()


async def test_what_ends_in_one_run_stays_in_order(part):
    run = await begin(part, step("a"), step("b"))
    tokens = await claim(part)

    words = await commit_nodes(
        part.ns,
        part.p,
        [end(tokens["a"], Fail(b"x"), kind="failed", value=b"x"), end(tokens["b"], step("c"))],
        session="s-1",
    )

    assert words == ["ok", "gone"]
    assert part.run(run)["status"] == "failed"


async def test_it_refuses_who_does_not_know_the_controls(part):
    await begin(part, step("a"))
    token = (await claim(part))["a"]
    part.raw.hset(part.keys.epoch(part.p), "controls", "7")
    with pytest.raises(StaleControls):
        await short(part, end(token, step("b")))
    part.raw.hdel(part.keys.epoch(part.p), "controls")


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    await begin(part, step("a"))
    token = (await claim(part))["a"]
    assert token.spec.definition == DIGEST
    await refuses_other_epochs(lambda: short(part, end(token, step("b"))))
