"""stage_items: who makes the key lets it expire; who repeats it touches no expiry."""

from weft.store.graphs import read_items, stage_items


async def test_items_are_staged_by_the_chunk_and_expire(part):
    items = list(range(600))
    await stage_items(part.ns, part.p, "r0-a", "each", items)
    key = part.keys.items(part.p, "r0-a", "each")
    assert part.raw.hlen(key) == 3
    assert 0 < part.raw.pttl(key) <= 3_600_000
    assert await read_items(part.ns, part.p, "r0-a", "each", 2) == items[512:]
    part.raw.delete(key)


async def test_repeating_it_does_not_let_the_items_of_a_map_expire_that_has_begun(part):
    key = part.keys.items(part.p, "r0-a", "each")
    await stage_items(part.ns, part.p, "r0-a", "each", [1, 2])
    part.raw.persist(key)
    await stage_items(part.ns, part.p, "r0-a", "each", [1, 2])
    assert part.raw.pttl(key) == -1
    part.raw.delete(key)


async def test_it_refuses_other_epochs(part, refuses_other_epochs):
    await refuses_other_epochs(lambda: stage_items(part.ns, part.p, "r0-a", "each", [1]))
