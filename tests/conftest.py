"""Fixtures of the whole suite: a real server per xdist worker, a fresh namespace per test, a leak check after it.

`WEFT_TEST_SERVER` names another server program, `WEFT_TEST_PARTITIONS=4` runs everything on four partitions.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import hypothesis
import pytest
import redis

from leaks import find_leaks
from servers import ServerProcess
from weft import Weft
from weft.core.model import RunSpec
from weft.store.connection import Server
from weft.store.keys import Keyspace
from weft.store.namespace import Namespace
from weft.worker.worker import Worker

# Without bytecode on disk each of the hundreds of processes that tests start would compile what it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

#: The plugin our users get, under the name it has when it is installed.
pytest_plugins = ["weft.testing.plugin"]

# How long an example takes says something about the machine, not about the code.
hypothesis.settings.register_profile("weft", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("weft")

#: Settings that must come from a test, never from the shell it was started in.
SETTINGS = (
    "REDIS_URL DATABASE_URL NAMESPACE LEASE CONCURRENCY QUEUES RETENTION DLQ_RETENTION PARTITIONS LOG_LEVEL APP DATA KEEP_HOT"
).split()

#: What a test may say it leaves behind: `@pytest.mark.leaves("open runs")`.
LEFTOVERS = ("open runs", "pending", "sessions", "repair", "history", "broken keys")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"leaves(*what): the test leaves these behind on purpose: {', '.join(LEFTOVERS)}"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Has one process run each file of tests/e2e: what its tests share (a clone, a worker) is made once."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if "/e2e/" in file else nodeid

    return Together(config, log)


# --- server, namespace, app, worker ---------------------------------------------------------------


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, partitions: int) -> None:
    """Clears what the shell says about Weft; sets the number of partitions the suite runs on."""
    for name in SETTINGS:
        monkeypatch.delenv(f"WEFT_{name}", raising=False)
    # The tests of the archive say otherwise; all others need no database.
    monkeypatch.setenv("WEFT_ARCHIVE", "no")
    if partitions > 1:
        monkeypatch.setenv("WEFT_PARTITIONS", str(partitions))


@pytest.fixture(scope="session")
def partitions() -> int:
    """How many partitions namespaces have in this run of the suite."""
    return int(os.environ.get("WEFT_TEST_PARTITIONS") or 1)


@pytest.fixture
def p(partitions: int) -> int:
    """The partition that script tests work on: the last, so that nothing hangs on being number 0."""
    return partitions - 1


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """The server all tests of this xdist worker share. Never kill it: `launch` gives you one of your own."""
    process = ServerProcess().start()
    yield process
    process.stop()


@pytest.fixture
def launch() -> Iterator[Callable[..., ServerProcess]]:
    """Starts private servers, to be killed, paused and restarted; all are gone after the test."""
    started: list[ServerProcess] = []

    def start(**options: Any) -> ServerProcess:
        process = ServerProcess(**options)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.stop()


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[redis.Redis]:
    """A plain client of the shared server, for looking at raw keys."""
    with server.client() as client:
        yield client


@pytest.fixture
def namespace(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own; whatever it leaves there must be what the keyspace promises."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    yield name
    excused = {what for mark in request.node.iter_markers("leaves") for what in mark.args}
    assert excused <= set(LEFTOVERS), f"unknown leftovers {excused - set(LEFTOVERS)}"
    with server.client() as client:
        leaks = [f"{what}: {text}" for what, text in find_leaks(client, name) if what not in excused]
        if keys := list(client.scan_iter(Keyspace(name).pattern(), count=1000)):
            client.unlink(*keys)
    assert not leaks, "the test left behind:\n  " + "\n  ".join(leaks)


@pytest.fixture
async def ns(server: ServerProcess, namespace: str, partitions: int) -> AsyncIterator[Namespace]:
    """The test's namespace, opened."""
    opened = Namespace(Server(server.url), namespace, partitions=partitions)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def weft_redis_url(server: ServerProcess) -> str:
    """Puts the fixtures of the plugin on the suite's own server."""
    return server.url


@pytest.fixture
def weft_namespace(namespace: str) -> str:
    """Puts them on the namespace whose leaks are looked for."""
    return namespace


@pytest.fixture
async def app(weft_app: Weft) -> AsyncIterator[Weft]:
    """An app on the test's namespace; tests declare their tasks on it."""
    yield weft_app
    await weft_app.close()


@pytest.fixture
def one_home(app: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives all runs the same partition, for what is promised within one: exact order."""
    monkeypatch.setattr("weft.engine.engine.Engine.home", lambda self, key="": 0)


@pytest.fixture
async def start_worker(app: Weft) -> AsyncIterator[Callable[..., Awaitable[Worker]]]:
    """Starts workers of the app in this process; those still up at the end hand back what they run."""
    started: list[Worker] = []

    async def start(of: Weft | None = None, **options: Any) -> Worker:
        worker = (of or app).worker(**options)
        await worker.start()
        started.append(worker)
        return worker

    yield start
    for worker in started:
        await stop_worker(worker)


async def stop_worker(worker: Worker) -> None:
    """Stops a worker unless it has been stopped already."""
    if not worker._draining:
        await worker.stop(grace=0)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> float:
    """Makes silent workers lose their steps after half a second, the shortest there is."""
    monkeypatch.setenv("WEFT_LEASE", "500ms")
    return 0.5


@pytest.fixture
def eventually() -> Callable[..., Awaitable[Any]]:
    """Waits until a check (plain or async) gives something true, and returns it; fails after a deadline."""

    async def wait(check: Callable[[], Any], within: float = 10.0) -> Any:
        deadline = time.monotonic() + within
        while True:
            found = check()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            assert time.monotonic() < deadline, f"still not so after {within} s: {inspect.getsource(check).strip()}"
            await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def quiet(app: Weft, eventually: Callable[..., Awaitable[Any]]) -> Callable[[], Awaitable[None]]:
    """Waits until nothing is left to be done for runs that have ended."""

    async def wait() -> None:
        ns = app.engine().ns

        async def put_away() -> bool:
            timers = [await ns.read("ZRANGE", ns.keys.timers(p), 0, -1, p=p) for p in range(ns.partitions)]
            return not any(timers)

        await eventually(put_away)

    return wait


@pytest.fixture
def spec() -> Callable[..., RunSpec]:
    """Makes the spec of a run, for tests that speak to the store without an app."""

    def make(name: str = "job", **options: Any) -> RunSpec:
        return RunSpec(name, **options)

    return make
