"""read_controls: what operators have set, and under which version."""

from weft.core.gates import NO_CONTROLS
from weft.store.controls import read_controls, set_control


async def test_nothing_set_is_version_0(part):
    assert await read_controls(part.ns, part.p) == NO_CONTROLS


async def test_everything_set_is_read_with_its_version(part):
    await set_control(part.ns, part.p, "pause:task|send", {"reason": "ü"}, gates=[], queues=[])
    await set_control(part.ns, part.p, "limit:rate|send", {"value": "5/s"}, gates=[], queues=[])
    controls = await read_controls(part.ns, part.p)

    assert controls.version == "2"
    assert controls.entries == {"pause:task|send": {"reason": "ü"}, "limit:rate|send": {"value": "5/s"}}


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    await refuses_other_epochs(lambda: read_controls(part.ns, part.p))
