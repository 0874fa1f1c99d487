"""What tests of workflows share: the choice between code that stays in memory and code that is made anew at every turn."""

from __future__ import annotations

import pytest

from weft import Weft


@pytest.fixture(params=["kept", "replayed"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the test twice: with flows kept in memory while they wait, and with none."""
    if request.param == "replayed":
        monkeypatch.setattr("weft.worker.flows.MAX_KEPT", 0)
    return str(request.param)


@pytest.fixture
def quiet_timers(app: Weft, eventually):
    """Waits until nothing is left to be done for runs that have ended."""

    async def wait() -> None:
        ns = app.engine().ns

        async def put_away() -> bool:
            timers = [await ns.read("ZRANGE", ns.keys.timers(p), 0, -1, p=p) for p in range(ns.partitions)]
            return not any(timers)

        await eventually(put_away)

    return wait
