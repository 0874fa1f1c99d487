"""A graph for scenarios with killed workers: a map, a loop, a join and a wait."""

import asyncio

from weft import Weft

app = Weft("graphs")
busy = app.graph("busy", output="${end}")


@app.task
async def note(text: str) -> str:
    await asyncio.sleep(0.01)
    return text


@busy.node
async def a() -> list:
    return list(range(8))


@busy.node(after=a, map="a", max_parallel=3)
async def m(item: int) -> int:
    await asyncio.sleep(0.02)
    return item


busy.wait("nap", duration="50ms", after=a)


@busy.node(after=m)
async def body(iteration: int) -> int:
    await asyncio.sleep(0.02)
    return iteration


busy.loop("again", after=body, to=body, while_="iteration < 2", max_iterations=5)


@busy.node(after=["again", "nap"])
async def end(m: list) -> int:
    return sum(m)
