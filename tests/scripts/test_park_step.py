"""park_step.lua: a claimed step waits; its token goes, and nothing is in its place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from parked import claimed_steps, graph_of, parked_approval, parked_signal, signals_of
from partition import Partition

from weft.core.model import ROUTES
from weft.store.runs import end_run, read_runs
from weft.store.waits import park_step, signal_run

pytestmark = pytest.mark.leaves("open runs", "pending")


async def test_a_step_waits_without_token_or_timer(part: Partition) -> None:
    (token,) = await claimed_steps(part, "paid")
    run = graph_of(token.run)

    assert await parked_signal(part, token) == "parked"

    assert part.stream(ROUTES) == [] and part.pending(ROUTES) == [] and part.timers() == {}
    step = part.run(token.run)
    assert (step["open"], step["status"]) == ("1:?signal:go", "waiting") and "due" not in step
    assert signals_of(part, run) == {"?go": "paid"}
    assert part.run(run)["parked"] == "1"
    last = part.events(run)[-1]
    assert (last.seq, last.type, last.facts) == (3, "step_waiting", {"step": "paid", "waits": "signal:go"})
    assert part.run(run)["seq"] == "3"


async def test_a_timeout_is_a_timer(part: Partition) -> None:
    (token,) = await claimed_steps(part, "paid")
    await parked_signal(part, token, wait_ms=60_000)
    due = int(part.run(token.run)["due"])
    assert part.timers() == {f"wait:{token.run}": due} and part.timer_pebbles() == 1


async def test_those_who_wait_for_one_name_stand_in_line(part: Partition) -> None:
    a, b = await claimed_steps(part, "a", "b")
    await parked_signal(part, b)
    await parked_signal(part, a)
    assert signals_of(part, graph_of(a.run)) == {"?go": "b a"}


async def test_a_signal_that_was_there_is_taken_and_the_token_stays(part: Partition) -> None:
    (token,) = await claimed_steps(part, "paid")
    run = graph_of(token.run)
    for value in (b"1", b"2"):
        word = await signal_run(part.ns, part.p, run, name="go", value=value, step="", request=value.decode(), by="c")
        assert word == "kept"
    before = part.run(token.run)["open"]

    assert await parked_signal(part, token) == "given"
    assert await parked_signal(part, token) == "given"  # a repeated call takes no second one

    assert part.raw.hget(part.keys.run(part.p, token.run), "given") == b"+1"
    assert part.run(token.run)["open"] == before and len(part.pending(ROUTES)) == 1
    assert signals_of(part, run)["#go"] == "2 3"


async def test_an_approval_keeps_a_record_and_stands_in_the_index(part: Partition) -> None:
    record = await parked_approval(part, title="Go?", approvers=["anna"])
    assert (record.status, record.rev, record.digest, record.ask.title) == ("pending", 1, "d1", "Go?")
    index = part.raw.zrange(part.keys.pending_approvals(part.p), 0, -1, withscores=True)
    assert index == [(record.id.encode(), record.opened_ms)]
    assert part.run(record.id)["open"] == "1:?approval"
    assert part.run(graph_of(record.id))["approvals"] == "review"


@pytest.mark.parametrize("how", ["repeated", "other token", "run ended"])
async def test_a_step_that_is_not_the_callers_does_not_wait(part: Partition, how: str) -> None:
    (token,) = await claimed_steps(part, "paid")
    if how == "repeated":
        await parked_signal(part, token)
    elif how == "other token":
        token = replace(token, delivery=2)
    else:
        (row,) = await read_runs(part.ns, part.p, [graph_of(token.run)])
        assert row is not None
        await end_run(part.ns, part.p, row, kind="cancelled", value=b"\x80", keep_ms=60_000, by="c")
    before = part.snapshot()
    assert await parked_signal(part, token) == ("gone" if how == "run ended" else "stale")
    assert part.snapshot() == before


async def test_it_minds_the_epoch(
    part: Partition, refuses_other_epochs: Callable[[Callable[[], Awaitable[Any]]], Awaitable[None]]
) -> None:
    (token,) = await claimed_steps(part, "paid")
    await refuses_other_epochs(lambda: park_step(part.ns, part.p, token, kind="signal:go", by="s-1"))
