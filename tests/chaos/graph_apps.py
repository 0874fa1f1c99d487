"""Graphs whose workers are killed: they live in a module, so that processes of their own can import them."""

from __future__ import annotations

import asyncio

from weft import Weft

app = Weft("graph-apps")


@app.task(retries=3, retry_delay="10ms")
async def refund(what: str) -> str:
    return f"refunded {what}"


trip = app.graph("trip")


@trip.node(compensate={"call": refund, "with": {"what": "${flight}"}})
async def flight() -> str:
    return "flight"


@trip.node(after=flight, map="[1, 2]", max_parallel=1, compensate={"call": refund, "with": {"what": "room ${item}"}})
async def rooms(item: int) -> int:
    return item


@trip.node(after=rooms, on_error="dead_letter")
async def greet() -> None:
    raise ValueError("no printer")


@trip.node(after=greet)
async def pay() -> None:
    raise ValueError("no money")


square = app.graph("square")


@square.node
async def multiply(n: int) -> int:
    return n * n


squares = app.graph("squares")
squares.subgraph("each", square, map="[1, 2, 3]", max_parallel=2, with_={"n": "${item}"})
squares.transform("total", "${each[0] + each[1] + each[2]}", after="each")


answers = app.graph("answers")


@answers.node(map="[1, 2, 3]", hedge="50ms")
async def ask(item: int) -> int:
    await asyncio.sleep(0.3)
    return item * 10


relay = app.graph("relay")


@app.task
async def add_one(n: int = 0) -> int:
    return n + 1


for leg in range(4):
    relay.task(
        f"leg{leg}", add_one, after=[f"leg{leg - 1}"] if leg else [], with_={"n": f"${{leg{leg - 1}}}"} if leg else {}
    )
