"""Cancellation at every await of a Redis call: of a client's calls, and of a worker that starts, stops or begins anew.

In-process, because only there one can be cancelled between two turns of the loop. The boundaries are those of the
crash-point sweep; at each one the cancellation comes at once or a few turns later, when the command has been sent and
its reply is still to come.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import psutil
import pytest

from chaos.checker import Limits, check, read_state
from chaos.fleet import Fleet
from chaos.recorder import ADDRESS
from chaos.workload import client_app
from weft import Weft
from weft.errors import SessionLost, WeftError
from weft.store import connection
from weft.worker.worker import Worker

#: Turns of the loop between a boundary and the cancellation.
TURNS = (0, 1, 2, 3, 5, 8)

#: Seconds within which a call ends that follows a cancelled one: less than the slow re-check behind a lost wake-up.
SLOW = 4.0

OPS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("effect", (1,), {}),
    ("flaky", (2, 1), {}),
    ("effect", (3,), {"delay": "50ms"}),
    ("bulky", (4,), {}),
    ("swallow", ("x" * 6_000,), {}),
    ("telling", (5,), {}),
    ("effect", (6,), {"priority": 9}),
]


class Trap:
    """Passed by every boundary of the loop's thread; does something at the nth, after some turns of the loop."""

    def __init__(self, n: int = 0, act: Callable[[], None] = lambda: None, turns: int = 0) -> None:
        self.passed: list[str] = []
        self._n, self._act, self._turns = n, act, turns
        self._thread = threading.get_ident()

    @property
    def sprung(self) -> bool:
        return len(self.passed) >= self._n > 0

    def __call__(self, when: str, call: str) -> None:
        if threading.get_ident() != self._thread:
            return
        self.passed.append(f"{when}:{call}")
        if len(self.passed) == self._n:
            self._later(self._turns)

    def _later(self, turns: int) -> None:
        if turns == 0:
            self._act()
        else:
            asyncio.get_running_loop().call_soon(self._later, turns - 1)


@contextlib.contextmanager
def trapped(trap: Trap) -> Iterator[Trap]:
    before, connection.boundary = connection.boundary, trap
    try:
        yield trap
    finally:
        connection.boundary = before


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    with Fleet(lease="1s") as fleet:
        monkeypatch.setenv(ADDRESS, fleet.environ[ADDRESS])
        monkeypatch.setenv("WEFT_LEASE", "1s")
        yield fleet


def in_namespace(fleet: Fleet, name: str) -> Fleet:
    """Returns the same fleet with another namespace of its server to check."""
    fleet.namespace, fleet.started, fleet.shared = name, [], True
    fleet.keys = type(fleet.keys)(name)
    return fleet


# --- a client's calls ---------------------------------------------------------------------------------------------


def calls(app: Weft, turn: int) -> dict[str, Callable[[], Coroutine[Any, Any, Any]]]:
    """What a client may be doing when it is cancelled. Made anew for every case: each has runs of its own."""
    effect, swallow = app.tasks["effect"], app.tasks["swallow"]

    async def enqueue() -> Any:
        return await effect.enqueue(1)

    async def enqueue_with_key() -> Any:
        return await effect.options(idempotency_key=f"key-{turn}").enqueue(2)

    async def enqueue_large() -> Any:
        return await swallow.enqueue("y" * 7_000)

    async def enqueue_many() -> Any:
        # Two script calls' worth, at the lowest priority: the other calls do not wait behind them.
        return await effect.options(priority=1).enqueue_many([(i,) for i in range(260)])

    async def result() -> Any:
        return await (await app.tasks["slow"].enqueue(1, 30)).result(10)

    async def history() -> Any:
        run = await effect.enqueue(3)
        await run.result(10)
        return await run.history()

    async def events() -> Any:
        run = await app.tasks["flaky"].enqueue(3, 1)
        return [event async for event in run.events()]

    async def info() -> Any:
        return await (await effect.enqueue(4)).info()

    return {
        fn.__name__: fn
        for fn in (enqueue, enqueue_with_key, enqueue_large, enqueue_many, result, history, events, info)
    }


