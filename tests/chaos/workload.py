"""The app under test: tasks whose effects are recorded, and the model that says what each must come to."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from typing import Any

from chaos import recorder
from weft import Discard, Weft, current
from weft.testing.crash import install_from_environ

install_from_environ()

app = Weft("chaos")

#: Characters of a result that becomes a blob.
BULK = 9_000


def mark(phase: str) -> None:
    """Records an effect of the step this code runs in."""
    here = current()
    recorder.record(
        phase, key=here.effect_key, run=here.run_id, attempt=here.attempt, delivery=here.delivery, fence=here.fence
    )


@app.task
async def effect(n: int) -> int:
    mark("before")
    await asyncio.sleep(0)
    mark("after")
    return n * n + 1


@app.task
async def slow(n: int, ms: int) -> int:
    mark("before")
    await asyncio.sleep(ms / 1000)
    mark("after")
    return n + ms


@app.task
def plain(n: int, ms: int = 0) -> int:
    mark("before")
    time.sleep(ms / 1000)
    mark("after")
    return n - 1


@app.task
async def blocking(ms: int) -> int:
    """Blocks the event loop of its worker."""
    mark("before")
    time.sleep(ms / 1000)
    mark("after")
    return ms


@app.task(retries=6, retry_delay="30ms", max_delay="100ms")
async def flaky(n: int, fails: int) -> int:
    mark("before")
    if current().attempt <= fails:
        raise ValueError(f"attempt {current().attempt} fails")
    mark("after")
    return n * 3


@app.task
async def doomed(n: int) -> int:
    mark("before")
    raise LookupError(f"no {n}")


@app.task(pool="process")
def cpu(n: int) -> int:
    mark("before")
    digest = b""
    for i in range(2_000):
        digest = hashlib.sha256(digest + str(n + i).encode()).digest()
    mark("after")
    return n + 7


@app.task(pool="process")
def busy(ms: int) -> int:
    """Keeps a process of its own busy."""
    mark("before")
    until = time.monotonic() + ms / 1000
    while time.monotonic() < until:
        pass
    mark("after")
    return ms


@app.task
async def bulky(n: int) -> str:
    mark("before")
    mark("after")
    return str(n % 10) * BULK


@app.task
async def swallow(text: str) -> int:
    """Takes an input that is a blob."""
    mark("before")
    mark("after")
    return len(text)


@app.task(timeout="120s", retries=1, retry_delay="10ms")
async def staged(gate: str, fails: bool = False) -> str:
    """Arrives, waits at `<gate>.1`, has its effect, waits at `<gate>.2`, and ends: well, or on its first attempt badly."""
    mark("before")
    await _opened(f"{gate}.1")
    mark("effect")
    await _opened(f"{gate}.2")
    if fails and current().attempt == 1:
        raise ValueError("as asked")
    mark("after")
    return gate


@app.task(timeout="120s")
async def chatty(gate: str) -> str:
    """Reports progress all the time until a file appears."""
    mark("before")
    turn = 0
    while not os.path.exists(gate):
        turn += 1
        current().progress(0.5, f"turn {turn}")
        await asyncio.sleep(0.02)
    mark("after")
    return gate


@app.task
async def telling(n: int) -> int:
    """Reports progress twice and ends."""
    mark("before")
    current().progress(0.5, "half")
    await asyncio.sleep(0.05)
    current().progress(0.9, "nearly")
    await asyncio.sleep(0.05)
    mark("after")
    return n + 2


async def _opened(gate: str) -> None:
    while not os.path.exists(gate):
        await asyncio.sleep(0.01)


@app.task(timeout="120s")
async def hold(gate: str) -> str:
    """Runs until a file appears; progress is reported, so that the run shows as started."""
    mark("before")
    await current().progress(0.5, "holding")
    while not os.path.exists(gate):
        await asyncio.sleep(0.02)
    mark("after")
    return gate


@app.task(timeout="120s")
def hold_thread(gate: str) -> str:
    """Like `hold`, in a thread."""
    return _hold_here(gate)


@app.task(timeout="120s", pool="process")
def hold_process(gate: str) -> str:
    """Like `hold`, in a process of its own."""
    return _hold_here(gate)


def _hold_here(gate: str) -> str:
    mark("before")
    while not os.path.exists(gate):
        time.sleep(0.01)
    mark("after")
    return gate


@app.task(timeout="120s")
async def stubborn(gate: str) -> str:
    """Like `hold`, but swallows every cancellation: the code of a zombie that goes on."""
    mark("before")
    while not os.path.exists(gate):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            mark("cancelled")
    mark("after")
    return gate


# --- tasks with limits --------------------------------------------------------------------------------------------


async def _act(ms: int) -> None:
    """Is on stage for a while. That it left is told even when it is cancelled: a slot may be another's from then on."""
    mark("before")
    try:
        await asyncio.sleep(ms / 1000)
        mark("after")
    finally:
        mark("end")


