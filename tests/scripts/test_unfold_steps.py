"""unfold_steps: a step that stands alone in the hash of its run gets a place in the ledger and a hash of its own."""

from dataclasses import replace

import pytest
from graph_steps import DIGEST, begin, claim, commit, end, given, ledger, step
from partition import ERROR, RESULT, retrying, returned, snoozed

from weft.core.effects import Finish, Letter, step_id
from weft.core.model import Limit
from weft.ids import new_run_id
from weft.store.audit import audit
from weft.store.gates import hold_steps
from weft.store.graphs import read_open_steps
from weft.store.keys import GROUP
from weft.store.lone import unfold_run, unfold_steps
from weft.store.lost import emit_lost_steps, read_lost, reclaim_steps
from weft.store.runs import end_run, lone_steps, read_ledgers, read_runs
from weft.store.steps import report_steps
from weft.store.straight import commit_straight
from weft.store.unserved import rest_step

pytestmark = pytest.mark.leaves("open runs", "pending", "broken keys", "sessions")


def lone(part, run):
    """Returns what a run's hash says of its lone step, without what that is asked."""
    data = part.raw.hget(part.keys.run(part.p, run), "lone")
    return " ".join(data.decode(errors="replace").split(" ")[:3]) if data else ""


async def alone(part):
    """Starts a run whose only step stands alone; returns its id and the claimed token."""
    run = await begin(part, step("a"), alone=True)
    (token,) = await part.claim()
    assert lone(part, run).startswith(f"a {token.ledger} ")
    assert not part.raw.exists(part.keys.ledger(part.p, run), part.keys.run(part.p, token.run))
    return run, token


def is_unfolded(part, run, token):
    return not lone(part, run) and ledger(part, run) == {"a"} and "spec" in part.run(token.run)


async def test_it_gets_a_place_and_a_hash_and_nothing_else_changes(part, p):
    run, token = await alone(part)
    (before,) = await read_runs(part.ns, p, [token.run])
    opened, log = await read_open_steps(part.ns, p, run), part.events()

    assert await unfold_steps(part.ns, p, [token.run]) == 1
    assert await unfold_steps(part.ns, p, [token.run]) == 0

    (row,) = await read_runs(part.ns, p, [token.run])
    assert is_unfolded(part, run, token) and not row.is_lone and before.is_lone
    assert row.fields == {name: value for name, value in before.fields.items() if name != "lone"}
    assert (row.spec, row.id) == (before.spec, token.run)
    assert await read_open_steps(part.ns, p, run) == opened == {"a": int(row.text("born"))}
    assert part.events() == log
    assert await commit(part, end(token, step("b"))) == ["ok"]
    assert ledger(part, run) == {"b"}


async def test_another_step_than_the_one_that_stands_there_is_left_alone(part, p):
    run, token = await alone(part)
    before = part.snapshot()

    assert (
        await unfold_steps(part.ns, p, [step_id(run, "b"), step_id(new_run_id(p), "a"), "x", run, step_id(run, "a#1")])
        == 0
    )
    assert part.snapshot() == before
    assert await read_runs(part.ns, p, [step_id(run, "b")]) == [None]

    part.raw.set(part.keys.run(p, "r0-odd"), "no hash")
    assert await unfold_steps(part.ns, p, ["r0-odd/a", token.run]) == 1
    part.raw.delete(part.keys.run(p, "r0-odd"))


async def test_the_ledger_tells_the_time_that_tests_set(part, p):
    run, _ = await alone(part)
    await part.advance(3_600_000)
    born = int(lone(part, run).split(" ")[2])

    await unfold_run(part.ns, p, run)

    assert await read_open_steps(part.ns, p, run) == {"a": born + 3_600_000}


async def test_what_follows_straight_stands_alone_too_and_its_end_by_the_long_way_is_an_end(part):
    run, token = await alone(part)
    one = end(token, step("b"))
    one.alone = True

    assert await commit_straight(part.ns, part.p, [one, one], session="s-1") == ["ok", "wide"]
    assert await commit_straight(part.ns, part.p, [one], session="s-1") == ["wide"]

    second = (await claim(part))["b"]
    assert lone(part, run).startswith(f"b {second.ledger} ")
    assert given(part, run) == {"a": "completed"}
    assert ledger(part, run) == set() and part.run(second.run) == {}
    assert [event.type for event in part.events(run)] == ["queued", "routed", "step_completed"]
    assert part.run(run)["seq"] == "3"
    assert await commit(part, one) == ["done"], "the first is over"

    assert await commit(part, end(second, Finish(RESULT))) == ["ok"]
    assert await commit(part, end(second, Finish(RESULT))) == ["done"]
    assert part.run(run)["status"] == "completed" and not lone(part, run)
    assert given(part, run) == {"a": "completed", "b": "completed"}
    assert part.pending() == [] and part.stream() == []


