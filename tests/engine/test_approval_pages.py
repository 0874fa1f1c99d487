"""Lists of approvals come in pages that fit, whatever opens and is decided between them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from weft import Approval, ApprovalPage, InvalidOption, Weft
from weft.engine import pending
from weft.sdk.graphrun import GraphRun


@pytest.fixture
async def ask(app: Weft, start_worker: Any, eventually: Any, quiet: Any) -> AsyncIterator[Any]:
    """Starts runs that ask one thing each, and waits until all are asked. Those still open at the end are cancelled."""
    graph = app.graph("asks", output="${review.decision}")
    graph.approval("review", approvers=["ann", "${input.who}"])
    await start_worker()

    async def start(n: int, who: str = "bob") -> list[GraphRun]:
        runs = [await graph.start({"who": who}) for _ in range(n)]
        for run in runs:
            await eventually(lambda run=run: app.approvals.list(run=run.id))
        return runs

    yield start
    for info in await app.runs.list(name="asks", limit=1000):
        await app.runs.get(info.id).cancel()
    await quiet()


async def decide(app: Weft, *asked: Approval) -> None:
    for one in asked:
        await app.approvals.approve(one.id, by="ann", digest=one.digest)


async def pages(app: Weft, **options: Any) -> list[ApprovalPage]:
    found = [await app.approvals.list(**options)]
    while found[-1].cursor:
        found.append(await app.approvals.list(cursor=found[-1].cursor, **options))
    return found


async def test_pages_follow_on_each_other(app: Weft, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = await ask(5) + await ask(3, "carl")
    whole = await app.approvals.list()
    assert whole.cursor == "" and {one.run_id for one in whole} == {run.id for run in runs}
    assert [one.opened_at for one in whole] == sorted(one.opened_at for one in whole)

    for read_at_once in (1, 3, 100):
        monkeypatch.setattr(pending, "PAGE", read_at_once)
        for limit in (1, 3, 8, 9):
            paged = await pages(app, limit=limit)
            assert [len(page) for page in paged[:-1]] == [limit] * (len(paged) - 1)
            assert [one.id for page in paged for one in page] == [one.id for one in whole]
        for who, n in (("bob", 5), ("carl", 3), ("ann", 8), ("dan", 0)):
            assert sum(map(len, await pages(app, limit=2, approver=who))) == n
        assert [len(page) for page in await pages(app, limit=1, run=runs[2].id)] == [1]
    await decide(app, *whole)
    assert await app.approvals.list() == []


async def test_what_opens_and_is_decided_between_pages_shifts_nothing(app: Weft, ask: Any) -> None:
    await ask(9)
    first = await app.approvals.list(limit=3)
    rest = (await app.approvals.list())[3:]

    await decide(app, *first, rest[1])  # the one that the cursor names among them
    (late,) = await ask(1)
    second = await app.approvals.list(limit=3, cursor=first.cursor)
    await decide(app, *second[1:], rest[4])
    third = await app.approvals.list(limit=3, cursor=second.cursor)

    assert [one.id for one in (*second, *third)] == [
        *(one.id for one in (rest[0], rest[2], rest[3], rest[5])),
        f"{late.id}/review",
    ]
    assert second.cursor and not third.cursor


async def test_what_waits_all_the_while_is_listed_once_at_random(app: Weft, ask: Any) -> None:
    chance = random.Random(4)
    await ask(14)
    for limit in (1, 2, 5):
        stays = {one.id for one in await app.approvals.list()}
        seen: list[str] = []
        page = await app.approvals.list(limit=limit)
        while True:
            seen += [one.id for one in page]
            if chance.random() < 0.4:
                gone = chance.choice(await app.approvals.list())
                stays.discard(gone.id)
                await decide(app, gone)
            if chance.random() < 0.3:
                await ask(1)
            if not page.cursor:
                break
            page = await app.approvals.list(limit=limit, cursor=page.cursor)
        assert len(seen) == len(set(seen)) and stays <= set(seen)


@pytest.mark.parametrize("cursor", ["x", "1", "1.", ".a/b", "1.a b", 7])
async def test_what_no_page_gave_is_no_cursor(app: Weft, cursor: Any) -> None:
    with pytest.raises(InvalidOption, match="is not a cursor"):
        await app.approvals.list(cursor=cursor)
