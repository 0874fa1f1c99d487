"""Turns between keys in a queue: with K busy keys, the head of a new one waits for at most 2K others."""

import random
from collections import Counter

import pytest
from partition import ERROR, Partition, completed

from weft.core.model import Limit, RunSpec, Token
from weft.engine.gates import admit, hold_back
from weft.store.keys import GROUP
from weft.store.lost import reclaim_steps
from weft.store.queues import read_ahead, read_queues
from weft.store.runs import end_run, read_runs
from weft.store.steps import claim_steps

pytestmark = pytest.mark.leaves("open runs", "pending")


def noted(part: Partition) -> dict[str, str]:
    """Returns what the partition keeps of keys with several tokens, and of tokens that may overtake."""
    fields = part.raw.hgetall(part.keys.epoch(part.p)).items()
    found = {name.decode(): value.decode() for name, value in fields if name.startswith(b"fresh")}
    return {name: value for name, value in found.items() if (name, value) != ("fresh", "0")}


class Crowd:
    """Steps of many keys, started, claimed and ended at will; when a new key's first step is claimed, its wait is judged."""

    def __init__(self, part: Partition, *, limit=lambda key: Limit(f"key|job|{key}", 3)) -> None:
        self.part, self.limit = part, limit
        self.specs: dict[str, RunSpec] = {}
        self.key_of: dict[str, str] = {}
        self.held: list[tuple[str, Token]] = []
        #: Runs that have not ended, by key: a key with some is busy.
        self.open: dict[str, set[str]] = {}
        self.claimed: list[tuple[str, int]] = []
        #: New keys: how many steps were claimed when the first of theirs came, and which others were busy meanwhile.
        self.waiting: dict[str, tuple[int, set[str]]] = {}

    async def start(self, key: str, count: int = 1) -> list[str]:
        busy = {other for other, runs in self.open.items() if runs}
        if key not in busy:
            self.waiting[key] = len(self.claimed), busy
        for _, others in self.waiting.values():
            others.add(key)
        spec = RunSpec("job", limits=[self.limit(key)])
        runs = await self.part.start(count, limits=spec.limits)
        self.specs.update(dict.fromkeys(runs, spec))
        self.key_of.update(dict.fromkeys(runs, key))
        self.open.setdefault(key, set()).update(runs)
        return runs

    async def claim(self, room: int = 1, session: str = "s-1", aging_ms: int = 0) -> list[str]:
        ns, p = self.part.ns, self.part.p
        tokens = await claim_steps(ns, p, session=session, queues=["default"], room=room, aging_ms=aging_ms)
        assert len(await hold_back(ns, p, tokens, session=session)) == len(tokens)
        before = len(self.claimed)
        for token in tokens:
            key = self.key_of[token.run]
            if key in self.waiting:
                # What is claimed at once begins at once: it waits for nobody in its group.
                at, others = self.waiting.pop(key)
                allowed = 2 * len(others - {key})
                assert before - at <= allowed, f"{key} waited for {before - at} steps, {allowed} are allowed"
            self.held.append((session, token))
            self.claimed.append((token.run, token.delivery))
        assert len({*self.claimed}) == len(self.claimed), "a token was given twice"
        if self.held:
            assert {entry for entry, _ in self.part.pending()} == {token.entry for _, token in self.held}
        for key, n in Counter(self.key_of[token.run] for _, token in self.held).items():
            assert n <= self.limit(key).n, f"{n} of {key} are under way"
        return [token.run for token in tokens]

    async def end(self, held: tuple[str, Token]) -> None:
        session, token = held
        self.held.remove(held)
        assert await self.part.commit(completed(token), session=session) == ["ok"]
        await self._gone(token.run)

    async def cancel(self, run: str) -> None:
        """Cancels a run that no worker has."""
        ns, p = self.part.ns, self.part.p
        (row,) = await read_runs(ns, p, [run])
        await end_run(ns, p, row, kind="cancelled", value=ERROR, keep_ms=60_000, by="c-1")
        await self._gone(run)
        # Whether its next step is a new key's first is not what is tried here.
        self.waiting.pop(self.key_of[run], None)

    async def _gone(self, run: str) -> None:
        self.open[self.key_of[run]].discard(run)
        await admit(self.part.ns, self.part.p)

    async def die(self, session: str) -> None:
        """Has a session die: what it held is emitted anew, behind everything."""
        ns, p = self.part.ns, self.part.p
        lost = [token for holder, token in self.held if holder == session]
        self.held = [one for one in self.held if one[0] != session]
        words = await reclaim_steps(
            ns,
            p,
            dead=session,
            queue="default",
            stream=self.part.keys.tasks(p, "default", 5),
            held=[(token.entry, token.run, token.spec, token.gates) for token in lost],
            keep_ms=lambda spec: spec.keep_ms,
            by="s-sweeper",
            max_crashes=1000,
            poison=ERROR,
        )
        assert words == ["emitted"] * len(lost)

    async def finish(self) -> None:
        """Claims and ends all there is; nothing that was noted is left behind."""
        while await self.claim(room=20, session="s-last") or self.held:
            for held in list(self.held):
                await self.end(held)
        assert not any(self.open.values())
        # Tokens that were gone when the last claim came are put away by the next ones.
        await self.start("last")
        await self.claim(room=20, session="s-last")
        assert noted(self.part) == {}