@pytest.mark.parametrize("ahead", [step("b", input=b"x" * 600), step("b", limits=[Limit("key|job|x", 1)]), step("b?")])
async def test_what_may_not_stand_alone_follows_by_the_ledger(part, ahead):
    run, token = await alone(part)

    assert await commit(part, end(token, ahead)) == ["ok"]

    assert not lone(part, run) and ledger(part, run) == {ahead.step}
    assert part.run(f"{run}/{ahead.step}")["spec"]


async def test_a_token_that_was_replaced_or_that_nobody_holds_is_refused(part, p):
    run, token = await alone(part)
    one = end(token, step("b"))
    key = part.keys.run(p, run)
    before = part.raw.hget(key, "lone")
    part.raw.hset(key, "lone", before.replace(token.ledger.encode(), b"2:5-5"))
    assert await commit(part, one) == ["stale"]
    part.raw.hset(key, "lone", before)
    part.raw.xgroup_delconsumer(part.keys.tasks(p, "default", 5), GROUP, "s-1")
    assert await commit(part, one) == ["stale"]

    assert given(part, run) == {} and part.raw.hget(key, "lone") == before


async def test_a_run_that_was_presumed_alone_goes_the_long_way(part):
    run = await begin(part, step("a"))
    one = end((await claim(part))["a"], step("b"))
    one.alone = True

    assert await commit_straight(part.ns, part.p, [one], session="s-1") == ["wide"]
    assert await commit(part, one) == ["ok"]
    assert ledger(part, run) == {"b"}


async def test_those_that_stand_alone_and_others_are_committed_together_and_answered_in_order(part):
    runs = [await begin(part, step("a"), alone=i != 1) for i in range(3)]
    tokens = {token.run.partition("/")[0]: token for token in await part.claim(room=100)}
    tokens[runs[2]] = replace(tokens[runs[2]], entry="5-5")
    ends = [end(tokens[run], step("b")) for run in runs]
    ends[0].alone = ends[2].alone = True

    assert await commit_straight(part.ns, part.p, ends, session="s-1") == ["ok", "ok", "wide"]
    assert [bool(lone(part, run)) for run in runs] == [True, False, True]
    assert [ledger(part, run) for run in runs] == [set(), {"b"}, set()]


async def test_a_context_of_the_wrong_type_costs_its_run_alone(part, p):
    (broken, token), (fine, other) = await alone(part), await alone(part)
    key = part.keys.context(p, broken)
    part.raw.set(key, "x")

    assert await commit(part, end(token, step("b")), end(other, step("b"))) == ["broken", "ok"]

    assert part.raw.zrange(part.keys.repair(p), 0, -1) == [broken.encode()]
    assert lone(part, broken).startswith(f"a {token.ledger} ")
    assert lone(part, fine).startswith("b ")
    part.raw.delete(key, part.keys.repair(p))


async def test_a_dead_letter_has_all_that_it_would_have(part):
    _, token = await alone(part)
    letter = Letter("a", token.spec, ERROR, 60_000)

    assert await commit(part, end(token, letter, Finish(RESULT), kind="failed", value=ERROR)) == ["ok"]

    got = part.run(token.run)
    assert (got["open"], got["status"], got["letter"]) == (f"={token.ledger}", "failed", "1")
    assert got["spec"] and got["born"]
    assert [(event.seq, event.type) for event in part.events(token.run)] == [(1, "queued"), (2, "failed")]


@pytest.mark.parametrize("outcome", [retrying, snoozed, returned])
async def test_a_step_that_is_tried_again_is_unfolded(part, outcome):
    run, token = await alone(part)

    assert await part.commit(outcome(token)) == ["ok"]

    assert is_unfolded(part, run, token) and part.run(token.run)["open"].startswith("2:")


