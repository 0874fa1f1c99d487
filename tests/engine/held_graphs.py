"""A graph whose first node runs until it is let go, for tests that change runs while they are under way."""

from __future__ import annotations

import asyncio
from typing import Any

from weft import Weft


def held_line(app: Weft, name: str, **options: Any) -> Any:
    """a -> b -> c: `graph.began` is set when a runs, it ends when `graph.go` is set, `graph.ran` tells what has run."""
    graph: Any = app.graph(name, **options)
    graph.began, graph.go, graph.ran = asyncio.Event(), asyncio.Event(), []

    @graph.node(timeout="60s")
    async def a() -> int:
        graph.began.set()
        await graph.go.wait()
        graph.ran.append("a")
        return 1

    @graph.node(after=a)
    async def b(a: int) -> int:
        graph.ran.append("b")
        return a + 1

    @graph.node(after=b)
    async def c(b: int) -> int:
        graph.ran.append("c")
        return b + 1

    return graph


async def started(graph: Any) -> Any:
    """Starts a run and waits until its first node runs."""
    run = await graph.start()
    await asyncio.wait_for(graph.began.wait(), 10)
    return run
