"""When the archiver looks at what no event tells: every few seconds, sooner when somebody acts, never most of the time."""

from __future__ import annotations

import pytest

from weft.engine.housekeeping import looking


@pytest.fixture
def looker(monkeypatch):
    made = looking.Looker(None, 0, None)
    made.now = 100.0
    monkeypatch.setattr(looking.time, "monotonic", lambda: made.now)

    class Archive:
        def __init__(self, *args):
            pass

        async def read_schedules(self):
            return {}

        async def read_settings(self):
            return {}

    class Space:
        class keys:
            namespace = "n"

    class Cold:
        database = None

    made._ns, made._cold = Space, Cold

    async def read(ns, p):
        made.now += made.takes
        return {}

    async def timers(ns, p, limit):
        return 0, None, []

    monkeypatch.setattr(looking, "read_settings", read)
    monkeypatch.setattr(looking, "read_timers", timers)
    monkeypatch.setattr("weft.archive.recovery.Recovery", Archive)
    return made


@pytest.mark.parametrize(("takes", "soon", "late"), [(0.001, 0.02, 2.1), (1.0, 5.1, 50.1)])
async def test_an_act_brings_the_next_look_forward_but_not_to_at_once(looker, takes, soon, late):
    looker.takes = takes
    await looker.look("", None)
    ended = looker.now
    assert not looker.is_due

    looker.hurry()
    looker.now = ended + soon / 2
    early = looker.is_due
    looker.now = ended + soon
    hurried = looker.is_due
    await looker.look("", None)
    ended = looker.now
    looker.now = ended + soon
    quiet = looker.is_due
    looker.now = ended + late

    assert (hurried, quiet, looker.is_due) == (True, False, True)
    assert early == (soon / 2 >= 5 * takes)
