"""Starting runs with one of each key at a time: those of one call are let through, or wait, as by calls of their own."""

import itertools

import pytest
from partition import Partition

from weft.core.model import SPEC_ENCODER, Limit, RunSpec
from weft.ids import new_run_ids
from weft.store.runs import NewRun, start_runs

pytestmark = pytest.mark.leaves("open runs")


def one(key: str) -> list[Limit]:
    return [Limit(f"key|job|{key}", 1)]


async def start(part: Partition, *limits: list[Limit]) -> list[str]:
    """Starts runs with these limits by one call; returns of each the gate it waits at, or an empty text."""
    specs = [RunSpec("job", limits=some) for some in limits]
    names = new_run_ids(part.p, len(specs))
    runs = [NewRun(name, spec, SPEC_ENCODER.encode(spec)) for name, spec in zip(names, specs, strict=True)]
    assert await start_runs(part.ns, part.p, runs, by="c-1") == ["started"] * len(runs)
    ledgers = [part.run(name)["open"].partition(":")[2] for name in names]
    return [ledger[1:].partition(" ")[0] if ledger.startswith("#") else "" for ledger in ledgers]


def held(part: Partition, key: str) -> int:
    return part.raw.zcard(part.keys.gate(part.p, f"key|job|{key}"))


@pytest.mark.parametrize("taken", [n for size in range(4) for n in itertools.combinations("abc", size)])
async def test_whoever_is_the_first_of_its_key_is_let_through_and_the_others_wait(part, taken):
    for key in taken:
        assert await start(part, one(key)) == [""]

    waits = await start(part, *map(one, "aabbcc"))

    first = ["" if key not in taken else f"key|job|{key}" for key in "abc"]
    assert waits == [first[0], "key|job|a", first[1], "key|job|b", first[2], "key|job|c"]
    assert [held(part, key) for key in "abc"] == [1, 1, 1]


async def test_a_gate_that_was_entered_on_the_way_for_many_limits_is_shut(part):
    assert await start(part, one("a"), [*one("b"), Limit("task|job", 9)], one("b"), one("c"), one("c")) == [
        "", "", "key|job|b", "", "key|job|c",
    ]  # fmt: skip


async def test_a_gate_that_another_version_of_the_task_entered_in_the_same_call_is_shut(part):
    wider = [Limit("key|job|a", 2)]

    assert await start(part, wider, one("b"), one("a"), wider, wider) == ["", "", "key|job|a", "key|job|a", "key|job|a"]
    wider = [Limit("key|job|d", 2)]
    assert await start(part, one("c"), wider, one("d")) == ["", "", "key|job|d"]


async def test_who_waits_at_a_gate_that_is_free_is_not_passed(part):
    # The slot has just been given back, and nobody has looked at the line yet.
    assert await start(part, one("a"), one("a"), one("b")) == ["", "key|job|a", ""]
    part.raw.delete(part.keys.gate(part.p, "key|job|a"), part.keys.gate(part.p, "key|job|b"))

    assert await start(part, one("a"), one("b")) == ["key|job|a", ""]
    assert part.raw.smembers(part.keys.admit(part.p)) == {b"key|job|a"}


async def test_that_a_hundred_keys_are_busy_is_asked_once(part):
    keys = [str(n) for n in range(100)]
    await start(part, *map(one, keys))
    before = {name: about["calls"] for name, about in part.raw.info("commandstats").items()}

    assert all(await start(part, *map(one, keys)))

    after = part.raw.info("commandstats")
    assert after["cmdstat_exists"]["calls"] - before["cmdstat_exists"] == 2  # that all runs are new is the other
    assert after.get("cmdstat_zcard", {"calls": 0})["calls"] == before.get("cmdstat_zcard", 0)
