"""What worker tests share: a step that can be held, and sessions that die on command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from weft import Run, Weft, current
from weft.core.model import SessionInfo, Token
from weft.sdk.task import AsyncTask
from weft.store.namespace import Namespace
from weft.store.sessions import read_sessions, renew_session
from weft.store.steps import begin_suspect, claim_steps


@dataclass
class Held:
    """A task that waits until it is let go, and what was seen of it."""

    task: AsyncTask[[], str] = field(init=False)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: int = 0
    deliveries: list[int] = field(default_factory=list)

    async def running(self) -> Run[str]:
        """Enqueues one and waits until it runs."""
        run = await self.task.enqueue()
        await asyncio.wait_for(self.started.wait(), 10)
        return run


@pytest.fixture
def held(app: Weft) -> Held:
    """A step that runs until `held.release` is set."""
    held = Held()

    @app.task(timeout=None)
    async def hold() -> str:
        held.deliveries.append(current().delivery)
        held.started.set()
        try:
            await held.release.wait()
        except asyncio.CancelledError:
            held.cancelled += 1
            raise
        return f"delivery {current().delivery}"

    held.task = hold
    return held


@pytest.fixture
def add(app: Weft) -> AsyncTask[[int, int], int]:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    return add


@pytest.fixture
def buried(ns: Namespace, eventually: Callable[..., Awaitable[object]]) -> Callable[[str], Awaitable[object]]:
    """Waits until the sweeper has taken a dead session out of the directory, the last thing it does."""

    async def wait(session: str) -> object:
        async def gone() -> bool:
            return all([session not in await read_sessions(ns, p) for p in range(ns.partitions)])

        return await eventually(gone)

    return wait


@pytest.fixture
async def die_with(ns: Namespace) -> AsyncIterator[Callable[..., Awaitable[list[Token]]]]:
    """Plays a worker of one partition that claims what it can, begins it and is never heard of again."""

    async def die(p: int = 0, *, session: str = "s-dead", room: int = 10, queues: tuple[str, ...] = ("default",)):
        about = msgspec.msgpack.encode(SessionInfo(session, "test", "elsewhere", 1, list(queues), [], room, 0))
        await renew_session(ns, p, session=session, lease_ms=60_000, about=about)
        tokens = await claim_steps(ns, p, session=session, queues=queues, room=room)
        for token in tokens:
            assert not token.crashes or await begin_suspect(ns, p, token, session=session)
        await ns.caller.execute_command("DEL", ns.keys.session(p, session))  # what expiry does
        return tokens

    yield die
