"""start_graph: accepts a graph run, once, with its definition and the steps it begins with."""

import pytest
from graph_steps import DIGEST, begin, given, ledger, new_graph, packed, step

from weft.core.effects import Arrive, Mark
from weft.core.model import Value
from weft.errors import ArchiveBehind, StaleControls
from weft.store.archived import set_behind
from weft.store.blobs import digest_of, stage_blob
from weft.store.graphs import start_graph

pytestmark = pytest.mark.leaves("open runs")


async def test_a_run_gets_its_hash_its_ledger_its_definition_and_its_first_steps(part, p):
    run = await begin(part, step("a"), step("b", queue="other"))

    assert ledger(part, run) == {"a", "b"}
    assert part.run(run)["open"] == "1:*"
    assert part.run(run)["def"] == DIGEST
    assert part.raw.get(part.keys.ir(p, DIGEST)) == b"{}"
    assert [token["r"] for _, token in part.stream()] == [f"{run}/a"]
    assert [token["r"] for _, token in part.stream("other")] == [f"{run}/b"]
    assert [(event.seq, event.type) for event in part.events(run)] == [(1, "queued"), (2, "routed")]
    assert [(event.seq, event.type) for event in part.events(f"{run}/a")] == [(1, "queued")]


async def test_a_step_may_begin_later(part):
    opened = step("a")
    opened.wait = "60000"
    run = await begin(part, opened)

    assert list(part.timers()) == [f"open:{run}/a"]
    assert ledger(part, run) == {"a"}
    assert part.stream() == []


async def test_joins_count_and_open_and_marks_are_kept(part):
    marks = [Mark(name, name, "completed", packed(Value(b"\x01"))) for name in "ab"]
    run = await begin(part, *marks, Arrive("join", "a+", 2), Arrive("join", "b-", 2))

    assert given(part, run) == {"a": "completed", "b": "completed"}
    assert ledger(part, run) == {"join?"}
    assert part.raw.hget(part.keys.arrivals(part.p, run), "join") == b"= a+ b-"


async def test_a_run_with_nothing_to_do_is_completed_at_once_and_expires(part):
    result = packed(Value(b"\x02"))
    run = await begin(part, Mark("a", "a", "completed", result), new=new_graph(part.p), result=result)

    assert part.run(run)["status"] == "completed"
    assert part.run(run)["open"] == "=1:*"
    assert part.ttl(run) > 0
    assert part.ttl_of(part.keys.context(part.p, run)) > 0
    assert [event.type for event in part.events(run)] == ["queued", "node_completed", "completed"]


async def test_a_deadline_is_a_timer(part):
    run = await begin(part, step("a"), new=new_graph(part.p, spec={"deadline_ms": 60_000}))

    assert list(part.timers()) == [f"deadline:{run}"]


async def test_starting_twice_answers_exists_and_changes_nothing(part, ns, p):
    new = new_graph(p)
    await begin(part, step("a"), new=new)
    before = part.snapshot()

    assert await start_graph(ns, p, new, [step("a")], definition=b"{}", result=b"", by="c-1") == "exists"
    assert part.snapshot() == before


async def test_the_same_key_joins_and_another_input_conflicts(part, ns, p):
    key = {"key_digest": "k", "window_ms": 60_000}
    first = await begin(part, step("a"), new=new_graph(p, payload_digest="x", **key))

    async def again(digest: str) -> str:
        new = new_graph(p, payload_digest=digest, **key)
        return await start_graph(ns, p, new, [step("a")], definition=b"{}", result=b"", by="c-1")

    assert await again("x") == f"joined {first}"
    assert await again("y") == f"conflict {first}"
    assert [token["r"] for _, token in part.stream()] == [f"{first}/a"]


async def test_a_run_whose_input_is_gone_is_refused(part, ns, p):
    lost = new_graph(p, spec={"blob": "0" * 64})
    assert await start_graph(ns, p, lost, [step("a")], definition=b"{}", result=b"", by="c-1") == "blob_gone"
    assert part.run(lost.id) == {}

    kept = new_graph(p, spec={"blob": digest_of(b"big")})
    await stage_blob(ns, p, kept.id, b"big")
    await begin(part, step("a"), new=kept)
    assert part.ttl_of(part.keys.blob(p, kept.id, digest_of(b"big"))) == -1


async def test_it_refuses_who_does_not_know_the_controls(part, ns, p):
    part.raw.hset(part.keys.epoch(p), "controls", "7")
    with pytest.raises(StaleControls):
        await start_graph(ns, p, new_graph(p), [step("a")], definition=b"{}", result=b"", by="c-1")
    part.raw.hdel(part.keys.epoch(p), "controls")
    assert part.stream() == []


async def test_it_is_refused_while_the_archive_is_too_far_behind(part, ns, p):
    await set_behind(ns, p, "an hour behind")
    with pytest.raises(ArchiveBehind, match="an hour behind"):
        await start_graph(ns, p, new_graph(p), [step("a")], definition=b"{}", result=b"", by="c-1")
    await set_behind(ns, p, "")
    assert part.stream() == []


async def test_it_refuses_other_epochs(part, ns, p, refuses_other_epochs):
    new = new_graph(p)
    await refuses_other_epochs(lambda: start_graph(ns, p, new, [step("a")], definition=b"{}", result=b"", by="c-1"))