async def cancelled_call(call: Callable[[], Coroutine[Any, Any, Any]], n: int, turns: int) -> bool:
    """Cancels a call at its nth boundary; returns whether it got that far."""
    task = asyncio.ensure_future(call())
    with trapped(Trap(n, task.cancel, turns)) as trap, contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    return trap.sprung


async def client_sweep(fleet: Fleet, turns: tuple[int, ...], choose: Callable[[int], bool]) -> int:
    """Cancels every call at every boundary, on a fresh client and on one that is used again and again."""
    count, cases = itertools.count(), 0
    veteran = client_app(fleet.server.url, fleet.namespace)
    for name in calls(veteran, 0):
        for fresh, turn in itertools.product((True, False), turns):
            for n in itertools.count(1):
                app = client_app(fleet.server.url, fleet.namespace) if fresh else veteran
                number = next(count)
                if not choose(number):
                    if n > 12:
                        break
                    continue
                reached = await cancelled_call(calls(app, number)[name], n, turn)
                cases += 1
                # Whatever was cut short: the next call on the same client works.
                began = time.monotonic()
                again = await asyncio.wait_for(calls(app, number)[name](), 20)
                took = time.monotonic() - began
                assert took < SLOW, f"{name} took {took:.1f} s after one was cancelled at boundary {n} + {turn}"
                fleet.started += [
                    run.id for run in (again if isinstance(again, list) else [again]) if hasattr(run, "id")
                ]
                if fresh:
                    await app.close()
                if not reached:
                    break
    await veteran.close()
    return cases


def run_client_sweep(fleet: Fleet, turns: tuple[int, ...], choose: Callable[[int], bool]) -> None:
    fleet.start_workers(1)
    fleet.note_baseline()
    before = psutil.Process().num_fds()
    cases = asyncio.run(client_sweep(fleet, turns, choose))
    print(f"\n{cases} calls of a client cancelled")
    assert cases >= 20
    check(fleet, Limits(crashes=0))
    # Nothing is left to the collector: a connection that a cancelled call held was closed or given back.
    assert psutil.Process().num_fds() <= before + 6


def test_a_client_may_be_cancelled_at_some_awaits(fleet: Fleet) -> None:
    rng = random.Random(7)
    run_client_sweep(fleet, (0, 2), lambda number: rng.random() < 0.12)


@pytest.mark.chaos
def test_a_client_may_be_cancelled_at_every_await(fleet: Fleet) -> None:
    run_client_sweep(fleet, TURNS, lambda number: True)


# --- a worker -----------------------------------------------------------------------------------------------------


async def start_runs(app: Weft) -> list[str]:
    return [(await app.tasks[name].options(**options).enqueue(*args)).id for name, args, options in OPS]


async def await_runs(app: Weft, runs: list[str], within: float = 20.0) -> None:
    for run in runs:
        with contextlib.suppress(WeftError):
            await app.runs.get(run).result(within)


def stranded(fleet: Fleet) -> list[str]:
    """Names sessions that are still in the directory and tokens that are still in somebody's hands."""
    client = fleet.server.client
    left = [f"session {name.decode()}" for name in client.execute_command("HKEYS", fleet.keys.sessions(0))]
    for key in read_state(fleet).keys:
        parsed = fleet.keys.parse(key)
        if parsed and parsed[1].name == "wf.tasks":
            for group in client.execute_command("XINFO", "GROUPS", key):
                pending = dict(zip(group[::2], group[1::2], strict=True))[b"pending"]
                left += [f"{pending} tokens of {key}"] if pending else []
    return left


def weft_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("weft")}


def pulses() -> int:
    return sum(thread.name == "weft pulse" for thread in threading.enumerate())


Case = Callable[[Fleet, Weft, int, int], Awaitable[bool]]