async def test_a_step_that_lives_on_is_unfolded_once(part, p):
    run, token = await alone(part)
    stranger = replace(token, entry="5-5")
    reports = [(token, 5, "0.5 half")]

    assert await report_steps(part.ns, p, reports, session="s-1") == [True]
    assert await report_steps(part.ns, p, reports, session="s-1") == [True]
    assert is_unfolded(part, run, token) and part.run(token.run)["progress"] == "0.5 half"
    assert await report_steps(part.ns, p, [(stranger, 5, "")], session="s-1") == [False]


async def test_a_step_that_is_held_or_rests_is_unfolded(part, p):
    (run, token), (other, second) = await alone(part), await alone(part)
    await part.session()
    full = Limit("key|job|x", 1)
    part.raw.zadd(part.keys.gate(p, full.gate), {"somebody": 1})

    assert await hold_steps(part.ns, p, [(token, [full])], session="s-1") == ["held"]
    assert is_unfolded(part, run, token) and part.run(token.run)["open"] == f"2:#{full.gate}"
    assert await rest_step(part.ns, second, needs="task:job", reason="x", started_ms=1, by="s-1") == "rests"
    assert is_unfolded(part, other, second) and part.run(second.run)["open"].startswith("2:@")


async def test_a_step_of_a_dead_worker_is_unfolded_and_emitted_anew(part, p):
    run, token = await alone(part)

    words = await reclaim_steps(
        part.ns,
        p,
        dead="s-1",
        queue="default",
        stream=part.keys.tasks(p, "default", 5),
        held=[(token.entry, token.run, token.spec, "")],
        keep_ms=lambda spec: spec.keep_ms,
        by="s-sweeper",
        max_crashes=3,
        poison=ERROR,
    )

    assert words == ["emitted"]
    assert is_unfolded(part, run, token) and part.run(token.run)["crashes"] == "1"
    assert await commit(part, end(token, step("b"))) == ["stale"]
    (again,) = await part.claim("s-2")
    assert again.delivery == 2


async def test_a_lost_token_is_found_and_given_back(part, p):
    run, token = await alone(part)
    part.raw.delete(part.keys.tasks(p, "default", 5))

    rows = lone_steps(await read_ledgers(part.ns, p, [run]))
    assert [row.id for row in rows] == [token.run]
    assert [row.id for row in await read_lost(part.ns, p, rows)] == [token.run]
    assert await emit_lost_steps(part.ns, p, rows, by="s-sweeper") == ["emitted"]

    assert is_unfolded(part, run, token)
    assert [entry["r"] for _, entry in part.stream()] == [token.run]


async def test_a_step_that_is_ended_from_outside_is_unfolded(part, p):
    run, token = await alone(part)
    (row,) = await read_runs(part.ns, p, [token.run])

    assert await end_run(part.ns, p, row, kind="cancelled", value=ERROR, keep_ms=5_000, by="c-1") == ("cancelled", True)

    assert is_unfolded(part, run, token) and part.stream() == []
    assert await commit(part, end(token, step("b"))) == ["stale"]


async def test_a_run_that_is_ended_from_outside_leaves_its_step_to_be_ended(part, p):
    run, token = await alone(part)
    (row,) = await read_runs(part.ns, p, [run])
    assert await commit(part, end(token, step("b"))) == ["ok"], "it has gone on since it was read"

    assert await end_run(part.ns, p, row, kind="cancelled", value=ERROR, keep_ms=5_000, by="c-1") == ("cancelled", True)

    assert not lone(part, run) and ledger(part, run) == {"b"}
    part.raw.delete(part.keys.run(p, run))
    assert [part.run(f"{run}/{name}")["open"] for name in await read_open_steps(part.ns, p, run)] == [
        (await claim(part))["b"].ledger
    ]


async def test_the_audit_looks_at_its_token(part, p):
    await part.session()
    run, token = await alone(part)
    assert token.spec.definition == DIGEST

    async def findings():
        return [finding for finding in await audit(part.ns) if run in finding.problem or run in finding.key]

    assert await findings() == []
    part.raw.xdel(part.keys.tasks(p, "default", 5), token.entry)
    (finding,) = await findings()
    assert "token is gone" in finding.problem


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    _, token = await alone(part)
    await refuses_other_epochs(lambda: unfold_steps(part.ns, part.p, [token.run]))
