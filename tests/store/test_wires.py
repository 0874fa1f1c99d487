"""Wires: never more than the pool may hold, and every place comes back, however an exchange ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from weft.store.connection import Server
from weft.store.wire import MAX_WIRES, NotConnected, Wires


@pytest.fixture
def own(launch):
    """A server on which nobody else blocks."""
    return launch()


@pytest.fixture
def raw(own) -> Iterator[redis.Redis]:
    with own.client() as client:
        yield client


@pytest.fixture
async def wires(own) -> AsyncIterator[Wires]:
    made = Server(own.url).caller()
    assert isinstance(made, Wires)
    yield made
    await made.aclose()


def lists(n: int) -> list[str]:
    return [f"test-wires-{i}" for i in range(n)]


async def test_callers_beyond_the_pool_wait_for_a_wire_and_all_are_served(wires, raw):
    # Given more callers that block than the pool has wires.
    names = lists(3 * MAX_WIRES)
    before = len(raw.client_list())
    calls = [asyncio.create_task(wires.execute_command("BLPOP", name, 20)) for name in names]
    while raw.info("clients")["blocked_clients"] < MAX_WIRES:
        await asyncio.sleep(0.01)
    assert len(raw.client_list()) - before == MAX_WIRES

    # When each gets what it waits for, then all are answered, over the same wires.
    for name in names:
        raw.lpush(name, name)
    replies = await asyncio.gather(*calls)
    assert [reply[1].decode() for reply in replies] == names
    assert len(raw.client_list()) - before == MAX_WIRES


async def test_a_place_comes_back_when_an_exchange_is_cut_off_or_its_connection_dies(wires, raw):
    for trouble in ("cancelled while waiting", "killed", "cancelled", "killed"):
        # Given a pool all of whose wires are out, and callers behind them.
        calls = [asyncio.create_task(wires.execute_command("BLPOP", "test-wires-never", 20)) for _ in range(MAX_WIRES)]
        behind = [asyncio.create_task(wires.execute_command("PING")) for _ in range(4)]
        while raw.info("clients")["blocked_clients"] < MAX_WIRES:
            await asyncio.sleep(0.01)

        # When they end badly.
        if trouble == "killed":
            for client in raw.client_list():
                if client["cmd"] == "blpop":
                    raw.client_kill_filter(_id=client["id"])
        else:
            for call in calls:
                call.cancel()
        if trouble == "cancelled while waiting":
            # One of them has just been given its place.
            await asyncio.sleep(0)
            behind.pop(0).cancel()
        await asyncio.gather(*calls, return_exceptions=True)

        # Then those behind them are served, and the pool is as large as before.
        assert await asyncio.gather(*behind) == [b"PONG"] * len(behind)
        pings = [wires.execute_command("PING") for _ in range(2 * MAX_WIRES)]
        assert await asyncio.gather(*pings) == [b"PONG"] * 2 * MAX_WIRES
        assert wires._n <= MAX_WIRES


async def test_a_wire_that_cannot_be_made_takes_no_place():
    wires = Server("redis://127.0.0.1:1").caller()
    for _ in range(2 * MAX_WIRES):
        with pytest.raises(NotConnected):
            await wires.execute_command("PING")
    assert wires._n == 0


async def test_each_exchange_has_its_own_time_though_a_timer_stands_from_the_last(own):
    wires = Wires(Server(own.url).caller()._connect, timeout=0.6)
    try:
        assert await wires.execute_command("PING") == b"PONG"
        await asyncio.sleep(0.4)
        began = asyncio.get_running_loop().time()
        # Longer than the timer of the first exchange stands.
        assert await wires.execute_command("BLPOP", "test-wires-never", 0.3) is None
        with pytest.raises(redis.TimeoutError, match=r"no answer within 0\.6 s"):
            await wires.execute_command("BLPOP", "test-wires-never", 5)
        assert asyncio.get_running_loop().time() - began >= 0.9
        # Nobody waits any more, and a timer that comes to look finds nothing to do.
        assert await wires.execute_command("PING") == b"PONG"
        await asyncio.sleep(0.7)
        assert await wires.execute_command("PING") == b"PONG"
    finally:
        await wires.aclose()


async def test_a_server_that_is_gone_is_revived_and_one_that_is_silent_is_not(launch):
    # Given a wire whose server can be brought back.
    own = launch()
    revived = []

    async def revive() -> None:
        revived.append(1)
        own.restart()

    wires = Wires(Server(own.url).caller()._connect, timeout=0.6, revive=revive)
    own.kill()

    # When it is gone, then it is brought back before the command is sent.
    assert await wires.execute_command("PING") in (b"PONG", "PONG")
    assert revived == [1]
    await wires.aclose()

    # When it is there and says nothing, then that is told after one timeout.
    own.pause()
    began = asyncio.get_running_loop().time()
    silent = Wires(Server(own.url).caller()._connect, timeout=0.6, revive=revive)
    with pytest.raises(NotConnected):
        await silent.execute_command("PING")
    assert asyncio.get_running_loop().time() - began < 1.1 and revived == [1]
    own.resume()