async def stop_case(fleet: Fleet, app: Weft, n: int, turns: int) -> bool:
    """Stops a worker at its nth boundary: it leaves nothing in its hands, and nothing was counted against a step."""
    runs = await start_runs(app)
    worker = app.worker(concurrency=4, grace=0.05)
    stopped = asyncio.Event()
    with trapped(Trap(n, stopped.set, turns)) as trap:
        await worker.start()
        waiting = asyncio.ensure_future(await_runs(app, runs))
        await asyncio.wait([waiting, asyncio.ensure_future(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait_for(worker.stop(), 20)
        waiting.cancel()
    left = await asyncio.to_thread(stranded, fleet)
    assert not left, f"a worker stopped at {trap.passed[n - 1 : n]} + {turns} left {left}"
    async with app.worker():
        await await_runs(app, runs)
    return trap.sprung


async def anew_case(fleet: Fleet, app: Weft, n: int, turns: int) -> bool:
    """Declares a worker dead at its nth boundary: it drops everything, begins anew, and all the work gets done."""
    runs = await start_runs(app)
    worker = app.worker(concurrency=4)
    with trapped(Trap(n, lambda: hasattr(worker, "_chores") and worker._begin_anew(SessionLost()), turns)) as trap:
        await worker.start()
        first = worker.session
        await await_runs(app, runs)
        if worker._lost is not None:
            await worker._lost
            assert worker.session != first
        await worker.stop()
    return trap.sprung


async def start_case(fleet: Fleet, app: Weft, n: int, turns: int) -> bool:
    """Cancels a worker that is starting, at its nth boundary: no thread, task or subscription stays behind."""
    runs = await start_runs(app)
    before = weft_tasks()
    fresh = client_app(fleet.server.url, fleet.namespace)
    starting = asyncio.ensure_future(_enter(fresh.worker(concurrency=4)))
    with trapped(Trap(n, starting.cancel, turns)) as trap:
        await asyncio.wait([starting])
    if starting.cancelled():
        left = weft_tasks() - before
        assert not left and not pulses(), (
            f"a start cancelled at {trap.passed[-1]} + {turns} left {left}, {pulses()} pulses"
        )
    else:
        await starting.result().stop(grace=0)
    await fresh.close()
    async with app.worker():
        await await_runs(app, runs)
    return trap.sprung


async def _enter(worker: Worker) -> Worker:
    return await worker.__aenter__()


def worker_sweep(fleet: Fleet, case: Case, cases: Iterator[tuple[int, int]], *, crashes: int = 0) -> None:
    """Runs cases (boundary, turns) one after the other, each in a namespace of its own."""
    reached = number = 0

    async def one(n: int, turns: int, name: str) -> bool:
        app = client_app(fleet.server.url, name)
        async with app:
            return await case(fleet, app, n, turns)

    for number, (n, turns) in enumerate(cases, start=1):
        in_namespace(fleet, f"case-{number}")
        reached += asyncio.run(one(n, turns, fleet.namespace))
        check(fleet, Limits(crashes=crashes))
    print(f"\n{reached} of {number} boundaries reached")
    assert reached > number / 2


def some(seed: int, n: int, upto: int) -> Iterator[tuple[int, int]]:
    rng = random.Random(seed)
    for _ in range(n):
        yield rng.randrange(1, upto), rng.choice(TURNS)


def every(upto: int) -> Iterator[tuple[int, int]]:
    """Every boundary, with every number of turns in turn."""
    yield from zip(range(1, upto), itertools.cycle(TURNS), strict=False)
    yield from zip(range(1, upto), itertools.islice(itertools.cycle(TURNS), 2, None), strict=False)


def test_a_worker_may_be_stopped_at_some_awaits(fleet: Fleet) -> None:
    worker_sweep(fleet, stop_case, some(1, 7, 100))


def test_a_worker_may_begin_anew_at_some_awaits(fleet: Fleet) -> None:
    worker_sweep(fleet, anew_case, some(2, 3, 100), crashes=1)


def test_a_start_may_be_cancelled_at_some_awaits(fleet: Fleet) -> None:
    worker_sweep(fleet, start_case, some(3, 5, 16))


@pytest.mark.chaos
def test_a_worker_may_be_stopped_at_every_await(fleet: Fleet) -> None:
    worker_sweep(fleet, stop_case, every(130))


@pytest.mark.chaos
def test_a_worker_may_begin_anew_at_every_await(fleet: Fleet) -> None:
    worker_sweep(fleet, anew_case, every(60), crashes=1)


@pytest.mark.chaos
def test_a_start_may_be_cancelled_at_every_await(fleet: Fleet) -> None:
    worker_sweep(fleet, start_case, every(24))
