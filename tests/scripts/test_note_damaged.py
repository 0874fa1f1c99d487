"""note_damaged: puts up for repair runs that nobody can read."""

import pytest

from weft.store.runs import note_damaged, read_ledgers, read_runs

pytestmark = pytest.mark.leaves("open runs", "repair", "broken keys")


async def test_runs_are_put_up_once_and_keep_their_first_moment(part, ns, p):
    assert await note_damaged(ns, p, ["r0-a", "r0-b"]) == 2
    before = part.raw.zrange(part.keys.repair(p), 0, -1, withscores=True)

    assert await note_damaged(ns, p, ["r0-a", "r0-c"]) == 1

    after = dict(part.raw.zrange(part.keys.repair(p), 0, -1, withscores=True))
    assert dict(before).items() <= after.items()
    assert after.keys() == {b"r0-a", b"r0-b", b"r0-c"}


@pytest.mark.parametrize("field", ["spec", "open", "born", "seq"])
async def test_what_cannot_be_read_is_told_apart_from_what_is_gone(part, ns, p, field):
    damaged, fine = await part.start(2)
    part.raw.hset(part.keys.run(p, damaged), field, b"\xff garbage")

    found: list[str] = []
    rows = await read_ledgers(ns, p, [damaged, fine, "r0-gone"], damaged=found)

    assert [row.id for row in rows] == [fine]
    assert found == [damaged]
    assert [row and row.id for row in await read_runs(ns, p, [damaged, fine])] == [None, fine]


async def test_it_refuses_other_epochs(ns, p, refuses_other_epochs):
    await refuses_other_epochs(lambda: note_damaged(ns, p, ["r0-a"]))