@app.task(concurrency=3)
async def narrow(n: int, ms: int) -> int:
    await _act(ms)
    return n + 3


@app.task(concurrency_key=lambda who, n, ms: who, concurrency_per_key=1)
async def keyed(who: str, n: int, ms: int) -> int:
    await _act(ms)
    return n + 4


@app.task(concurrency=3, concurrency_key=lambda who, n, ms: who, concurrency_per_key=1)
async def booth(who: str, n: int, ms: int) -> int:
    """Two limits at once: one of each key, three in all."""
    await _act(ms)
    return n + 5


@app.task(concurrency_key=lambda who, n, ms: who, concurrency_per_key=6)
async def wide(who: str, n: int, ms: int) -> int:
    """Several of each key at once; the keys share no limit."""
    await _act(ms)
    return n + 12


@app.task(concurrency=1, concurrency_key=lambda who, n, ms: who)
async def turn(who: str, n: int, ms: int) -> int:
    """One at a time; keys take turns."""
    await _act(ms)
    return n + 6


@app.task(rate_limit="4/s")
async def paced(n: int, ms: int) -> int:
    await _act(ms)
    return n + 8


@app.task(concurrency=2, retries=3, retry_delay="30ms", max_delay="60ms")
async def shaky(n: int, fails: int) -> int:
    """Gives its slot back before each retry."""
    try:
        mark("before")
        if current().attempt <= fails:
            raise ValueError(f"attempt {current().attempt} fails")
        mark("after")
    finally:
        mark("end")
    return n + 9


@app.task(timeout="120s", concurrency=1, retries=1, retry_delay="10ms")
async def guarded(gate: str, fails: bool = False) -> str:
    """Like `stubborn`, behind a limit; its zombie ends badly when asked to."""
    mark("before")
    while not os.path.exists(gate):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            mark("cancelled")
    mark("after")
    if fails and current().delivery == 1:
        raise ValueError("as asked")
    return gate


@app.task(unique_for="1m")
async def single(n: int) -> int:
    mark("before")
    mark("after")
    return n + 10


@app.task(debounce="100ms", unique_key=lambda n: "one")
async def settled(n: int) -> int:
    mark("before")
    mark("after")
    return n + 11


@app.task
async def poison(n: int) -> int:
    """Takes its worker down."""
    mark("before")
    os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(60)
    return n


@app.task
async def act(gives: Any, fails: int = 0, discards: bool = False) -> Any:
    """What tasks of random graphs do: fails as often as asked, then gives what it was given."""
    mark("before")
    if discards:
        raise Discard("not needed")
    if current().attempt <= fails:
        raise ValueError(f"attempt {current().attempt} of {fails} fails")
    mark("after")
    return gives


#: What tasks with limits add to their number.
ADDS = {"narrow": 3, "keyed": 4, "booth": 5, "turn": 6, "paced": 8, "single": 10, "settled": 11, "wide": 12}


def expected(name: str, args: dict[str, Any]) -> tuple[str, Any]:
    """The model: returns the status a run must end with, and its result or the type of its error."""
    n = args.get("n", 0)
    match name:
        case "effect":
            return "completed", n * n + 1
        case "slow":
            return "completed", n + args["ms"]
        case "plain":
            return "completed", n - 1
        case "flaky":
            return ("completed", n * 3) if args["fails"] <= 6 else ("failed", "ValueError")
        case "doomed":
            return "failed", "LookupError"
        case "cpu":
            return "completed", n + 7
        case "telling":
            return "completed", n + 2
        case "narrow" | "keyed" | "booth" | "turn" | "paced" | "single" | "settled" | "wide":
            return "completed", n + ADDS[name]
        case "shaky":
            return ("completed", n + 9) if args["fails"] <= 3 else ("failed", "ValueError")
        case "busy" | "blocking":
            return "completed", args["ms"]
        case "bulky":
            return "completed", str(n % 10) * BULK
        case "swallow":
            return "completed", len(args["text"])
        case "hold" | "hold_thread" | "hold_process" | "stubborn" | "staged" | "chatty" | "guarded":
            return "completed", args["gate"]
        case "poison":
            return "failed", "Poisoned"
    raise AssertionError(f"the model does not know task {name}")


def client_app(url: str, namespace: str) -> Weft:
    """Returns an app of its own store with the same tasks: for the test's process, which drives several stores."""
    other = Weft("chaos", redis_url=url, namespace=namespace)
    for word, task in app.tasks.items():
        other.tasks[word] = type(task)(
            other,
            task.fn,
            name=task.name,
            aliases=task.aliases,
            pool=task.pool,
            retry_on=task.retry_on,
            fatal_on=task.fatal_on,
            gating=task.gating,
            uniqueness=task.uniqueness,
            spec=task.spec,
        )
    return other
