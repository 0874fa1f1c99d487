"""What tests of workflows share: the choice between code that stays in memory and code that is made anew at every turn."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["kept", "replayed"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the test twice: with flows kept in memory while they wait, and with none."""
    if request.param == "replayed":
        monkeypatch.setattr("weft.worker.flows.MAX_KEPT", 0)
    return str(request.param)
