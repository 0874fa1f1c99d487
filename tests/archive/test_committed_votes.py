"""Votes of people where somebody archives: the ballot first, then the store. What was acknowledged stands, and decides once."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from weft import Conflict, DurabilityUnmet, InvalidArguments, NotAllowed, StepFailed, Weft
from weft.archive.ballots import Ballots
from weft.core.approvals import Approval
from weft.engine import ballots as voting
from weft.errors import PartitionLost, Unavailable
from weft.testing.crash import CRASH_AT

pytestmark = [pytest.mark.leaves("history", "open runs"), pytest.mark.usefixtures("quick")]

sqlite_only = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def order(app):
    """A graph that asks once, and a workflow that does."""

    class Order:
        graph = app.graph("order", output="${ok}")

        @staticmethod
        @app.workflow
        async def flow(ctx) -> dict:
            return dict(await ctx.approve("really?", approvers=["ann", "bo"]))

    Order.graph.approval("ok", title="ok?", approvers=["ann", "bo", "cy"], timeout="1h")
    return Order


@pytest.fixture
def ask(app, order, start_worker, eventually):
    """Starts a run and waits until it asks; nobody serves it then."""

    async def start(of=None):
        worker = await start_worker(archive=False)
        run = await (of or order.graph).start()
        (asked,) = await eventually(lambda: app.approvals.list(run=run.id))
        await worker.stop()
        return run, asked

    return start


@pytest.fixture
def lose(app, raw, archivers):
    """Empties the store, and has it rebuilt."""

    async def lost():
        raw.delete(*raw.scan_iter(match=f"{app.engine().ns.keys.namespace}:*"))
        for each in await archivers():
            assert await each._recover()

    return lost


@pytest.fixture
def look(archivers):
    """Archives what there is, and looks after ballots until what can go is gone; returns how many votes were counted."""

    async def run():
        made = await archivers()
        for each in made:
            for _ in range(2):
                await each.drain()
                await asyncio.sleep(0.002)  # by the store's clock, what was seen is past
                await each._reconciler.look(each._indexed)
        return sum(each._reconciler._recounter.counted for each in made)

    return run


@pytest.fixture
def cut(monkeypatch):
    """Lets a voter write a ballot, and then die or be cut off: the store is told nothing."""

    async def nothing(*_):
        raise Unavailable("cut off")

    honest = voting.count_ballot
    return lambda on=True: monkeypatch.setattr(voting, "count_ballot", nothing if on else honest)


def openings(history):
    return [event.type for event in history].count("step_waiting")


@pytest.mark.parametrize("kind", ["graph", "flow"])
async def test_a_decision_stands_when_the_store_is_emptied_right_after_its_acknowledgement(
    app, order, ask, archive, lose, look, start_worker, rows, kind
):
    await archive()
    run, asked = await ask(getattr(order, kind))
    await archive()
    if kind == "graph":
        done = await app.approvals.approve(asked.id, by="bo", digest=asked.digest, comment="fine")
    else:
        done = await app.approvals.redeem(await app.approvals.link(asked.id, approver="bo", decision="approve"))
    assert (done.status, done.durability) == ("approved", "committed")

    await lose()

    # Nobody is asked again, and nobody can say anything else.
    assert await app.approvals.list(run=run.id) == []
    with pytest.raises(Conflict) as refused:
        await app.approvals.reject(asked.id, by="ann", digest=asked.digest)
    assert refused.value.facts["decision"] == done.decision
    assert (await app.approvals.get(asked.id)).votes == done.votes
    await start_worker(archive=False)
    assert await run.result(30) == done.decision
    history = await run.history()
    assert openings(history) == 1 and [event.type for event in history].count("approval_decided") == 1
    await look()
    assert await rows("ballots") == []


@sqlite_only
async def test_a_decision_stands_although_the_opening_was_lost_too(
    app, order, ask, archive, lose, look, start_worker, eventually, rows
):
    await archive()
    run, asked = await ask(order.graph.options(durability="committed"))
    done = await app.approvals.reject(asked.id, by="bo", digest=asked.digest)

    await lose()  # the archive knows the start, and nothing else

    assert await look() == 0 and len(await rows("ballots")) == 1, "it is kept until it is asked again"
    worker = await start_worker(archive=False)
    (again,) = await eventually(lambda: app.approvals.list(run=run.id))
    await worker.stop()
    assert again.opened_at > asked.opened_at and again.digest == asked.digest
    # Whoever is quicker than the archiver is told so.
    with pytest.raises(Conflict) as refused:
        await app.approvals.approve(asked.id, by="ann", digest=asked.digest)
    assert refused.value.facts["decision"]["by"] == "bo"
    assert (await app.approvals.get(asked.id)).decision == done.decision
    await look()
    assert await rows("ballots") == []


@sqlite_only
async def test_votes_of_a_quorum_stand_and_what_time_would_have_done_waits_for_them(
    app, archive, lose, look, start_worker, eventually, raw
):
    graph = app.graph("two", output="${ok}")
    graph.approval("ok", title="?", approvers=["ann", "bo"], quorum=2, timeout="2s", on_timeout="reject")
    await archive()
    worker = await start_worker(archive=False)
    run = await graph.start()
    (asked,) = await eventually(lambda: app.approvals.list(run=run.id))
    await worker.stop()
    await archive()
    first = await app.approvals.approve(asked.id, by="ann", digest=asked.digest, request_id="one")
    assert (first.status, first.durability, len(first.votes)) == ("pending", "committed", 1)
    # The second comes in time, by somebody to whom it was delegated; the loss takes longer than there is time.
    await app.approvals.delegate(asked.id, by="bo", to="eve")
    done = await app.approvals.approve(asked.id, by="eve", digest=asked.digest)
    assert done.status == "approved"
    while (await app.engine().ns.read("TIME", p=0))[0] < b"%d" % (asked.due_at.timestamp() + 1):
        await asyncio.sleep(0.05)

    await lose()
    await start_worker(archive=False)

    result = await run.result(30)
    assert result == done.decision and [vote["by"] for vote in result["votes"]] == ["ann", "eve"]
    # The same call again answers the same.
    same = await app.approvals.approve(asked.id, by="ann", digest=asked.digest, request_id="one")
    assert same.status == "approved"
    assert await look() == 0


@sqlite_only
async def test_a_vote_that_the_store_never_heard_of_is_counted_once(app, order, ask, archive, look, rows, cut):
    await archive()
    _, asked = await ask()
    cut()
    with pytest.raises(
        DurabilityUnmet, match=r"stands in the database, but the store did not take it.*request_id='r1'"
    ):
        await app.approvals.approve(asked.id, by="ann", digest=asked.digest, request_id="r1")
    cut(False)
    assert (await app.approvals.get(asked.id)).status == "pending"

    assert await look() == 1
    found = await app.approvals.get(asked.id)
    assert (found.status, len(found.votes)) == ("approved", 1)
    assert (await app.approvals.approve(asked.id, by="ann", digest=asked.digest, request_id="r1")).status == "approved"
    assert await look() == 0 and await rows("ballots") == []


@sqlite_only
async def test_who_comes_later_counts_earlier_ballots_first(app, order, ask, archive, look, rows, cut):
    await archive()
    _, asked = await ask()
    cut()
    with pytest.raises(DurabilityUnmet):
        await app.approvals.approve(asked.id, by="ann", digest=asked.digest)
    cut(False)

    with pytest.raises(Conflict) as refused:
        await app.approvals.reject(asked.id, by="bo", digest=asked.digest)
    assert refused.value.facts["decision"]["by"] == "ann"
    assert [row.actor for row in await rows("ballots")] == ["ann"], "the ballot that lost is gone"
    await look()
    assert await rows("ballots") == []


async def test_many_clicks_at_once_make_one_decision_and_one_ballot(app, order, ask, archive, look, rows, database_url):
    await archive()
    _, asked = await ask()

    async def click(n):
        vote = app.approvals.approve if n % 2 else app.approvals.reject
        try:
            return await vote(asked.id, by=("ann", "bo", "cy")[n % 3], digest=asked.digest, request_id=f"c{n}")
        except Conflict as error:
            return error

    told = await asyncio.gather(*(click(n) for n in range(12)))
    won = [one for one in told if not isinstance(one, Conflict)]
    assert len(won) == 1 and won[0].durability == "committed"
    decision = (await app.approvals.get(asked.id)).decision
    assert won[0].decision == decision
    assert all(one.facts["decision"]["by"] == decision["by"] for one in told if isinstance(one, Conflict))
    assert len(await rows("ballots")) == 1
    await look()
    assert await rows("ballots") == []


async def test_votes_that_share_a_request_id_are_not_taken_for_one(app, order, ask, archive, look, rows):
    await archive()
    _, asked = await ask()
    votes = [app.approvals.approve(asked.id, by=by, digest=asked.digest, request_id="k") for by in ("ann", "bo")]
    first, second = await asyncio.gather(*votes, return_exceptions=True)
    assert {type(first), type(second)} == {Approval, Conflict}
    (vote,) = (await app.approvals.get(asked.id)).votes
    assert vote["by"] == ("ann" if isinstance(second, Conflict) else "bo")
    await look()
    assert await rows("ballots") == []


@sqlite_only
async def test_a_database_that_is_down_or_another_refuses_and_decides_nothing(
    app, order, ask, archive, rows, server, tmp_path, monkeypatch
):
    await archive()
    _, asked = await ask()
    honest = Ballots.write

    async def down(*_):
        raise Unavailable("the cold store does not serve: gone")

    monkeypatch.setattr(Ballots, "write", down)
    with pytest.raises(
        DurabilityUnmet, match=r"did not take the vote of ann.*told of nothing.*Decide again with request_id"
    ):
        await app.approvals.approve(asked.id, by="ann", digest=asked.digest)
    monkeypatch.setattr(Ballots, "write", honest)
    # What is wrong with a vote is told all the same, and nothing is written of it.
    with pytest.raises(NotAllowed):
        await app.approvals.approve(asked.id, by="dora", digest=asked.digest)
    with pytest.raises(InvalidArguments, match="via must be"):
        await app.approvals.approve(asked.id, by="ann", digest=asked.digest, via="a\0b")

    refusals = {tmp_path: "does not serve.*Nothing was decided: try again", tmp_path / "other": "set WEFT_DATABASE_URL"}
    name = app.engine().ns.keys.namespace
    for path, why in refusals.items():
        async with Weft("other", redis_url=server.url, namespace=name, database_url=f"sqlite:///{path}") as elsewhere:
            with pytest.raises(DurabilityUnmet, match=why):
                await elsewhere.approvals.approve(asked.id, by="ann", digest=asked.digest)
    assert (await app.approvals.get(asked.id)).votes == [] and await rows("ballots") == []


@sqlite_only
async def test_where_nobody_archives_a_decision_is_as_safe_as_the_store(app, order, ask, tmp_path):
    _, asked = await ask()
    done = await app.approvals.approve(asked.id, by="ann", digest=asked.digest)
    assert done.durability in ("fsync", "redis") and not (tmp_path / "archive.sqlite").exists()


@sqlite_only
async def test_a_ballot_of_an_earlier_opening_does_not_decide_the_next(
    app, archive, look, start_worker, eventually, rows
):
    graph = app.graph("again")
    graph.approval("ok", title="?")

    @graph.node(after="ok", when="ok.decision == 'rejected'")
    async def fails() -> None:
        raise ValueError("no")

    await archive()
    await start_worker(archive=False)
    run = await graph.start()
    (asked,) = await eventually(lambda: app.approvals.list(run=run.id))
    await app.approvals.reject(asked.id, by="ann", digest=asked.digest)
    with pytest.raises(StepFailed):
        await run.result(30)
    await run.retry(from_step="ok")
    (again,) = await eventually(lambda: app.approvals.list(run=run.id))
    assert again.digest == asked.digest and len(await rows("ballots")) == 1

    assert await look() == 0
    assert (await app.approvals.get(asked.id)).status == "pending" and await rows("ballots") == []


@sqlite_only
async def test_who_decides_what_only_the_archive_has_is_told_the_decision(
    app, order, ask, archive, forget, start_worker
):
    await archive()
    run, asked = await ask()
    done = await app.approvals.approve(asked.id, by="ann", digest=asked.digest)
    await start_worker(archive=False)
    await run.result(30)
    await archive()
    forget(run)

    with pytest.raises(Conflict, match="is approved by ann") as refused:
        await app.approvals.reject(asked.id, by="bo", digest=asked.digest)
    assert refused.value.facts["decision"] == done.decision


@sqlite_only
async def test_nobody_is_told_that_an_approval_never_was_while_it_is_rebuilt(app, order, ask, archive, raw):
    await archive()
    _, asked = await ask()
    ns = app.engine().ns
    raw.delete(*(key for key in raw.scan_iter(match=f"{ns.keys.namespace}:*")))
    with pytest.raises(PartitionLost):
        await app.approvals.approve(asked.id, by="ann", digest=asked.digest)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(8))
async def test_what_was_acknowledged_is_what_is_decided_whoever_dies_and_whatever_is_lost(
    app, order, ask, archive, lose, monkeypatch, seed
):
    chance = random.Random(seed)
    honest = voting.count_ballot

    async def count(ns, table, ballot):
        await asyncio.sleep(chance.random() * 0.02)
        if ballot.vote.by in dying and asyncio.current_task().get_name() == ballot.vote.by:
            raise Unavailable("died")
        return await honest(ns, table, ballot)

    monkeypatch.setattr(voting, "count_ballot", count)
    await archive()
    _, asked = await ask(order.graph.options(durability="committed"))
    await archive()
    dying = {who for who in ("ann", "bo", "cy") if chance.random() < 0.4}

    async def click(who):
        vote = chance.choice([app.approvals.approve, app.approvals.reject])
        await asyncio.sleep(chance.random() * 0.02)
        return await vote(asked.id, by=who, digest=asked.digest)

    tasks = [asyncio.create_task(click(who), name=who) for who in ("ann", "bo", "cy")]
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, (Approval, Conflict, DurabilityUnmet)) for one in told)
    won = [one.decision for one in told if isinstance(one, Approval)]
    refused = [one.facts["decision"] for one in told if isinstance(one, Conflict)]
    if chance.random() < 0.3:
        await archive()
    dying = set()

    await lose()

    found = await app.approvals.get(asked.id)
    assert found.status != "pending" and len(won) <= 1
    assert all(one == found.decision for one in (*won, *refused))


#: Decides, and says what it was told. Dies where the environment says.
VOTER = """
import asyncio, os, sys
from weft import Weft
from weft.archive.ballots import Ballots
from weft.store import connection
from weft.testing.crash import install_from_environ

