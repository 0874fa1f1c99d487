"""Values that workflows give and get by type: of steps whose functions share their code, of signals and of updates."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from weft import Context, PayloadTooLarge, StepFailed, Weft
from weft.errors import DefinitionError, PayloadRefused


@dataclass
class Paid:
    amount: int
    at: datetime


@dataclass
class Sent:
    by: str


WHEN = datetime(2026, 11, 16, 12, tzinfo=UTC)


def traced(fn: Any) -> Any:
    @functools.wraps(fn)
    async def traced(*args: Any) -> Any:
        return await fn(*args)

    return traced


class Bank:
    @staticmethod
    @traced
    async def get() -> Paid:
        return Paid(5, WHEN)


class Post:
    @staticmethod
    @traced
    async def get() -> Sent:
        return Sent("ship")


async def test_steps_of_one_name_and_one_decorator_keep_their_own_types(app: Weft, memory: str):
    @app.workflow
    async def flow(ctx: Context) -> list[bool]:
        paid, sent = await ctx.step(Bank.get), await ctx.step(Post.get)
        await ctx.sleep("1ms")
        return [paid == Paid(5, WHEN), sent == Sent("ship")]

    async with app.worker():
        assert await (await flow.start()).result(timeout=10) == [True, True]


def making(value: Any, kind: Any) -> tuple[Any, Any]:
    async def make():
        return value

    async def give(value):
        return value

    make.__annotations__ = {"return": kind}
    give.__annotations__ = {"value": kind, "return": kind}
    return make, give


async def test_functions_that_a_function_makes_keep_their_own_types(app: Weft, memory: str):
    paid, sent = making(Paid(5, WHEN), Paid), making(Sent("ship"), Sent)

    @app.workflow
    async def flow(ctx: Context) -> list[bool]:
        ctx.on_update("paid", paid[1])
        ctx.on_update("sent", sent[1])
        got = [await ctx.step(paid[0]), await ctx.step(sent[0])]
        await ctx.receive("go")
        return [got[0] == Paid(5, WHEN), got[1] == Sent("ship")]

    async with app.worker():
        run = await flow.start()
        assert await run.update("paid", Paid(7, WHEN), type=Paid) == Paid(7, WHEN)
        assert await run.update("sent", {"by": "air"}, type=Sent) == Sent("air")
        await run.signal("go")
        assert await run.result(timeout=10) == [True, True]


async def test_a_callable_without_a_hash_is_told_that_it_needs_a_name(app: Weft):
    @dataclass
    class Adder:
        n: int

        def __call__(self, m: int) -> int:
            return self.n + m

    @app.workflow
    async def flow(ctx: Context, named: bool) -> int:
        return await (ctx.options(name="add") if named else ctx).step(Adder(2), 3)

    async with app.worker():
        assert await (await flow.start(True)).result(timeout=10) == 5
        with pytest.raises(StepFailed, match=r"has no name to be remembered by: ctx\.options\(name="):
            await (await flow.start(False)).result(timeout=10)


async def test_signals_carry_values_of_a_type_and_are_received_as_that(app: Weft, memory: str):
    @app.workflow
    async def target(ctx: Context) -> list[bool]:
        got = [await ctx.receive("paid", type=Paid) for _ in range(2)]
        moment = await ctx.receive("moment", type=datetime)
        return [*(one == Paid(5, WHEN) for one in got), moment == WHEN]

    @app.workflow
    async def source(ctx: Context, to: str) -> None:
        await ctx.signal(to, "paid", Paid(5, WHEN))

    async with app.worker():
        run = await target.start()
        await run.signal("paid", Paid(5, WHEN))
        await (await source.start(run.id)).result(timeout=10)
        await run.signal("moment", WHEN)
        assert await run.result(timeout=10) == [True, True, True]


async def test_what_no_signal_can_carry_is_refused_where_it_is_given(app: Weft):
    @app.workflow
    async def source(ctx: Context, to: str) -> str:
        try:
            ctx.signal(to, "big", "x" * 70_000)
        except PayloadTooLarge as error:
            return str(error)
        return "sent"

    run = await source.start("r0-06GY90KY710GPAF36MBZA5")
    for value, refused in ((object(), PayloadRefused), ([Sent("ship")], PayloadRefused), (print, DefinitionError)):
        with pytest.raises(refused, match="the value of signal go"):
            await run.signal("go", value)
    async with app.worker():
        assert "at most 65536 go with one" in await run.result(timeout=10)
