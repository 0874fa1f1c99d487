"""Steps and tasks that a test replaces, and signals at a time of its choice."""

from __future__ import annotations

import pytest

from weft import Context, InvalidArguments, NotBuilt, Weft


async def charge(order: str) -> str:
    raise AssertionError("the bank must not be asked")


def weigh(order: str) -> int:
    raise AssertionError("there is no scale")


async def test_steps_and_tasks_are_mocked_and_signals_come_at_their_time(weft_app: Weft, weft_testing, memory: str):
    app = weft_app

    @app.task
    async def pack(order: str) -> str:
        raise AssertionError("nobody packs")

    @app.workflow
    async def order(ctx: Context, id: str) -> list[object]:
        async def inner() -> str:
            raise AssertionError

        done = [await ctx.step(charge, id), await ctx.step(weigh, id), await ctx.step(inner), await ctx.call(pack, id)]
        begun = ctx.now()
        done.append(await ctx.receive("paid", timeout="7d"))
        return [*done, (ctx.now() - begun).days, await ctx.options(name="again").step(charge, id)]

    async def later(id: str) -> str:
        return f"again {id}"

    real = pack.fn
    weft_testing.mock(charge, lambda id: f"paid {id}")
    weft_testing.mock("again", later)
    weft_testing.mock(weigh, lambda id: 5)
    weft_testing.mock("inner", lambda: "inside")
    weft_testing.mock(pack, lambda id: f"packed {id}")
    run = await order.start("o")
    await weft_testing.run_until_idle(advance="3d")
    await run.signal("paid", 7)
    await weft_testing.run_until_idle(advance=True)

    assert await run.result(timeout=5) == ["paid o", 5, "inside", "packed o", 7, 3, "again o"]
    weft_testing.__exit__()
    assert pack.fn is real
    weft_testing.__enter__()


async def test_what_cannot_be_mocked_is_refused(weft_app: Weft, weft_testing):
    @weft_app.task
    def plain() -> None: ...

    @weft_app.task(batch=10)
    async def together(items: list[int]) -> None: ...

    with pytest.raises(InvalidArguments, match="a function that runs instead"):
        weft_testing.mock(plain, 5)
    with pytest.raises(InvalidArguments, match="plain `def`"):
        weft_testing.mock(plain, charge)
    with pytest.raises(NotBuilt, match="in batches"):
        weft_testing.mock("together", lambda items: None)


def test_what_would_never_be_asked_for_is_refused(weft_app, weft_testing):
    for what in (weft_app.graph("shapes"), 3, None):
        with pytest.raises(
            InvalidArguments, match="mock takes a task, a workflow, a function or the name of a step, not"
        ):
            weft_testing.mock(what, lambda: None)


class _Bank:
    async def pay(self, order: str) -> str:
        raise AssertionError


async def test_methods_and_children_are_mocked(weft_app: Weft, weft_testing):
    bank = _Bank()

    @weft_app.workflow
    async def parcel(ctx: Context, id: str) -> str:
        raise AssertionError

    @weft_app.workflow
    async def order(ctx: Context, id: str) -> list[str]:
        return [await ctx.step(bank.pay, id), await ctx.child(parcel, id)]

    real = parcel.fn
    weft_testing.mock(bank.pay, lambda id: f"paid {id}")
    weft_testing.mock(parcel, lambda id: f"sent {id}")
    run = await order.start("o")
    await weft_testing.run_until_idle()
    assert await run.result(timeout=5) == ["paid o", "sent o"]
    weft_testing.__exit__()
    assert parcel.fn is real
    weft_testing.__enter__()