@pytest.mark.parametrize("n", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("k", [1, 3, 8])
async def test_a_new_key_waits_for_at_most_two_of_each_busy_one(part, n, k):
    crowd = Crowd(part, limit=lambda key: Limit(f"key|job|{key}", n))
    for number in range(k):
        await crowd.start(f"busy{number}", n + 2)
    await crowd.claim(room=2)

    for number in range(3):
        await crowd.start(f"new{number}", 2)
        await crowd.claim()
    while crowd.waiting:
        assert await crowd.claim()


@pytest.mark.parametrize("cost", [1, 3])
async def test_turns_hold_where_a_rate_of_each_key_lets_many_through(part, cost):
    crowd = Crowd(part, limit=lambda key: Limit(f"rate|job|{key}", 20 * cost, 3_600_000, cost))
    for number in range(4):
        await crowd.start(f"busy{number}", 25)
    await crowd.claim(room=3)

    for number in range(3):
        await crowd.start(f"new{number}", 2)
        await crowd.claim()
    while crowd.waiting:
        assert await crowd.claim()


async def test_keys_that_come_again_and_again_starve_nobody(part):
    # Given a key with several in the queue, and three that always have one there.
    crowd = Crowd(part, limit=lambda key: Limit(f"key|job|{key}", 20))
    many = await crowd.start("many", 6)
    for n in range(24):
        while len([run for runs in crowd.open.values() for run in runs if run not in many]) < 3:
            await crowd.start(f"once{n}-{len(crowd.claimed)}-{len(crowd.specs)}")
        # When steps are claimed one by one.
        await crowd.claim()
        await crowd.end(crowd.held[0])

    # Then every third was of the one that has several.
    runs = [run in many for run, _ in crowd.claimed]
    assert runs[0] and sum(runs) == 6 and sum(runs[:16]) == 6


async def test_what_came_before_any_key_had_two_keeps_its_order(part):
    crowd = Crowd(part, limit=lambda key: Limit(f"key|job|{key}", 20))
    first = [run for key in "abcd" for run in await crowd.start(key)]
    second = await crowd.start("a", 3)
    third = await crowd.start("e")

    assert [run for _ in range(8) for run in await crowd.claim()] == [*first, *third, *second]


async def test_a_queue_where_no_key_has_two_notes_nothing(part):
    crowd = Crowd(part, limit=lambda key: Limit(f"key|job|{key}", 20))
    runs = [run for n in range(5) for run in await crowd.start(f"k{n}")]

    assert noted(part) == {}
    assert await crowd.claim(room=10) == runs
    assert noted(part) == {}


async def test_none_overtakes_a_higher_priority(part):
    limits = [Limit("key|job|a", 20)]
    await part.start(5, limits=limits)
    (new,) = await part.start(limits=[Limit("key|job|b", 20)])
    high = await part.start(3, priority=6, limits=limits)
    (new_high,) = await part.start(priority=6, limits=[Limit("key|job|c", 20)])

    claimed = [token.run for _ in range(6) for token in await part.claim(room=1)]

    assert sorted(claimed[:4]) == sorted([*high, new_high]) and new in claimed[4:]


async def test_the_next_to_read_on_leaves_it_to_its_holder(part, p):
    # Given a step that has overtaken others, and runs.
    many = await part.start(3, limits=[Limit("key|job|a", 20)])
    (new,) = await part.start(limits=[Limit("key|job|b", 20)])
    await part.claim("s-1", room=1)
    (early,) = await part.claim("s-2", room=1)
    assert early.run == new
    stream = part.keys.tasks(p, "default", 5)
    (before,) = part.raw.xpending_range(stream, GROUP, early.entry, early.entry, 1)

    # When another session takes all that is left.
    later = await part.claim("s-3", room=10)

    # Then it does not get the one that runs, which its holder ends as ever.
    assert [token.run for token in later] == many[1:]
    (after,) = part.raw.xpending_range(stream, GROUP, early.entry, early.entry, 1)
    assert after["consumer"] == b"s-2" and after["time_since_delivered"] >= before["time_since_delivered"]
    assert await part.commit(completed(early), session="s-2") == ["ok"]
    assert noted(part) == {}


@pytest.mark.leaves("broken keys")
async def test_what_was_noted_of_tokens_that_are_gone_keeps_nobody_back(part, p):
    # Given a stream that was wiped, with what is known of it, as after a loss of everything but the epoch.
    await part.start(3, limits=[Limit("key|job|a", 20)])
    await part.start(limits=[Limit("key|job|b", 20)])
    await part.claim(room=2)
    await part.start(limits=[Limit("key|job|c", 20)])
    assert len(noted(part)) == 3
    part.raw.delete(part.keys.tasks(p, "default", 5))

    # When others come.
    runs = await part.start(2, limits=[Limit("key|job|d", 20)])
    runs += await part.start(limits=[Limit("key|job|e", 20)])

    # Then they are claimed, and what was known is forgotten.
    assert sorted([token.run for _ in range(4) for token in await part.claim(room=1)]) == sorted(runs)
    assert noted(part) == {}


async def test_its_place_is_told_and_the_queue_says_how_old_it_is(part, ns, p):
    many = await part.start(9, limits=[Limit("key|job|a", 20)])
    (new,) = await part.start(limits=[Limit("key|job|b", 20)])
    (other,) = await part.start(limits=[Limit("key|job|c", 20)])

    def entry(run: str) -> str:
        return part.run(run)["open"].removeprefix("1:")

    assert await read_ahead(ns, p, "default", 5, entry(many[4])) == 4
    assert await read_ahead(ns, p, "default", 5, entry(new)) <= 2
    assert await read_ahead(ns, p, "default", 5, entry(other)) <= 4

    # All but the last of the first key are claimed and ended: what has overtaken is not what waits.
    tokens = await part.claim(room=10)
    assert {new, other} <= {token.run for token in tokens}
    facts = (await read_queues(ns, p))["default"]
    assert (facts.ready, facts.running) == (1, 10)
    assert facts.oldest_ms == int(entry(many[8]).partition("-")[0])


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.chaos] * (seed > 2)) for seed in range(40)])
async def test_turns_hold_whatever_comes_and_ends_when(part, seed):
    rng = random.Random(seed)
    limits = {f"k{n}": rng.choice([1, 2, 3, 5, 20]) for n in range(9)}
    crowd = Crowd(part, limit=lambda key: Limit(f"key|job|{key}", limits.get(key, 1)))
    sessions, dead = [f"s-{n}" for n in range(50)], set()
    for n in range(90):
        match rng.choice("ssscccced" if seed % 2 else "sscce"):
            case "s":
                await crowd.start(f"k{rng.randrange(9)}", rng.choice([1, 1, 1, 4, 9]))
            case "c":
                session = rng.choice([name for name in sessions if name not in dead])
                await crowd.claim(rng.choice([1, 1, 1, 4]), session, rng.choice([0, 0, 60_000]))
            case "e" if crowd.held:
                await crowd.end(rng.choice(crowd.held))
            case "d" if seed % 2:
                free = [run for runs in crowd.open.values() for run in sorted(runs)]
                free = [run for run in free if run not in {token.run for _, token in crowd.held}]
                if n % 3 and free:
                    await crowd.cancel(rng.choice(free))
                elif crowd.held:
                    dead.add(crowd.held[0][0])
                    await crowd.die(crowd.held[0][0])

    await crowd.finish()
