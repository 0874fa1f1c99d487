"""expire_wait.lua: a signal that did not come in time is waited for no longer; one that came first has won."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from parked import claimed_steps, graph_of, parked_signal, signals_of
from partition import Partition

from weft.core.model import ROUTES
from weft.store.waits import expire_wait, signal_run

pytestmark = pytest.mark.leaves("open runs", "pending")


async def test_a_step_goes_on_with_nothing_when_its_time_is_over_and_not_before(part: Partition) -> None:
    a, b = await claimed_steps(part, "a", "b")
    for token in (a, b):
        await parked_signal(part, token, wait_ms=60_000)
    before = part.snapshot()
    await part.advance(59_000)
    assert await expire_wait(part.ns, part.p, a.run) == "early"
    after = part.snapshot()
    assert {key for key in after if after[key] != before.get(key)} <= {
        part.keys.epoch(part.p),
        part.keys.wake(part.p, "@timers"),
    }
    await part.advance(60_001)

    assert await expire_wait(part.ns, part.p, a.run) == "expired"

    assert part.run(a.run)["given"] == b"-" and [fields["r"] for _, fields in part.stream(ROUTES)] == [a.run]
    assert signals_of(part, graph_of(a.run)) == {"?go": "b"}
    assert list(part.timers()) == [f"wait:{b.run}"]
    assert await expire_wait(part.ns, part.p, a.run) == "gone"


async def test_a_signal_that_came_first_has_won(part: Partition) -> None:
    (token,) = await claimed_steps(part, "a")
    await parked_signal(part, token, wait_ms=1)
    await part.advance(10)
    run = graph_of(token.run)
    await signal_run(part.ns, part.p, run, name="go", value=b"v", step="a", request="q", by="c")
    assert await expire_wait(part.ns, part.p, token.run) == "gone"
    assert part.run(token.run)["given"] == b"+v" and len(part.stream(ROUTES)) == 1


async def test_it_minds_the_epoch(
    part: Partition, refuses_other_epochs: Callable[[Callable[[], Awaitable[Any]]], Awaitable[None]]
) -> None:
    (token,) = await claimed_steps(part, "a")
    await parked_signal(part, token, wait_ms=1)
    await refuses_other_epochs(lambda: expire_wait(part.ns, part.p, token.run))
