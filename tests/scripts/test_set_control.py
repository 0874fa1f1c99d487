"""set_control: sets or lifts something, raises the version, and has lines and workers look again."""

from partition import acts_of

from weft.store.controls import read_controls, set_control


async def test_setting_raises_the_version_and_setting_the_same_again_does_not(part):
    assert await set_control(part.ns, part.p, "pause:queue|mail", {"by": "me"}, gates=[], queues=[])
    first = await read_controls(part.ns, part.p)
    assert not await set_control(part.ns, part.p, "pause:queue|mail", {"by": "me"}, gates=[], queues=[])
    again = await read_controls(part.ns, part.p)

    assert first == again
    assert first.version == "1"
    assert first.entries == {"pause:queue|mail": {"by": "me"}}


async def test_lifting_raises_the_version_and_lifting_nothing_does_not(part):
    await set_control(part.ns, part.p, "limit:queue|mail", {"value": 2}, gates=[], queues=[])
    assert await set_control(part.ns, part.p, "limit:queue|mail", None, gates=[], queues=[])
    assert not await set_control(part.ns, part.p, "limit:queue|mail", None, gates=[], queues=[])
    assert (await read_controls(part.ns, part.p)).version == "2"
    assert (await read_controls(part.ns, part.p)).entries == {}


async def test_lines_are_marked_and_workers_and_timers_woken(part):
    await set_control(part.ns, part.p, "limit:queue|mail", {"value": 2}, gates=["queue|mail"], queues=["mail"])
    assert part.raw.smembers(part.keys.admit(part.p)) == {b"queue|mail"}
    assert part.pebbles("mail") == 1
    assert part.timer_pebbles() == 1


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    await refuses_other_epochs(
        lambda: set_control(part.ns, part.p, "pause:queue|mail", {}, gates=["queue|mail"], queues=["mail"])
    )


async def test_an_act_is_told_with_what_stood_before_and_after_and_only_when_something_changed(part):
    told = {"gates": [], "queues": [], "act": b"ACT", "by": "c-1"}
    await set_control(part.ns, part.p, "limit:queue|mail", {"value": 2}, **told)
    await set_control(part.ns, part.p, "limit:queue|mail", {"value": 2}, **told)
    await set_control(part.ns, part.p, "limit:queue|mail", None, **told)

    events = acts_of(part)
    assert [(event.facts, event.payload) for event in events] == [
        ({"before": "0", "after": "11"}, b'{"value":2}ACT'),
        ({"before": "11", "after": "0"}, b'{"value":2}ACT'),
    ]
