"""report_steps: notes that steps run and how far they are, and says which were lost."""

import pytest
from partition import completed, moment, returned

from weft.core.model import SPEC_ENCODER, RunSpec
from weft.ids import new_run_id
from weft.store.inbox import parse_news
from weft.store.runs import NewRun, start_runs, watch_runs
from weft.store.steps import report_steps

pytestmark = pytest.mark.leaves("open runs", "pending")


async def report(part, *reports, session: str = "s-1") -> list[bool]:
    return await report_steps(part.ns, part.p, reports, session=session)


async def test_the_first_report_of_an_attempt_tells_when_it_started(part):
    token = await part.claimed()

    assert await report(part, (token, 1234, "")) == [True]

    run, last = part.run(token.run), part.events(token.run)[-1]
    assert (run["started"], run["seq"], run["more"]) == ("1234", "2", moment(last))
    assert (last.seq, last.type, last.facts) == (2, "started", {"attempt": "1", "started": "1234"})
    assert "progress" not in run


async def test_a_heartbeat_after_that_writes_nothing(part):
    token = await part.claimed()
    await report(part, (token, 1234, ""))
    before = part.snapshot()

    assert await report(part, (token, 1234, "")) == [True]

    assert part.snapshot() == before


async def test_progress_is_kept_and_is_an_event(part):
    token = await part.claimed()

    await report(part, (token, 1234, "0.25 a|b, c=d"))
    await report(part, (token, 1234, "0.5 "))

    assert part.run(token.run)["progress"] == "0.5 "
    events = part.events(token.run)
    assert [(e.seq, e.type) for e in events] == [(1, "queued"), (2, "started"), (3, "progress"), (4, "progress")]
    assert [e.payload for e in events[2:]] == [b"0.25 a|b, c=d", b"0.5 "]


async def test_a_new_attempt_tells_anew_when_it_started(part):
    token = await part.claimed()
    await report(part, (token, 1234, ""))
    await part.commit(returned(token))
    (token,) = await part.claim()

    await report(part, (token, 5678, ""))

    assert [e.type for e in part.events(token.run)] == ["queued", "started", "returned", "started"]
    assert part.run(token.run)["started"] == "5678"


async def test_a_lost_step_is_told_so_and_writes_nothing(part):
    # Given a step that was handed on, and one that is finished.
    lost = await part.claimed()
    await part.commit(returned(lost))
    done = await part.claimed(queue="other")
    await part.commit(completed(done))
    before = part.snapshot()

    assert await report(part, (lost, 1, "0.9 late"), (done, 1, "0.9 late")) == [False, False]

    assert part.snapshot() == before


async def test_items_are_judged_one_by_one_and_share_a_log_entry(part):
    await part.start(3)
    one, two, three = await part.claim()
    await part.commit(returned(two))

    assert await report(part, (one, 1, "0.1 "), (two, 1, "0.2 "), (three, 1, "0.3 ")) == [True, False, True]

    assert len({e.entry for e in part.events() if e.type == "progress"}) == 1


async def test_only_watchers_of_every_event_hear_of_progress(part, ns, p):
    token = await part.claimed()
    await watch_runs(ns, p, [token.run], "t:end")
    await watch_runs(ns, p, [token.run], "~t:all")
    with part.raw.pubsub() as listener:
        listener.subscribe("t:end", "t:all")
        for _ in range(2):
            listener.get_message(timeout=5)

        await report(part, (token, 1, "0.5 half"))

        message = listener.get_message(timeout=5)
        assert message["channel"] == b"t:all"
        assert list(parse_news(message["data"])) == [(token.run, "started", b""), (token.run, "progress", b"0.5 half")]
        assert listener.get_message(timeout=0.05) is None


async def test_the_pointers_of_a_run_stay_small_and_its_numbers_go_on(part):
    token = await part.claimed()

    for n in range(300):
        await report(part, (token, 1, f"0.5 {n}"))

    run = part.run(token.run)
    assert len(run["more"]) < 4_100
    assert run["seq"] == "302"
    assert [e.seq for e in part.events(token.run)] == list(range(1, 303))


@pytest.mark.parametrize("order", [1, -1])
async def test_a_workflow_run_and_its_step_are_told_of_under_numbers_of_their_own(part, order):
    run = new_run_id(part.p)
    for id, spec in ((run, RunSpec("flow", flow="w")), (f"{run}/x", RunSpec("job", flow="c default 5"))):
        await start_runs(part.ns, part.p, [NewRun(id, spec, SPEC_ENCODER.encode(spec))], by="c-test")
    tokens = sorted(await part.claim("s-1"), key=lambda token: token.run)[::order]

    assert await report(part, *((token, 1234, "0.5 half") for token in tokens)) == [True, True]

    told = part.events(run)
    assert [event.seq for event in told] == [1, 2, 3, 4]
    assert {event.type for event in told} == {"queued", "started", "step_started", "progress"}
    assert part.run(run)["seq"] == "4"


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    token = await part.claimed()
    await refuses_other_epochs(lambda: report(part, (token, 1, "0.5 ")))
