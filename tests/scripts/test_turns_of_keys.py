"""Turns between keys that share no limit, counted in claims: how many others begin before the head of a key that is new."""

import random

import pytest
from partition import completed, retrying

from weft.core.model import Limit
from weft.engine.gates import admit, next_heads
from weft.store.steps import commit_steps

pytestmark = pytest.mark.leaves("open runs", "pending")

#: Runs of one busy key.
CROWD = 12


def limits(key: str, per_key: int) -> list[Limit]:
    return [Limit(f"key|job|{key}", per_key)]


class Fleet:
    """Workers with so many slots in all: claims one by one, ends steps in no particular order."""

    def __init__(self, part, slots: int, seed: int) -> None:
        self.part, self.slots, self.chance = part, slots, random.Random(seed)
        self.running = []

    async def claim(self) -> str:
        """Returns the key of the next step that begins."""
        while True:
            if len(self.running) < self.slots:
                tokens = await self.part.claim(room=1)
                self.running += tokens
                if tokens:
                    return tokens[0].gates.rpartition("|")[2]
            await self.end_one()

    async def end_one(self) -> None:
        token = self.running.pop(self.chance.randrange(len(self.running)))
        end = completed(token) if self.chance.random() < 0.8 else retrying(token, after_ms=3_600_000)
        heads = await next_heads(self.part.ns, self.part.p, [end]) if self.chance.random() < 0.5 else []
        await commit_steps(self.part.ns, self.part.p, [end], session="s-1", heads=heads)
        await admit(self.part.ns, self.part.p)


async def begun_before_a_new_key(part, busy: int, per_key: int, slots: int, seed: int) -> int:
    for key in range(busy):
        await part.start(CROWD, limits=limits(f"busy{key}", per_key))
    fleet = Fleet(part, slots, seed)
    for _ in range(fleet.chance.randrange(2 * busy)):
        await fleet.claim()
    await part.start(CROWD, limits=limits("new", per_key))
    for n in range(busy * CROWD):
        if await fleet.claim() == "new":
            return n
    raise AssertionError("the new key was not served while others were")


@pytest.mark.parametrize("per_key", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("busy", [1, 2, 7])
async def test_the_head_of_a_new_key_begins_within_twice_as_many_claims_as_there_are_busy_keys(
    part, busy, slots, per_key
):
    assert await begun_before_a_new_key(part, busy, per_key, slots, seed=busy + slots) <= 2 * busy


async def test_arrivals_behind_the_new_key_never_pass_it(part):
    await part.start(CROWD, limits=limits("busy", 1))
    fleet = Fleet(part, 1, seed=5)
    assert await fleet.claim() == "busy"
    await part.start(1, limits=limits("new", 1))
    await part.start(CROWD, limits=limits("later", 1))

    # The one that the busy key may have let through meanwhile is all that can come before it.
    begun = [await fleet.claim() for _ in range(3)]

    assert begun.index("new") <= 1
    assert begun.index("new") < begun.index("later")
