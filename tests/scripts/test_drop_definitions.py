"""drop_definitions: a definition that nobody needs goes, unless somebody has come to need it meanwhile."""

import pytest
from graph_runs import DEFINITION, start

from weft.store.definitions import NEEDED, drop_definitions, keep_definitions, mark_definitions, read_marks

pytestmark = pytest.mark.leaves("open runs", "broken keys")


async def marks(part):
    return await read_marks(part.ns, part.p)


async def test_a_start_stores_the_definition_and_notes_that_it_is_needed(part):
    await start(part, "a")
    assert await marks(part) == {DEFINITION: NEEDED}
    assert part.ttl_of(part.keys.ir(part.p, DEFINITION)) == -1


async def test_what_bears_the_mark_that_was_seen_is_dropped(part):
    await keep_definitions(part.ns, part.p, {"a": b"{}", "b": b"{}"})
    await mark_definitions(part.ns, part.p, ["a", "b"], "17")

    assert await drop_definitions(part.ns, part.p, {"a": "17"}) == ["dropped"]
    assert await drop_definitions(part.ns, part.p, {"a": "17"}) == ["needed"]

    assert await marks(part) == {"b": "17"}
    assert not part.raw.exists(part.keys.ir(part.p, "a"))
    assert part.raw.exists(part.keys.ir(part.p, "b"))


async def test_what_was_needed_meanwhile_stays(part):
    await start(part, "a")
    await mark_definitions(part.ns, part.p, [DEFINITION], "17")
    await start(part, "a")  # takes the mark away
    assert await drop_definitions(part.ns, part.p, {DEFINITION: "17"}) == ["needed"]

    await mark_definitions(part.ns, part.p, [DEFINITION], "18")
    assert await drop_definitions(part.ns, part.p, {DEFINITION: "17"}) == ["needed"]
    await keep_definitions(part.ns, part.p, {DEFINITION: b"{}"})
    assert await drop_definitions(part.ns, part.p, {DEFINITION: "18"}) == ["needed"]
    assert await drop_definitions(part.ns, part.p, {DEFINITION: NEEDED}) == ["needed"]

    assert part.raw.get(part.keys.ir(part.p, DEFINITION)) == b"{}"


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    await keep_definitions(part.ns, part.p, {"a": b"{}"})
    await mark_definitions(part.ns, part.p, ["a"], "17")
    await refuses_other_epochs(lambda: drop_definitions(part.ns, part.p, {"a": "17"}))
