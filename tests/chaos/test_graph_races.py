"""Two sides want different things of one graph run in the same moment; workers are processes. One wins, and all agree."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from chaos.checker import Limits
from chaos.fleet import Fleet
from graphs.comparing import declare_graph
from graphs.promises import broken_promises
from weft import Conflict, RunCancelled

#: Races of each kind.
N = 40


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        fleet.start_workers(2)
        yield fleet


@pytest.fixture(autouse=True)
def unbroken(fleet: Fleet) -> Iterator[None]:
    """Whoever won: every run has ended once, its events fold, nothing is left."""
    yield
    wrong = broken_promises(fleet, Limits(crashes=0))
    assert not wrong, "\n".join(wrong[:20])


async def start(fleet: Fleet, nodes: dict[str, Any], **fields: Any) -> Any:
    return await declare_graph(fleet.app, {"name": "race", "nodes": nodes, **fields}).start({})


async def begun(run: Any, node: str) -> dict[str, Any]:
    """Waits until a node waits for somebody, or is over already because the machine is slow."""
    while True:
        about: dict[str, Any] = (await run.graph())["nodes"][node]
        if about["status"] in ("waiting", "completed"):
            return about
        await asyncio.sleep(0.01)


async def ended(run: Any) -> Any:
    """Returns what a run gave; RunCancelled when it was cancelled."""
    try:
        return await run.result(40)
    except RunCancelled:
        return RunCancelled


def test_a_hundred_clicks_against_the_timeout_make_one_decision(fleet: Fleet) -> None:
    """Half of them approve, half reject, and the timeout comes due in between."""
    rng, winners = random.Random(1), Counter[str]()
    review = {
        "type": "approval",
        "approvers": ["p"],
        "timeout": "400ms",
        "on_timeout": "continue",
        "on_reject": "continue",
    }

    async def click(asked: Any, decision: str, due: float) -> Any:
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        verb = getattr(fleet.app.approvals, decision)
        try:
            return (await verb(asked.id, by="p", digest=asked.digest)).decision
        except Conflict as error:
            return error.facts["decision"]

    async def race() -> None:
        run = await start(fleet, {"review": review}, output="${review}")
        began = asyncio.get_running_loop().time()
        about = await begun(run, "review")
        if "approval" not in about:
            return
        asked = await fleet.app.approvals.get(about["approval"])
        due = [began + 0.4 + rng.uniform(-0.05, 0.05) for _ in range(100)]
        told = await asyncio.gather(*(click(asked, "approve" if i % 2 else "reject", at) for i, at in enumerate(due)))
        decision = await run.result(40)
        assert told == [decision] * 100
        types = Counter(event.type for event in await run.history())
        assert types["approval_decided"] == types["step_completed"] == 1
        winners[decision["decision"]] += 1

    async def all() -> None:
        while winners.total() < 6:
            await race()

    fleet.call(all(), 120)
    print(dict(winners))


def test_a_patch_against_the_end_of_its_run_is_done_or_refused(fleet: Fleet) -> None:
    rng, ends = random.Random(2), Counter[str]()

    async def race() -> None:
        a = {"type": "task", "call": "slow", "with": {"n": 1, "ms": 20}}
        run = await start(fleet, {"a": a}, output="${a}")
        await asyncio.sleep(rng.uniform(0, 0.06))
        more = {"type": "task", "call": "act", "after": ["a"], "with": {"gives": "patched"}}
        try:
            await run.patch([{"op": "add", "path": "/nodes/more", "value": more}])
            patched = True
        except Conflict:
            patched = False
        assert await run.result(40) == 21
        steps = Counter(event.step for event in await run.history() if event.type == "step_completed")
        assert steps == ({"a": 1, "more": 1} if patched else {"a": 1})
        ends["patched" if patched else "refused"] += 1

    async def all() -> None:
        await asyncio.gather(*(race() for _ in range(N)))

    fleet.call(all(), 120)
    print(dict(ends))
    assert ends.total() == N


def test_a_cancel_against_the_commits_of_its_run_has_one_winner(fleet: Fleet) -> None:
    rng, ends = random.Random(3), Counter[str]()
    nodes: dict[str, Any] = {
        "a": {"type": "task", "call": "slow", "with": {"n": 1, "ms": 5}},
        "m": {"type": "task", "call": "act", "after": ["a"], "map": "[1, 2, 3]", "with": {"gives": "${item}"}},
        "z": {"type": "task", "call": "act", "after": ["m"], "with": {"gives": "${m}"}},
    }

    async def race() -> None:
        run = await start(fleet, nodes)
        await asyncio.sleep(rng.uniform(0, 0.12))
        cancelled = any(await asyncio.gather(*(run.cancel() for _ in range(3))))
        result = await ended(run)
        assert result == [1, 2, 3] if result is not RunCancelled else cancelled
        terminal = [event.type for event in await run.history() if event.terminal]
        assert terminal == ["cancelled" if result is RunCancelled else "completed"]
        ends[terminal[0]] += 1

    async def all() -> None:
        await asyncio.gather(*(race() for _ in range(N)))

    fleet.call(all(), 120)
    print(dict(ends))
    assert ends.total() == N


def test_a_signal_against_its_timeout_is_taken_or_too_late(fleet: Fleet) -> None:
    rng, ends = random.Random(4), Counter[str]()
    wait = {"type": "wait", "signal": "go", "timeout": "150ms", "on_timeout": "continue"}

    async def race(i: int) -> None:
        run = await start(fleet, {"w": wait}, output="${w}")
        await begun(run, "w")
        await asyncio.sleep(0.15 + rng.uniform(-0.04, 0.04))
        taken = None
        with contextlib.suppress(Conflict):  # the run has ended
            taken = await run.signal("go", i)
        result = await run.result(40)
        # Whoever was told that it was taken finds it in the result; nobody's signal is taken in silence.
        assert result == (i if taken else None)
        types = Counter(event.type for event in await run.history())
        assert types["step_completed"] == 1
        ends["taken" if taken else "late"] += 1

    async def all() -> None:
        await asyncio.gather(*(race(i) for i in range(1, N + 1)))

    fleet.call(all(), 120)
    print(dict(ends))
    assert ends.total() == N
