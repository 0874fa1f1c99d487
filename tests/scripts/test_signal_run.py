"""signal_run.lua: a signal goes to the step that has waited longest, or is kept until one does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from parked import claimed_steps, graph_of, parked_signal, signals_of
from partition import Partition

from weft.core.model import ROUTES
from weft.errors import NotFound
from weft.ids import new_run_id
from weft.store.runs import end_run, read_runs
from weft.store.waits import MAX_KEPT, MAX_REMEMBERED, signal_run

pytestmark = pytest.mark.leaves("open runs", "pending")


async def send(part: Partition, run: str, value: bytes = b"v", *, step: str = "", request: str = "q") -> str:
    return await signal_run(part.ns, part.p, run, name="go", value=value, step=step, request=request, by="c-1")


async def test_the_step_gets_a_token_and_what_it_waited_for(part: Partition) -> None:
    (token,) = await claimed_steps(part, "paid")
    run = graph_of(token.run)
    await parked_signal(part, token, wait_ms=60_000)
    part.take_pebbles()
    part.raw.delete(part.keys.wake(part.p, ROUTES))

    assert await send(part, run, step="paid") == "given paid"

    ((entry, fields),) = part.stream(ROUTES)
    assert fields == {"r": token.run, "n": "2:1"}
    step = part.run(token.run)
    assert step["open"] == f"2:{entry}" and step["given"] == b"+v"
    assert not {"status", "due"} & step.keys() and part.timers() == {}
    assert part.run(run)["parked"] == "0" and "?go" not in signals_of(part, run)
    assert part.pebbles(ROUTES) == 1
    last = part.events(run)[-1]
    assert (last.type, last.facts, last.payload) == (
        "signalled",
        {"name": "go", "request": "q", "step": "paid"},
        b"v",
    )


async def test_the_caller_is_told_who_waits(part: Partition) -> None:
    a, b = await claimed_steps(part, "a", "b")
    await parked_signal(part, b)
    await parked_signal(part, a)
    before = part.snapshot()
    assert await send(part, graph_of(a.run)) == "again b"
    assert await send(part, graph_of(a.run), step="a") == "again b"
    assert part.snapshot() == before
    assert await send(part, graph_of(a.run), step="b") == "given b"
    assert await send(part, graph_of(a.run), step="b", request="q2") == "again a"


async def test_a_step_that_left_without_a_word_is_passed_over(part: Partition) -> None:
    (token,) = await claimed_steps(part, "paid")
    await parked_signal(part, token)
    part.raw.hset(part.keys.run(part.p, token.run), "open", "=1:?signal:go")
    assert await send(part, graph_of(token.run), step="paid") == "again "
    assert await send(part, graph_of(token.run)) == "kept"
    part.raw.hset(part.keys.run(part.p, token.run), "open", "1:?signal:go")


async def test_a_repeated_call_is_answered_the_same(part: Partition) -> None:
    (token,) = await claimed_steps(part, "paid")
    run = graph_of(token.run)
    assert await send(part, run) == "kept"
    before = part.snapshot()
    assert await send(part, run) == "kept"
    assert part.snapshot() == before


async def test_what_is_kept_and_remembered_is_bounded(part: Partition) -> None:
    (token,) = await claimed_steps(part, "paid")
    run = graph_of(token.run)
    for n in range(MAX_KEPT):
        assert await send(part, run, request=f"q{n}") == "kept"
    assert await send(part, run, request="more") == "full"
    for n in range(MAX_KEPT, MAX_REMEMBERED + 10):
        key = part.keys.run(part.p, token.run)
        part.raw.hdel(key, "given")
        assert await parked_signal(part, token) == "given"
        assert await send(part, run, request=f"q{n}") == "kept"
    found = signals_of(part, run)
    assert sum(field.startswith("=") for field in found) == MAX_REMEMBERED
    assert "=q0" not in found and f"=q{MAX_REMEMBERED + 9}" in found


async def test_an_ended_run_takes_none_and_an_unknown_one_is_not_there(part: Partition) -> None:
    (token,) = await claimed_steps(part, "paid")
    (row,) = await read_runs(part.ns, part.p, [graph_of(token.run)])
    assert row is not None
    await end_run(part.ns, part.p, row, kind="cancelled", value=b"\x80", keep_ms=60_000, by="c")
    before = part.snapshot()
    assert await send(part, graph_of(token.run)) == "ended cancelled"
    with pytest.raises(NotFound, match="there is no run"):
        await send(part, new_run_id(part.p))
    assert part.snapshot() == before


async def test_it_minds_the_epoch(
    part: Partition, refuses_other_epochs: Callable[[Callable[[], Awaitable[Any]]], Awaitable[None]]
) -> None:
    (token,) = await claimed_steps(part, "paid")
    await refuses_other_epochs(lambda: send(part, graph_of(token.run)))
