"""restore_settings: what operators had set, and schedules with their next tick."""

from rebuilding import closed

from weft.store.recovery import read_settings, restore_settings


async def test_controls_and_schedules_are_as_they_were(part, p):
    ns = await closed(part)
    schedules = {
        "hourly": {"rev": b"7", "spec": b"s", "next": b"1000", "last": b"900"},
        "paused": {"rev": b"1", "spec": b"s", "next": b"1000", "paused": b"1"},
    }

    await restore_settings(ns, p, {"pause:queue:a": b"{}"}, schedules)

    assert await read_settings(ns, p) == {
        ("control", "pause:queue:a"): {"value": b"{}"},
        **{("schedule", name): fields for name, fields in schedules.items()},
    }
    # A version that nobody knows, so that everybody reads them; a paused one does not tick.
    assert part.raw.hget(part.keys.epoch(p), "controls") == b"4000000000"
    assert part.raw.zrange(part.keys.timers(p), 0, -1, withscores=True) == [(b"cron:hourly", 1000.0)]


async def test_only_their_rebuilder_writes_them(part, p, refuses_other_epochs):
    ns = await closed(part)

    await refuses_other_epochs(lambda: restore_settings(ns, p, {"pause:queue:a": b"{}"}, {}))
