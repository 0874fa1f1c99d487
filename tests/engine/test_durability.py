"""Durability levels: what is acknowledged is so, what cannot be met is an error, and trying again gives the same run."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from servers import ServerProcess
from weft import InvalidOption, Weft
from weft.errors import DefinitionError, DurabilityUnmet, Unavailable
from weft.store import connection, durability


def declare(app: Weft) -> Any:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    async def flow(ctx: Any) -> int:
        return 7

    graph = app.graph("sum")

    @graph.node
    async def three() -> int:
        return 3

    return add, flow, graph


@pytest.fixture
def two_servers() -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """A server that flushes at once, and its replica."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    primary = ServerProcess(
        config={"port": str(port), "appendfsync": "always", "repl-diskless-sync-delay": "0"}
    ).start()
    replica = ServerProcess(config={"replicaof": f"127.0.0.1 {port}"}).start()
    yield primary, replica
    replica.resume()
    replica.stop()
    primary.stop()


def knows_waitaof(server: ServerProcess) -> bool:
    with server.client() as client:
        about = client.info("server")
    version = about.get("valkey_version") or about["redis_version"]
    return tuple(map(int, str(version).split(".")[:2])) >= (7, 2)


async def linked(server: ServerProcess) -> None:
    with server.client() as client:
        while not client.info("replication")["connected_slaves"]:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("level", ["fsync", "replicated"])
async def test_every_kind_of_run_is_kept_as_was_asked(two_servers: Any, level: str) -> None:
    primary, _ = two_servers
    await linked(primary)
    app = Weft("kept", redis_url=primary.url)
    add, flow, graph = declare(app)
    async with app:
        bound = add.options(durability=level)
        if level == "fsync" and not knows_waitaof(primary):
            with pytest.raises(DurabilityUnmet, match=r"it has no WAITAOF: Redis and Valkey have it from 7\.2 on"):
                await bound.enqueue(1, 2)
            assert await app.runs.list() == []
            return
        runs = [
            await bound.enqueue(1, 2),
            *await bound.enqueue_many([(1, 2), (3, 4)]),
            await graph.options(durability=level).start(),
            await flow.options(durability=level).start(),
            await flow.options(durability=level, id="mine").start(),
        ]
        assert [(await run.info()).durability for run in runs] == [level] * 6
        assert (await (await add.enqueue(1, 2)).info()).durability == "redis"
        # Many at once share a wait.
        many = await asyncio.gather(*(bound.enqueue(n, n) for n in range(20)))
        assert {(await run.info()).durability for run in many} == {level}
    with primary.client() as client:
        assert int(client.hget("weft:{0}:epoch", "flushes")) < 6 + 20


async def test_a_level_that_the_store_cannot_keep_is_refused_before_anything_is_started(
    launch: Callable[..., ServerProcess],
) -> None:
    server = launch(config={"appendonly": "no"})
    app = Weft("kept", redis_url=server.url)
    add, _, graph = declare(app)
    async with app:
        with pytest.raises(
            DurabilityUnmet, match=r"does not write an append-only file: set `appendonly yes`|no WAITAOF"
        ):
            await add.options(durability="fsync").enqueue(1, 2)
        with pytest.raises(DurabilityUnmet, match="needs a replica, and the store has none"):
            await graph.options(durability="replicated").start()
        assert await app.runs.list() == []


async def test_a_level_that_is_not_met_in_time_is_an_error_and_trying_again_gives_the_same_run(
    two_servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, replica = two_servers
    await linked(primary)
    app = Weft("kept", redis_url=primary.url)
    add, _, _ = declare(app)
    bound = add.options(durability="replicated", idempotency_key="once")
    async with app:
        replica.pause()
        monkeypatch.setattr(durability, "PATIENCE_MS", 200)
        with pytest.raises(DurabilityUnmet, match="was started and goes on, but is not known to be kept") as unmet:
            await bound.enqueue(1, 2)
        assert isinstance(unmet.value, Unavailable) and unmet.value.retryable
        run = await app.runs.get(unmet.value.facts["run"])
        assert (await run.info()).durability == "redis", "nothing is said that is not known"

        replica.resume()
        monkeypatch.setattr(durability, "PATIENCE_MS", 20_000)
        again = await bound.enqueue(1, 2)
        assert (again.id, again.deduplicated) == (run.id, True)
        assert (await run.info()).durability == "replicated" and len(await app.runs.list()) == 1


async def test_the_default_costs_no_call_more(app: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    add, _, _ = declare(app)
    await app.open()
    await (await add.enqueue(0, 0)).cancel()
    calls: list[str] = []
    monkeypatch.setattr(connection, "boundary", lambda side, name: calls.append(name) if side == "before" else None)
    for bound in (add, add.options(durability="redis")):
        run = await bound.enqueue(1, 2)
        assert calls == ["start_runs"]
        await run.cancel()
        calls.clear()


def test_what_makes_no_sense_is_refused(app: Weft) -> None:
    add, flow, graph = declare(app)
    for thing in (add, flow, graph):
        for wrong in ("disk", "", None, 3):
            with pytest.raises(InvalidOption, match="durability must be one of redis, replicated, fsync, committed"):
                thing.options(durability=wrong)
    with pytest.raises(DefinitionError, match="durability belongs to one call"):

        @app.task(durability="fsync")
        async def other() -> None: ...


async def test_a_tick_takes_no_level(app: Weft) -> None:
    add, _, _ = declare(app)
    with pytest.raises(InvalidOption, match="nobody waits for the start of a tick"):
        await app.schedules.create("s", "@yearly", add.options(durability="fsync"), (1, 2))
