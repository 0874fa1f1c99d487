"""Approvals: people decide, once, about exactly what they were shown; meanwhile nothing else is held up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from waiting import approval_of, node_of, timers_gone

from weft import Approval, Conflict, Graph, InvalidArguments, NotAllowed, NotFound, RunCancelled, StepFailed, Weft
from weft.sdk.graphrun import GraphRun
from weft.store.audit import audit
from weft.testing.manual import ManualWorker
from weft.worker.worker import Worker

StartWorker = Callable[..., Awaitable[Worker]]
Advance = Callable[[int], Awaitable[None]]


def report(app: Weft, **options: Any) -> Graph:
    graph = app.graph("report", output="${save}")
    options = {"title": "Publish ${input.name}?", "show": {"rows": "${input.rows}"}, "approvers": ["anna"], **options}
    review = graph.approval("review", **options)
    graph.transform("save", {"review": "${review}", "status": "${status.review}"}, after=review)
    return graph


async def opened(app: Weft, graph: Graph) -> tuple[GraphRun, Approval]:
    run = await graph.start({"name": "Q3", "rows": [1, 2]})
    return run, await approval_of(app, run)


async def test_an_approval_shows_and_gives_what_was_decided(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    run, asked = await opened(app, report(app))
    assert asked.id == f"{run.id}/review" and (asked.run_id, asked.step) == (run.id, "review")
    assert (asked.status, asked.title, asked.show) == ("pending", "Publish Q3?", {"rows": [1, 2]})
    assert (asked.approvers, asked.quorum, asked.decision) == (["anna"], 1, None)
    assert [found.id for found in await app.approvals.list()] == [asked.id]

    done = await app.approvals.approve(asked.id, by="anna", digest=asked.digest, comment="fine")

    assert done.status == "approved" and done.decided_at is not None and done.durability in ("fsync", "redis")
    result = await run.result(timeout=20)
    assert result["status"] == "completed" and result["review"] == done.decision
    output = result["review"]
    assert (output["decision"], output["by"], output["comment"], output["form"]) == ("approved", "anna", "fine", None)
    assert output["votes"][0]["via"] == "api" and output["at"].endswith("Z")
    assert await app.approvals.list() == []
    assert (await app.approvals.get(asked.id)).decision == output
    decided = next(event for event in await run.history() if event.type == "approval_decided")
    assert (decided.step, decided.data["by"], decided.data["digest"]) == ("review", "anna", asked.digest)
    await timers_gone(app)


async def test_a_rejection_fails_skips_or_goes_on(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    ends: dict[str, Any] = {}
    for rule in ("fail", "skip", "continue"):
        graph = app.graph(f"r_{rule}", output="${save}")
        graph.approval("review", on_reject=rule)
        graph.transform("save", "${[status.review, review]}", after="review")
        run = await graph.start({})
        asked = await approval_of(app, run)
        await app.approvals.reject(asked.id, by="ben", digest=asked.digest, comment="not yet")
        try:
            ends[rule] = await run.result(timeout=20)
        except StepFailed as error:
            ends[rule] = error
        nodes = (await run.graph())["nodes"]
        assert nodes["review"]["status"] == {"fail": "failed", "skip": "skipped", "continue": "completed"}[rule]
    assert str(ends["fail"]) == "ApprovalRejected: review was rejected by ben: not yet"
    assert ends["fail"].facts["code"] == "approval_rejected"
    assert ends["skip"] is None  # what follows only the approval is skipped with it
    assert ends["continue"][0] == "completed" and ends["continue"][1]["decision"] == "rejected"
    await timers_gone(app)


async def test_it_is_decided_once_and_later_clicks_are_told_by_whom(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    run, asked = await opened(app, report(app, approvers=["anna", "ben"]))
    await app.approvals.approve(asked.id, by="anna", digest=asked.digest)
    for again in (app.approvals.reject, app.approvals.approve):
        with pytest.raises(Conflict, match=r"is approved by anna at .*: it is decided once") as told:
            await again(asked.id, by="ben", digest=asked.digest)
        assert told.value.facts["decision"]["decision"] == "approved"
        assert told.value.facts["decision"]["by"] == "anna"
    assert (await run.result(timeout=20))["review"]["by"] == "anna"


async def test_a_quorum_takes_different_people_and_one_rejection_decides(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    graph = report(app, approvers=["anna", "ops"], quorum=2, on_reject="continue")
    run, asked = await opened(app, graph)
    after = await app.approvals.approve(asked.id, by="anna", digest=asked.digest)
    assert after.status == "pending" and len(after.votes) == 1 and after.decision is None
    with pytest.raises(Conflict, match=r"anna has approved .* already: a person has one vote"):
        await app.approvals.approve(asked.id, by="anna", digest=asked.digest)
    with pytest.raises(NotAllowed, match=r"carl may not decide .*: anna, ops may") as refused:
        await app.approvals.approve(asked.id, by="carl", digest=asked.digest)
    assert refused.value.facts["approvers"] == ["anna", "ops"]
    done = await app.approvals.approve(asked.id, by="carl", roles=["ops"], digest=asked.digest)
    assert done.status == "approved" and [vote["by"] for vote in done.votes] == ["anna", "carl"]
    assert (await run.result(timeout=20))["review"]["by"] == "carl"

    run, asked = await opened(app, graph)
    await app.approvals.approve(asked.id, by="anna", digest=asked.digest)
    done = await app.approvals.reject(asked.id, by="dora", roles=["ops"], digest=asked.digest)
    assert done.status == "rejected"
    assert (await run.result(timeout=20))["review"]["decision"] == "rejected"


async def test_a_decision_is_about_exactly_what_was_shown(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    run, asked = await opened(app, report(app))
    with pytest.raises(Conflict, match="shows something else than what the decision is about"):
        await app.approvals.approve(asked.id, by="anna", digest="0" * 64)
    for bad in ("", None):
        with pytest.raises(InvalidArguments, match="must name the digest"):
            await app.approvals.approve(asked.id, by="anna", digest=bad)  # type: ignore[arg-type]

    # Somebody changes what is shown behind our back: the digest tells.
    ns = app.engine().ns
    p = int(run.id[1 : run.id.index("-")])
    shown = await ns.read("HGET", ns.keys.approval(p, asked.id), "show", p=p)
    await ns.read("HSET", ns.keys.approval(p, asked.id), "show", shown.replace(b"rows", b"bows"), p=p)
    with pytest.raises(Conflict, match="was changed in the store"):
        await app.approvals.approve(asked.id, by="anna", digest=asked.digest)
    await ns.read("HSET", ns.keys.approval(p, asked.id), "show", shown, p=p)
    await app.approvals.approve(asked.id, by="anna", digest=asked.digest)
    await run.result(timeout=20)


async def test_a_form_is_checked_and_given_on(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    form = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer", "maximum": 100}}}
    run, asked = await opened(app, report(app, form=form))
    for bad, said in ((None, "form needs amount"), ({"amount": 200}, "form/amount must be at most 100")):
        with pytest.raises(InvalidArguments, match=said):
            await app.approvals.approve(asked.id, by="anna", digest=asked.digest, form=bad)
    with pytest.raises(InvalidArguments, match="plain JSON"):
        await app.approvals.approve(asked.id, by="anna", digest=asked.digest, form={"amount": b"7"})
    with pytest.raises(InvalidArguments, match="a form goes with an approval"):
        await app.approvals.reject(asked.id, by="anna", digest=asked.digest, form={"amount": 7})
    assert (await app.approvals.get(asked.id)).votes == []
    await app.approvals.approve(asked.id, by="anna", digest=asked.digest, form={"amount": 7})
    assert (await run.result(timeout=20))["review"]["form"] == {"amount": 7}


async def test_delegation_hands_the_vote_on(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    run, asked = await opened(app, report(app))
    after = await app.approvals.delegate(asked.id, by="anna", to="ben", comment="on holiday")
    assert after.approvers == ["ben"] and after.digest == asked.digest
    assert [(note["what"], note["by"], note["to"]) for note in after.history] == [("delegated", "anna", ["ben"])]
    with pytest.raises(NotAllowed):
        await app.approvals.approve(asked.id, by="anna", digest=asked.digest)
    with pytest.raises(NotAllowed):
        await app.approvals.delegate(asked.id, by="anna", to="carl")
    await app.approvals.approve(asked.id, by="ben", digest=asked.digest)
    await run.result(timeout=20)
    assert "approval_delegated" in [event.type for event in await run.history()]


async def test_a_delegation_never_makes_the_quorum_unreachable(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    run, asked = await opened(app, report(app, approvers=["anna", "ben", "carl"], quorum=2))
    await app.approvals.approve(asked.id, by="carl", digest=asked.digest)
    await app.approvals.delegate(asked.id, by="anna", to="ben")  # ben and carl are enough
    with pytest.raises(InvalidArguments, match="needs 2 different people, and carl may decide already or did"):
        await app.approvals.delegate(asked.id, by="ben", to="carl")
    assert (await app.approvals.get(asked.id)).approvers == ["ben", "carl"]
    await app.approvals.delegate(asked.id, by="ben", to="dora")
    await app.approvals.approve(asked.id, by="dora", digest=asked.digest)
    await run.result(timeout=20)


async def test_reminders_and_escalation_come_in_time_and_are_told(
    app: Weft, start_worker: StartWorker, advance: Advance
) -> None:
    await start_worker()
    graph = report(app, reminders=["30m", "1h"], escalate={"after": "2h", "to": ["boss"]}, timeout="1d")
    run, asked = await opened(app, graph)
    with pytest.raises(NotAllowed):
        await app.approvals.approve(asked.id, by="boss", digest=asked.digest)

    async def notes(n: int) -> list[str]:
        async with asyncio.timeout(20):
            while len(found := [note["what"] for note in (await app.approvals.get(asked.id)).history]) < n:
                await asyncio.sleep(0.01)
        return found

    await advance(30 * 60_000 + 50)
    assert await notes(1) == ["reminded"]
    await advance(30 * 60_000)
    assert await notes(2) == ["reminded", "reminded"]
    await advance(60 * 60_000)
    assert await notes(3) == ["reminded", "reminded", "escalated"]
    assert (await app.approvals.get(asked.id)).approvers == ["anna", "boss"]
    await app.approvals.approve(asked.id, by="boss", digest=asked.digest)
    await run.result(timeout=20)
    types = [event.type for event in await run.history()]
    assert types.count("approval_reminded") == 2 and types.count("approval_escalated") == 1
    await timers_gone(app)


@pytest.mark.parametrize(
    ("rule", "status"),
    [("approve", "approved"), ("reject", "rejected"), ("fail", "timed_out"), ("continue", "timed_out")],
)
async def test_silence_is_decided_by_the_timeout(
    app: Weft, start_worker: StartWorker, advance: Advance, rule: str, status: str
) -> None:
    await start_worker()
    run, asked = await opened(app, report(app, timeout="2h", on_timeout=rule))
    assert asked.due_at is not None
    await advance(7_199_000)
    assert (await app.approvals.get(asked.id)).status == "pending"
    await advance(1_050)
    if rule in ("approve", "continue"):
        output = (await run.result(timeout=20))["review"]
        assert (output["decision"], output["by"]) == (status, "timeout")
    else:
        said = "rejected by timeout" if rule == "reject" else "was not decided within 2h"
        with pytest.raises(StepFailed, match=said):
            await run.result(timeout=20)
    with pytest.raises(Conflict) as told:
        await app.approvals.approve(asked.id, by="anna", digest=asked.digest)
    assert told.value.facts["decision"]["decision"] == status
    await timers_gone(app)


async def test_an_approval_blocks_nothing_else_and_survives_its_workers(app: Weft, start_worker: StartWorker) -> None:
    graph = app.graph("wide", output="${[quick, review.decision]}")
    graph.approval("review")
    graph.transform("quick", "done")
    first = await start_worker(concurrency=1)
    runs = [await graph.start({}) for _ in range(20)]
    for run in runs:
        await node_of(run, "quick", "completed")
        await node_of(run, "review", "waiting")
    assert len(await app.approvals.list(limit=50)) == 20
    assert len(await app.approvals.list(run=runs[3].id)) == 1
    await first.stop(grace=0)
    for asked in await app.approvals.list():
        await app.approvals.approve(asked.id, by="x", digest=asked.digest)
    await start_worker()
    assert [await run.result(timeout=20) for run in runs] == [["done", "approved"]] * 20


async def test_cancel_closes_what_was_asked(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    run, asked = await opened(app, report(app, timeout="1h"))
    await run.cancel("no longer")
    with pytest.raises(Conflict) as told:
        await app.approvals.approve(asked.id, by="anna", digest=asked.digest)
    assert told.value.facts["decision"] == {"decision": "cancelled"}
    with pytest.raises(RunCancelled):
        await run.result(timeout=20)
    await timers_gone(app)
    assert (await app.approvals.get(asked.id)).status == "cancelled" and await app.approvals.list() == []


async def test_cancel_closes_what_was_asked_also_where_no_worker_is_left(app: Weft, start_worker: StartWorker) -> None:
    worker = await start_worker()
    run, asked = await opened(app, report(app, timeout="1h"))
    await worker.stop()
    await run.cancel("no longer")
    assert (await app.approvals.get(asked.id)).status == "cancelled" and await app.approvals.list() == []
    with pytest.raises(Conflict):
        await app.approvals.link(asked.id, approver="anna", decision="approve")
    await start_worker()
    await timers_gone(app)


async def test_a_repeated_call_answers_the_same(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    run, asked = await opened(app, report(app))
    first, second = [
        await app.approvals.approve(asked.id, by="anna", digest=asked.digest, request_id="k") for _ in range(2)
    ]
    assert first.decision == second.decision
    await run.result(timeout=20)
    assert [event.type for event in await run.history()].count("approval_decided") == 1


async def test_each_iteration_of_a_loop_asks_anew(app: Weft, start_worker: StartWorker) -> None:
    graph = app.graph("tries", output="${[review.decision, review.by]}")
    first = graph.approval("review", on_reject="continue")
    graph.loop("again", to=first, while_="review.decision == 'rejected'", max_iterations=5, after=first)
    await start_worker()
    run = await graph.start({})
    asked = await approval_of(app, run)
    await app.approvals.reject(asked.id, by="anna", digest=asked.digest)
    async with asyncio.timeout(20):
        while not (found := await app.approvals.list()):
            await asyncio.sleep(0.01)
    assert found[0].step == "review~1" and found[0].digest != asked.digest
    await app.approvals.approve(found[0].id, by="ben", digest=found[0].digest)
    assert await run.result(timeout=20) == ["approved", "ben"]
    await timers_gone(app)


async def test_listing_is_for_people_and_roles(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    graph = app.graph("three", output="${1}")
    for id, who in (("a", ["anna"]), ("b", ["ops"]), ("c", None)):
        graph.approval(id, **({"approvers": who} if who else {}))
    run = await graph.start({})
    for id in "abc":
        await node_of(run, id, "waiting")

    async def steps(**filters: Any) -> set[str]:
        return {found.step for found in await app.approvals.list(**filters)}

    assert await steps() == {"a", "b", "c"}
    assert await steps(approver="anna") == {"a", "c"}
    assert await steps(approver=["ben", "ops"]) == {"b", "c"}
    assert len(await app.approvals.list(limit=1)) == 1
    await run.cancel()
    await timers_gone(app)


async def test_what_is_not_there_or_makes_no_sense_is_refused(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    run, asked = await opened(app, report(app))
    for id in (
        "",
        "x",
        run.id,
        f"{run.id}/",
        f"{run.id}/nope",
        f"{run.id}/a:b",
        f"{run.id}/review\n",
        "r9-x/review",
        7,
    ):
        with pytest.raises((NotFound, InvalidArguments, Exception), match=r"no approval|run id|is no"):
            await app.approvals.get(id)  # type: ignore[arg-type]
    for who in ("", " ", "a\nb", "x" * 300, None):
        with pytest.raises(InvalidArguments, match="a person or role is a text"):
            await app.approvals.approve(asked.id, by=who, digest=asked.digest)  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="comment must be a text"):
        await app.approvals.approve(asked.id, by="anna", digest=asked.digest, comment="x" * 5000)
    with pytest.raises(InvalidArguments, match="it has none"):
        await app.approvals.approve(asked.id, by="anna", digest=asked.digest, form={})
    with pytest.raises(InvalidArguments, match="delegate names"):
        await app.approvals.delegate(asked.id, by="anna", to=["anna"])
    assert (await app.approvals.get(asked.id)).votes == []
    await run.cancel()
    await timers_gone(app)


async def test_a_run_that_only_waits_says_so_and_for_what(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    graph = app.graph("both", output="${1}")
    graph.approval("review", approvers=["anna", "ops"])
    graph.wait("paid", signal="paid", timeout="1h")
    run = await graph.start({})
    await node_of(run, "review", "waiting")
    await node_of(run, "paid", "waiting")
    assert await run.status() == "waiting"
    assert [info.id for info in await app.runs.list(status="waiting")] == [run.id]
    why = await run.explain()
    assert why.reason in ("approval", "signal") and why.status == "waiting"
    assert f"review waits for the approval of anna, ops (weft approvals show {run.id}/review)" in why.text
    assert "paid waits for signal paid" in why.text
    assert await audit(app.engine().ns) == []
    await run.cancel()
    await timers_gone(app)


async def test_a_run_that_expired_before_a_worker_came_leaves_no_question_behind(
    app: Weft, start_worker: StartWorker
) -> None:
    first = await start_worker()
    graph = report(app)
    run = await graph.options(keep_result="1ms").start({"name": "Q3", "rows": []})
    asked = await approval_of(app, run)
    await first.stop(grace=0)
    await run.cancel()
    async with asyncio.timeout(20):
        while True:
            try:
                await run.info()
            except NotFound:
                break
            await asyncio.sleep(0.01)
    with pytest.raises(Conflict, match="is cancelled"):
        await app.approvals.approve(asked.id, by="anna", digest=asked.digest)
    await start_worker()
    await timers_gone(app)
    assert await app.approvals.list() == []


async def test_time_that_is_only_played_decides_too(weft_app: Weft, weft_worker: ManualWorker) -> None:
    graph = weft_app.graph("silent", output="${review.decision}")
    graph.approval("review", timeout="2h", on_timeout="approve")
    run = await graph.start({})
    await weft_worker.run_until_idle()
    assert [one.step for one in await weft_app.approvals.list()] == ["review"]
    await weft_worker.run_until_idle(advance=True)
    assert await run.result(timeout=20) == "approved"


async def test_explain_tells_how_many_approvals_are_given(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    graph = app.graph("two")
    graph.approval("review", approvers=["anna", "ops"], quorum=2)
    run = await graph.start({})
    await node_of(run, "review", "waiting")
    assert "the approval of anna, ops, 0 of 2 given (weft approvals show" in (await run.explain()).text
    asked = await app.approvals.get(f"{run.id}/review")
    await app.approvals.approve(asked.id, by="anna", digest=asked.digest)
    assert "the approval of anna, ops, 1 of 2 given (by anna) (weft approvals show" in (await run.explain()).text
    await run.cancel()
    await timers_gone(app)


async def test_approvers_are_templates_and_nobody_is_not_anybody(app: Weft, start_worker: StartWorker) -> None:
    await start_worker()
    graph = app.graph("asked")
    graph.transform("boss", {"name": "carl"})
    graph.approval(
        "review",
        after="boss",
        title="${input.title}",
        approvers=["${input.manager}", "${input.others}", "ops", "ops"],
        escalate={"after": "1h", "to": "${boss.name}"},
        on_timeout="reject",
        timeout="2h",
    )
    run = await graph.start({"manager": "anna", "others": ["ben", "Ünal <ü@x>"], "title": None})
    asked = await approval_of(app, run)
    assert (asked.title, asked.approvers) == ("", ["anna", "ben", "Ünal <ü@x>", "ops"])
    with pytest.raises(NotAllowed):
        await app.approvals.approve(asked.id, by="${input.manager}", digest=asked.digest)
    await app.approvals.approve(asked.id, by="ben", digest=asked.digest)
    assert (await run.result(timeout=20))["by"] == "ben"

    graph = app.graph("nobody")
    graph.approval("review", title="${input}", approvers=["${input.who}"])
    for who in (None, "", [], ["anna", None], 7, "a\nb"):
        run = await graph.start({"who": who})
        with pytest.raises(StepFailed, match="node review: approvers gave"):
            await run.result(timeout=20)
    run = await graph.start({"who": ["anna"]})
    assert (await approval_of(app, run)).title == '{"who":["anna"]}'
    await run.cancel()
    await timers_gone(app)


def test_names_in_approvers_are_checked_like_others(app: Weft) -> None:
    graph = app.graph("asked")
    graph.approval("review", approvers=["${later.name}"], escalate={"after": "1h", "to": ["${nobody}"]})
    graph.transform("later", {"name": "carl"}, after="review")
    assert [(one.code, one.path) for one in graph.problems()] == [
        ("not_before", "/nodes/review/approvers/0"),
        ("unknown_name", "/nodes/review/escalate/to/0"),
    ]
