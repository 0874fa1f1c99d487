"""The pytest plugin: fixtures around `app.testing()`. Installed with Weft; costs nothing to those who use none of them.

    weft_app          the app under test, on a fresh namespace of an embedded server
    weft_worker       a worker that works when told: `await weft_worker.run_until_idle()`
    weft_clock        the app's clock: `await weft_clock.advance("1h")`
    weft_testing      all three, as `app.testing()` gives them
    crash_everywhere  kills worker processes at every boundary of a scenario

Without `weft_app = "module:app"` in pytest's configuration the app is a new, empty one. Plain tests use the same fixtures
by their `.sync` verbs. Override `weft_redis_url` (session) or `weft_namespace` to test on a store of your own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from weft.sdk.app import Weft
    from weft.testing.clock import VirtualClock
    from weft.testing.harness import Harness
    from weft.testing.manual import ManualWorker
    from weft.testing.sweep import CrashEverywhere


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("weft_app", "the app that the fixture weft_app puts under test: module:app", default="")


@pytest.fixture(scope="session")
def weft_redis_url() -> str:
    """The store that tests run on: an embedded server, unless overridden."""
    from weft.testing.server import shared_url

    return shared_url()


@pytest.fixture
def weft_namespace() -> str | None:
    """The namespace a test runs in: a fresh one that is emptied afterwards, unless overridden."""
    return None


@pytest.fixture
def weft_testing(pytestconfig: pytest.Config, weft_redis_url: str, weft_namespace: str | None) -> Iterator[Harness]:
    """The app under test with its clock and its worker."""
    target = str(pytestconfig.getini("weft_app"))
    with _load(target).testing(redis_url=weft_redis_url, namespace=weft_namespace) as harness:
        yield harness


@pytest.fixture
def weft_app(weft_testing: Harness) -> Weft:
    """The app under test."""
    return weft_testing.app


@pytest.fixture
def weft_worker(weft_testing: Harness) -> ManualWorker:
    """A worker of the app under test; it works when it is told to."""
    return weft_testing.worker


@pytest.fixture
def weft_clock(weft_testing: Harness) -> VirtualClock:
    """The clock of the app under test."""
    return weft_testing.clock


@pytest.fixture
def crash_everywhere(pytestconfig: pytest.Config, weft_redis_url: str, tmp_path: Path) -> CrashEverywhere:
    """Kills worker processes of the app at every boundary of a scenario: `crash_everywhere(start, check)`."""
    from weft.errors import UserError
    from weft.testing.sweep import CrashEverywhere

    target = str(pytestconfig.getini("weft_app"))
    if not target:
        raise pytest.UsageError('crash_everywhere starts processes that import the app: set weft_app = "module:app"')
    try:
        return CrashEverywhere(target, redis_url=weft_redis_url, directory=tmp_path)
    except UserError as error:
        raise pytest.UsageError(f"weft_app = {error.message}") from error


def _load(target: str) -> Weft:
    from weft.errors import UserError
    from weft.sdk.app import Weft
    from weft.testing.target import load_app

    if not target:
        return Weft("testing")
    try:
        return load_app(target)
    except UserError as error:
        raise pytest.UsageError(f"weft_app = {error.message}") from error
