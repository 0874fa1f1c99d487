"""Turns between keys in a queue: with K busy keys, the head of a new one waits for at most 2K others."""

import random
from collections import Counter

import pytest
from partition import RESULT, Partition

from weft.core.model import Limit, Outcome, Token
from weft.engine.gates import admit, hold_back
from weft.store.steps import claim_steps

pytestmark = pytest.mark.leaves("open runs", "pending")


class Keys:
    """Keys with a limit each, whose steps are started, claimed one by one or in groups, and ended; counts who waits for how many."""

    def __init__(self, part: Partition, n: int, *, rate: bool = False, costs: tuple[int, ...] = (1,)) -> None:
        self.part, self.n, self.rate, self.costs = part, n, rate, costs
        self.key_of: dict[str, str] = {}
        self.held: list[Token] = []
        #: Steps that have not ended, by key: whoever has some is busy.
        self.left: Counter[str] = Counter()
        self.claimed: list[str] = []
        #: New keys whose first step waits: how many were claimed before, and which others were busy meanwhile.
        self.waiting: dict[str, tuple[int, set[str]]] = {}

    async def start(self, key: str, count: int = 1, **options) -> list[str]:
        if not self.left[key]:
            self.waiting[key] = (len(self.claimed), {other for other in self.left if self.left[other]} - {key})
        for _, busy in self.waiting.values():
            busy.add(key)
        gate = f"rate|job|{key}" if self.rate else f"key|job|{key}"
        cost = random.Random(len(self.claimed)).choice(self.costs)
        limit = Limit(gate, self.n, 60_000, cost) if self.rate else Limit(gate, self.n)
        runs = await self.part.start(count, limits=[limit], **options)
        self.key_of.update(dict.fromkeys(runs, key))
        self.left[key] += count
        return runs

    async def claim(self, room: int = 1, session: str = "s-1", **options) -> list[Token]:
        part = self.part
        tokens = await claim_steps(part.ns, part.p, session=session, queues=["default"], room=room, **options)
        assert len(await hold_back(part.ns, part.p, tokens, session=session)) == len(tokens)
        for token in tokens:
            key = self.key_of[token.run]
            if key in self.waiting:
                at, busy = self.waiting.pop(key)
                others = len(self.claimed) - at
                # A group goes to one worker at once: what is in it does not wait for the rest of it.
                assert others <= 2 * len(busy - {key}), f"{key} waited for {others} others of {len(busy) - 1} keys"
            self.held.append(token)
        self.claimed += [token.run for token in tokens]
        assert len(set(self.claimed)) == len(self.claimed), "a step was given twice"
        if not self.rate:
            assert max(Counter(self.key_of[token.run] for token in self.held).values(), default=0) <= self.n
        return tokens

    async def end(self, token: Token, session: str = "s-1") -> None:
        self.held.remove(token)
        assert await self.part.commit(Outcome(token, "completed", RESULT, 60_000, 1), session=session) == ["ok"]
        await admit(self.part.ns, self.part.p)
        self.left[self.key_of[token.run]] -= 1

    async def finish(self) -> None:
        """Claims and ends all that is left, and looks whether anything was noted and not put away."""
        while True:
            for token in list(self.held):
                await self.end(token)
            if not await self.claim(room=10):
                break
        assert not +self.left
        fields = self.part.raw.hkeys(self.part.keys.epoch(self.part.p))
        assert [field for field in fields if field.startswith(b"fresh")] == []


@pytest.mark.parametrize("n", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("k", [1, 2, 3, 8])
async def test_a_new_key_waits_for_at_most_two_of_each_busy_one(part, n, k):
    keys = Keys(part, n)
    for number in range(k):
        await keys.start(f"busy{number}", 2 * n)
    await keys.claim(room=3 % (k * n))

    for number in range(3):
        await keys.start(f"new{number}", 2)
        await keys.claim()
    while keys.waiting:
        assert await keys.claim()

    await keys.finish()


@pytest.mark.parametrize("seed", range(6))
async def test_turns_hold_whatever_comes_and_ends_when(part, seed):
    rng = random.Random(seed)
    keys = Keys(part, rng.choice([1, 2, 3, 5, 20]))
    for _ in range(150):
        match rng.choice("sscce"):
            case "s":
                await keys.start(f"k{rng.randrange(9)}", rng.choice([1, 1, 1, 4, 9]))
            case "c":
                await keys.claim(room=1)
            case "e" if keys.held:
                await keys.end(rng.choice(keys.held))

    await keys.finish()
