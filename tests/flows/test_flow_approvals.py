"""Workflows that wait for people."""

from __future__ import annotations

import pytest

from weft import Approval, Context, InvalidOption, Weft


async def _pending(app: Weft, eventually) -> Approval:
    async def asked() -> bool:
        return bool(await app.approvals.list())

    await eventually(asked)
    (approval,) = await app.approvals.list()
    assert approval.title == "Refund?" and approval.show == {"amount": 5}
    return approval


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_people_decide(app: Weft, eventually, memory: str, decision: str):
    @app.workflow
    async def refund(ctx: Context) -> list[object]:
        decided = await ctx.approve("Refund?", show={"amount": 5}, approvers=["ops"])
        return [bool(decided), decided["by"], decided["comment"]]

    async with app.worker():
        run = await refund.start()
        asked = await _pending(app, eventually)
        assert asked.id == f"{run.id}/approve"
        decide = getattr(app.approvals, decision)
        await decide(asked.id, by="ann", digest=asked.digest, roles=["ops"], comment="well")
        assert await run.result(timeout=10) == [decision == "approve", "ann", "well"]


async def test_silence_is_a_timeout(app: Weft):
    @app.workflow
    async def refund(ctx: Context) -> str:
        try:
            await ctx.approve("Refund?", timeout="50ms")
        except TimeoutError as error:
            return str(error)
        return "?"

    async with app.worker():
        assert "nobody decided within" in await (await refund.start()).result(timeout=10)


async def test_a_cancelled_run_asks_nobody_any_more(app: Weft, eventually, quiet):
    @app.workflow
    async def refund(ctx: Context) -> None:
        await ctx.approve("Refund?", show={"amount": 5})

    async with app.worker():
        run = await refund.start()
        await _pending(app, eventually)
        await run.cancel()

        async def gone() -> bool:
            return not await app.approvals.list()

        await eventually(gone)
        await quiet()


async def test_senseless_questions_are_refused(app: Weft):
    @app.workflow
    async def ask(ctx: Context) -> list[str]:
        wrong: list[dict[str, object]] = [{"approvers": "ops"}, {"quorum": 0}, {"form": {"type": "nonsense"}}]
        said = []
        for options in wrong:
            try:
                ctx.approve("?", **options)
            except InvalidOption as error:
                said.append(error.facts["option"])
        try:
            ctx.approve(" ")
        except InvalidOption as error:
            said.append(error.facts["option"])
        return said

    async with app.worker():
        assert await (await ask.start()).result(timeout=10) == ["approvers", "quorum", "form", "title"]
