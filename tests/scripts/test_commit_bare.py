"""commit_bare: many attempts that have completed and leave nothing behind."""

import dataclasses

import pytest
from partition import Partition, completed, failed

from weft.core.model import Limit, Token
from weft.engine.gates import admit
from weft.store.bare import commit_bare
from weft.store.inbox import parse_news
from weft.store.runs import read_runs, watch_runs
from weft.store.steps import NO_LINES, WORTH_A_CALL


async def bare(part: Partition, *tokens: Token, value: bytes | None = None) -> list[str]:
    outcomes = [completed(token) if value is None else completed(token, value) for token in tokens]
    words, _ = await commit_bare(part.ns, part.p, outcomes, session="s-1")
    return words


async def claimed(part: Partition, n: int = 2, **options) -> list[Token]:
    return [await part.claimed(**options) for _ in range(n)]


@pytest.mark.parametrize("value", [b"", b"\x81 \n\x00 8", b"x" * 32, b"y" * 33], ids=["empty", "odd", "short", "long"])
async def test_runs_end_as_by_the_wide_way(part: Partition, p, value):
    short, wide = await claimed(part), await part.claimed()

    assert await bare(part, *short, value=value) == ["ok", "ok"]

    # Eight and more are worth a call of their own: one is committed beside a failure, as the others are.
    assert await part.commit(completed(wide, value), failed(await part.claimed())) == ["ok", "ok"]
    assert part.stream("default", 5) == []
    about = [await read_runs(part.ns, p, [token.run]) for token in (*short, wide)]
    for (run,), token in zip(about, (*short, wide), strict=True):
        assert (run.text("status"), run.text("seq"), run.fields["result"]) == ("completed", "2", value)
        assert run.fields["open"] == f"={token.ledger}".encode()
        assert [(event.seq, event.type) for event in part.events(token.run)] == [(1, "queued"), (2, "completed")]
        assert part.events(token.run)[1].payload == value
    keeps = {part.raw.pttl(part.keys.run(p, token.run)) // 60_000 for token in (*short, wide)}
    assert len(keeps) == 1 and keeps.pop() > 0
    assert set(about[0][0].fields) == set(about[2][0].fields)


async def test_streams_and_ways_may_differ(part: Partition, p):
    tokens = [await part.claimed(), await part.claimed(queue="other", priority=9), await part.claimed(keep_ms=5_000)]

    assert await bare(part, *tokens) == ["ok"] * 3

    assert part.stream("default", 5) == part.stream("other", 9) == []
    assert 0 < part.raw.pttl(part.keys.run(p, tokens[2].run)) <= 5_000
    assert len({event.entry for event in part.events() if event.seq == 2}) == 1


@pytest.mark.leaves("open runs", "pending")
async def test_what_is_not_as_usual_is_left_alone_beside_what_is(part: Partition, p):
    fine, handed_on, late, twice = (
        await claimed(part, 2),
        await part.claimed(),
        await part.claimed(),
        await part.claimed(),
    )
    part.raw.hset(part.keys.run(p, handed_on.run), "open", f"2:{handed_on.entry}")
    part.raw.hset(part.keys.run(p, late.run), "deadline", 4_000_000_000_000)
    broken, gone = await part.claimed(), await part.claimed()
    for token in (broken, gone):
        part.raw.delete(part.keys.run(p, token.run))
    part.raw.set(part.keys.run(p, broken.run), "nothing")

    words = await bare(part, fine[0], handed_on, late, twice, twice, broken, gone, fine[1])

    assert words == ["ok", "wide", "wide", "ok", "wide", "wide", "wide", "ok"]
    assert part.run(late.run)["open"] == late.ledger
    part.raw.delete(part.keys.run(p, broken.run))
    assert await part.commit(completed(gone), completed(broken), completed(twice)) == ["gone", "gone", "done"]


@pytest.mark.leaves("open runs")
async def test_a_token_that_nobody_holds_is_a_second_refusal(part: Partition, p):
    tokens, held = await claimed(part), await part.claimed(queue="other")
    part.raw.xgroup_destroy(part.keys.tasks(p, "default", 5), "weft")

    assert await bare(part, tokens[0], held, tokens[1]) == ["stale", "ok", "stale"]

    assert [event.type for event in part.events(tokens[0].run)] == ["queued"]


async def test_a_call_that_is_made_again_changes_nothing(part: Partition):
    tokens = await claimed(part, WORTH_A_CALL)
    outcomes = [completed(token) for token in tokens]
    assert await part.commit(*outcomes) == ["ok"] * WORTH_A_CALL
    before = part.snapshot()

    assert await part.commit(*outcomes) == ["done"] * WORTH_A_CALL
    assert (
        await part.commit(*[completed(dataclasses.replace(token, entry="9-9")) for token in tokens])
        == ["stale"] * WORTH_A_CALL
    )

    assert part.snapshot() == before


async def test_watchers_get_one_message_per_channel(part: Partition, ns, p):
    tokens = await claimed(part)
    await watch_runs(ns, p, [token.run for token in tokens], "t:bare")
    with part.raw.pubsub() as listener:
        listener.subscribe("t:bare")
        assert listener.get_message(timeout=5)["type"] == "subscribe"

        assert await bare(part, *tokens, value=b"8") == ["ok", "ok"]

        told = list(parse_news(listener.get_message(timeout=5)["data"]))
    assert told == [(token.run, "completed", b"8") for token in tokens]


@pytest.mark.leaves("open runs", "pending")
async def test_it_refuses_other_epochs(part: Partition, refuses_other_epochs):
    tokens = await claimed(part)
    await refuses_other_epochs(lambda: bare(part, *tokens))  # stale_epoch, epoch_missing


ONE, MANY = [Limit("key|job|bob", 1)], [Limit("key|job|bob", 9)]


def slots(part: Partition) -> tuple[list[bytes], list[bytes], set[bytes], bytes | None]:
    """Returns who has slots of the key, who waits for one, which gates are to be looked at, and who inherited."""
    keys, p, gate = part.keys, part.p, "key|job|bob"
    return (
        part.raw.zrange(keys.gate(p, gate), 0, -1),
        part.raw.zrange(keys.line(p, gate), 0, -1),
        part.raw.smembers(keys.admit(p)),
        part.raw.hget(keys.heirs(p), gate),
    )


async def test_slots_are_given_back_beside_ends_that_have_none(part: Partition):
    free = await claimed(part)
    held = await claimed(part, 3, limits=MANY)
    assert len(slots(part)[0]) == 3

    words, awaited = await commit_bare(
        part.ns, part.p, [completed(t) for t in (free[0], *held, free[1])], session="s-1"
    )

    assert words == ["ok"] * 5 and not awaited
    assert slots(part) == ([], [], set(), None)


@pytest.mark.leaves("open runs", "pending")
async def test_only_those_that_end_give_their_slot_back(part: Partition, p):
    stale, ended = await claimed(part, 2, limits=MANY)
    part.raw.hset(part.keys.run(p, stale.run), "open", f"2:{stale.entry}")

    assert await bare(part, stale, ended) == ["wide", "ok"]

    assert slots(part)[0] == [stale.run.encode()]


@pytest.mark.leaves("open runs", "pending")
async def test_who_waits_for_a_slot_that_names_no_heir_is_told_of(part: Partition):
    # The first of a key was let through when nobody stood behind it: its token names nobody.
    _, waiting = await part.start(2, limits=ONE)
    (first,) = await part.claim()
    assert not first.heirs

    words, awaited = await commit_bare(part.ns, part.p, [completed(first)], session="s-1")

    assert (words, awaited) == (["ok"], True)
    assert slots(part) == ([], [waiting.encode()], {b"key|job|bob"}, None)


@pytest.mark.leaves("open runs", "pending")
@pytest.mark.parametrize("way", ["short", "wide"])
async def test_a_slot_is_handed_on_as_by_the_wide_way(part: Partition, way):
    *_, heir, last = await part.start(4, limits=ONE)
    (first,) = await part.claim()
    await part.commit(completed(first))
    await admit(part.ns, part.p)
    (second,) = await part.claim()
    assert second.heirs == f"{heir} {last}"
    part.take_pebbles()

    if way == "short":
        assert await bare(part, second) == ["ok"]
    else:
        # Log lines are more than a bare end leaves.
        assert await part.commit(completed(second, lines=NO_LINES)) == ["ok"]

    assert slots(part) == ([b">"], [last.encode()], set(), heir.encode())
    assert part.pebbles() == 1
    (third,) = await part.claim()
    assert (third.run, third.heirs, third.gates) == (heir, last, "key|job|bob")
    # A repeated call hands nothing on a second time.
    before = part.snapshot()
    assert await part.commit(completed(second)) == ["done"]
    assert part.snapshot() == before


@pytest.mark.leaves("open runs", "pending")
async def test_who_does_not_know_the_controls_hands_nothing_on(part: Partition, ns, p):
    *_, heir, last = await part.start(4, limits=ONE)
    (first,) = await part.claim()
    await part.commit(completed(first))
    await admit(ns, p)
    (second,) = await part.claim()
    part.raw.hset(part.keys.epoch(p), "controls", "7")

    assert await bare(part, second) == ["ok"]

    assert slots(part) == ([], [heir.encode(), last.encode()], {b"key|job|bob"}, None)
