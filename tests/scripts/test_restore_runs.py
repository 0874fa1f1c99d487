"""restore_runs: unfinished runs as the archive has them, and the records that runs stand behind."""

import pytest
from rebuilding import closed

from weft.core.fold import RunState
from weft.core.model import SPEC_ENCODER, RunSpec
from weft.store.recovery import restore_runs

pytestmark = pytest.mark.leaves("history", "open runs")


def archived(name: str, spec: RunSpec, **fields) -> tuple[RunState, RunSpec]:
    return RunState(f"r0-{name}", spec=SPEC_ENCODER.encode(spec), **fields), spec


async def test_a_run_goes_on_by_a_timer_with_a_delivery_and_an_event_of_its_own(part, p):
    ns = await closed(part)
    state, spec = archived(
        "A",
        RunSpec("job"),
        seq=4,
        attempt=2,
        delivery=3,
        crashes=1,
        created_ms=5,
        deadline_ms=9_000_000_000_000,
        value=b"e",
    )

    assert await restore_runs(ns, p, [(state, spec, True)], now_ms=1, by="me") == ["restored"]

    fields = part.raw.hgetall(part.keys.run(p, "r0-A"))
    assert fields.pop(b"open").startswith(b"4:@") and fields.pop(b"more").isdigit()
    assert fields == {
        b"spec": state.spec,
        b"born": b"5",
        b"seq": b"5",
        b"attempt": b"2",
        b"crashes": b"1",
        b"error": b"e",
        b"deadline": b"9000000000000",
    }
    assert set(part.raw.zrange(part.keys.timers(p), 0, -1)) == {b"open:r0-A", b"deadline:r0-A"}
    ((_, entry),) = part.raw.xrange(part.keys.log(p))
    assert entry[b"r0-A"] == b"5|recovered|epoch=4000000000|"


async def test_what_is_due_later_waits_and_what_is_there_is_left_alone(part, p):
    ns = await closed(part)
    late, spec = archived("B", RunSpec("job"), seq=1, due_ms=9_000_000_000_000)
    await restore_runs(ns, p, [(late, spec, True)], now_ms=1, by="me")
    before = part.snapshot()

    assert await restore_runs(ns, p, [(late, spec, True)], now_ms=1, by="me") == ["exists"]

    assert part.snapshot() == before
    assert part.raw.zscore(part.keys.timers(p), "open:r0-B") == 9_000_000_000_000
    assert part.run("r0-B")["promised"] == "1" and "status" not in part.run("r0-B")


async def test_what_put_itself_off_waits(part, p):
    ns = await closed(part)
    off, spec = archived("B", RunSpec("job"), seq=2, status="waiting", due_ms=9_000_000_000_000)

    assert await restore_runs(ns, p, [(off, spec, True)], now_ms=1, by="me") == ["restored"]

    assert part.run("r0-B")["status"] == "waiting" and "promised" not in part.run("r0-B")


async def test_records_stand_again_for_as_long_as_they_would_have(part, p):
    ns = await closed(part)
    keyed, spec = archived("C", RunSpec("job", key="k"), seq=2, same="digest", claims_ms=60_001, status="completed")
    once, other = archived("D", RunSpec("job", once="o", once_ms=1), seq=2, claims_ms=60_001, status="failed")
    given_back, third = archived("E", RunSpec("job", unique="u", once_ms=1), seq=2, claims_ms=60_001, status="failed")

    found = [(keyed, spec, False), (once, other, False), (given_back, third, False)]
    assert await restore_runs(ns, p, found, now_ms=1, by="me") == ["record"] * 3

    (record,) = part.raw.keys(part.keys.idempotency(p, "*"))
    assert part.raw.get(record) == b"r0-C digest" and 50_000 < part.raw.pttl(record) <= 60_000
    assert part.raw.get(part.keys.unique(p, "o")) == b"r0-D"
    assert not part.raw.exists(part.keys.unique(p, "u"))
    assert not part.raw.exists(part.keys.run(p, "r0-C"))


async def test_only_their_rebuilder_writes_them(part, p, refuses_other_epochs):
    ns = await closed(part)
    state, spec = archived("F", RunSpec("job"), seq=1)

    await refuses_other_epochs(lambda: restore_runs(ns, p, [(state, spec, True)], now_ms=1, by="me"))