write = Ballots.write
async def told(self, *args):
    connection.boundary("before", "write")
    found = await write(self, *args)
    connection.boundary("after", "write")
    return found
Ballots.write = told

async def main():
    async with Weft("voter") as app:
        asked = await app.approvals.get(sys.argv[1])
        install_from_environ()
        done = await app.approvals.approve(asked.id, by="ann", digest=asked.digest, request_id="r1")
        os.write(1, f"{done.status} {done.durability}\\n".encode())

asyncio.run(main())
"""


@sqlite_only
@pytest.mark.parametrize(
    ("point", "counted"),
    [
        ("after:write:1", 1),
        pytest.param("before:write:1", 0, marks=pytest.mark.chaos),
        pytest.param("before:change_approval:1", 1, marks=pytest.mark.chaos),
        pytest.param("after:change_approval:1", 0, marks=pytest.mark.chaos),
    ],
)
async def test_a_voter_killed_between_the_writes_loses_nothing_and_doubles_nothing(
    app, order, ask, archive, look, start_worker, server, database_url, rows, point, counted
):
    await archive()
    run, asked = await ask()
    env = {
        **os.environ,
        "WEFT_REDIS_URL": server.url,
        "WEFT_NAMESPACE": app.engine().ns.keys.namespace,
        "WEFT_DATABASE_URL": database_url,
        CRASH_AT: point,
        "PYTHONPATH": str(Path(voting.__file__).parents[2]),
    }

    command = [sys.executable, "-c", VOTER, asked.id]
    killed = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True)
    assert (killed.returncode, killed.stdout) == (-9, b""), killed.stderr.decode()

    assert await look() == counted
    found = await app.approvals.get(asked.id)
    assert found.status == ("pending" if point.startswith("before:write") else "approved")
    again = await app.approvals.approve(asked.id, by="ann", digest=asked.digest, request_id="r1")
    assert again.status == "approved" and [one["by"] for one in again.votes] == ["ann"]
    await start_worker(archive=False)
    assert (await run.result(30))["decision"] == "approved"
    await look()
    assert await rows("ballots") == []
