"""What operators decide while everything runs: pauses, limits and strikes, at once and everywhere."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from weft import InvalidOption, NotFound, Weft
from weft.core.gates import Controls, Strike, needed
from weft.core.model import Limit, RunSpec
from weft.engine.gates import admit


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(app, start_worker, eventually):
    @app.task(queue="mail")
    async def send() -> str:
        return "sent"

    await start_worker(queues=["mail"])
    assert await (await send.enqueue()).result(10) == "sent"
    assert await app.controls.pause(queue="mail", reason="flood")
    run = await send.enqueue()
    await asyncio.sleep(0.1)

    why = await run.explain()
    assert why.reason == "queue_paused"
    assert why.text.startswith("queue mail is paused since ")
    assert why.text.endswith("(flood)")
    assert await run.status() == "queued"
    assert await app.controls.resume(queue="mail")
    assert await run.result(10) == "sent"
    assert not await app.controls.resume(queue="mail")


async def test_what_is_set_again_stays_since_when_it_was_set(app):
    @app.task
    async def send(to: str) -> None: ...

    async def entry() -> dict:
        (found,) = await app.controls.list()
        return {word: found.get(word) for word in ("at_ms", "reason", "value")}

    assert await app.controls.pause(queue="mail", reason="flood")
    first = await entry()
    await asyncio.sleep(0.01)
    assert not await app.controls.pause(queue="mail")  # the second operator in a hurry says no reason
    assert not await app.controls.pause(queue="mail", reason="flood")
    assert await entry() == first
    assert await app.controls.pause(queue="mail", reason="driver update")
    assert await entry() == {**first, "reason": "driver update"}
    await app.controls.resume(queue="mail")

    strike = await app.controls.strike("send", {"to": "ada"}, reason="bounces")
    first = await entry()
    await asyncio.sleep(0.01)
    assert await app.controls.strike("send", {"to": "ada"}) == strike
    assert await entry() == first
    await app.controls.unstrike(strike)

    assert await app.controls.limit(queue="mail", concurrency=2)
    first = await entry()
    await asyncio.sleep(0.01)
    assert not await app.controls.limit(queue="mail", concurrency=2)
    assert await entry() == first
    assert await app.controls.limit(queue="mail", concurrency=3)
    assert (await entry())["at_ms"] > first["at_ms"]
    await app.controls.unlimit(queue="mail")


async def test_what_is_decided_about_a_renamed_task_holds_for_its_older_names_too(
    app, start_worker, server, namespace, eventually
):
    # Given producers that still run the code with the old name.
    before = Weft("before", redis_url=server.url, namespace=namespace)

    @before.task(name="old", concurrency=5)
    async def old(n: int) -> None: ...

    @app.task(name="new", aliases=["old"], concurrency=5)
    async def new(n: int) -> int:
        return n

    await start_worker()

    # When the task is paused, by either name, then neither its old nor its new calls run.
    for said, other in (("new", "old"), ("old", "new")):
        assert await app.controls.pause(task=said) and not await app.controls.pause(task=other)
        runs = [app.runs.get((await task.enqueue(1)).id) for task in (old, new)]
        await asyncio.sleep(0.2)
        assert [(await run.explain()).reason for run in runs] == ["task_paused"] * 2
        assert await app.controls.resume(task=other) and not await app.controls.resume(task=said)
        assert [await run.result(10) for run in runs] == [1, 1]

    # The same is true of strikes,
    strike = await app.controls.strike("old", {"n": 2})
    assert await app.controls.strike("new", {"n": 2}) == strike
    runs = [app.runs.get((await task.enqueue(2)).id) for task in (old, new)]
    await asyncio.sleep(0.2)
    assert [(await run.explain()).reason for run in runs] == ["struck"] * 2
    await app.controls.unstrike(strike)
    assert [await run.result(10) for run in runs] == [2, 2]

    # and of limits, by each name's own count.
    assert await app.controls.limit(task="new", concurrency=1)
    assert [entry["what"] for entry in await app.controls.list()] == ["task new", "task old"]
    assert await app.controls.unlimit(task="old") and await app.controls.list() == []
    await before.close()


async def test_a_paused_task_is_held_back_while_others_of_its_queue_go_on(app, start_worker, eventually):
    @app.task
    async def one() -> int:
        return 1

    @app.task
    async def two() -> int:
        return 2

    await start_worker()
    await app.controls.pause(task="one")
    run, other = await one.enqueue(), await two.enqueue()

    assert await other.result(10) == 2
    await asyncio.sleep(0.1)
    assert (await run.explain()).reason == "task_paused"
    await app.controls.resume(task="one")
    assert await run.result(10) == 1


@pytest.mark.parametrize("how", ["pause", "strike"])
async def test_what_two_workers_held_back_goes_on_in_order_of_age(
    app, ns, raw, one_home, start_worker, eventually, how
):
    @app.task
    async def one(n: int) -> int:
        return n

    # Given steps queued before a task is stopped, some more that came after it, and two workers that claim a few at a time.
    runs = await one.enqueue_many([(n,) for n in range(40)])
    strike = "" if how == "pause" else await app.controls.strike("one")
    if not strike:
        await app.controls.pause(task="one")
    runs += await one.enqueue_many([(n,) for n in range(40, 45)])
    workers = [await start_worker(concurrency=3) for _ in range(2)]
    await eventually(lambda: sum(raw.zcard(key) for key in raw.scan_iter(ns.keys.line(0, "*"))) == len(runs))
    for worker in workers:
        await worker.stop()

    # When it may go on.
    await (app.controls.unstrike(strike) if strike else app.controls.resume(task="one"))
    await admit(ns, 0)

    # Then all are queued in the order in which they were asked for.
    queued = [fields[b"r"].decode() for _, fields in raw.xrange(ns.keys.tasks(0, "default", 5))]
    assert queued == [run.id for run in runs]
    await start_worker()
    for run in runs:
        await run.result(10)


async def test_what_was_queued_before_a_pause_of_its_task_is_held_back_too(app, start_worker, eventually):
    @app.task
    async def one(n: int) -> int:
        return n

    runs = await one.enqueue_many([(n,) for n in range(20)])
    await app.controls.pause(task="one")
    await start_worker()
    await asyncio.sleep(0.2)

    assert {await run.status() for run in runs} == {"queued"}
    assert [event.type for event in await runs[0].history()] == ["queued", "held"]
    await app.controls.resume(task="one")
    assert await asyncio.gather(*(run.result(10) for run in runs)) == list(range(20))
    assert (await runs[0].info()).attempt == 1


async def test_a_queue_is_limited_while_it_runs(app, one_home, start_worker, eventually):
    running = most = 0
    gate = asyncio.Event()

    @app.task(queue="mail")
    async def send() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    runs = await send.enqueue_many([()] * 5)
    await app.controls.limit(queue="mail", concurrency=2)
    await start_worker(queues=["mail"], concurrency=10)
    await eventually(lambda: running == 2)
    runs += await send.enqueue_many([()] * 5)
    await asyncio.sleep(0.1)
    assert running == 2
    await app.controls.limit(queue="mail", concurrency=4)
    await eventually(lambda: running == 4)
    await asyncio.sleep(0.1)
    assert most == 4
    await app.controls.unlimit(queue="mail")
    await eventually(lambda: running == 10)
    gate.set()
    await asyncio.gather(*(run.result(10) for run in runs))


async def test_a_limit_of_a_definition_is_overruled_and_comes_back(app, start_worker, eventually):
    running = 0
    gate = asyncio.Event()

    @app.task(concurrency_key=lambda who: who, concurrency_per_key=3)
    async def work(who: str) -> None:
        nonlocal running
        running += 1
        await gate.wait()
        running -= 1

    await app.open()
    await app.controls.limit(task="work", per_key=1)
    await start_worker(concurrency=10)
    runs = await work.enqueue_many([("ann",)] * 6)
    await eventually(lambda: running == 1)
    await asyncio.sleep(0.1)
    assert running == 1
    await app.controls.unlimit(task="work")
    await eventually(lambda: running == 3)
    gate.set()
    await asyncio.gather(*(run.result(10) for run in runs))


async def test_a_strike_keeps_one_argument_value_from_running_until_it_is_lifted(app, start_worker):
    @app.task
    async def send(to: str, n: int) -> str:
        return to

    await start_worker()
    strike = await app.controls.strike("send", {"to": "bob"}, reason="bounces")
    bob, ann = await send.enqueue("bob", 1), await send.enqueue("ann", 1)

    assert await ann.result(10) == "ann"
    await asyncio.sleep(0.1)
    why = await bob.explain()
    assert why.reason == "struck"
    assert why.text.startswith("task send with to=bob is struck since ")
    assert [entry["kind"] for entry in await app.controls.list()] == ["strike"]
    await app.controls.unstrike(strike)
    assert await bob.result(10) == "bob"
    with pytest.raises(NotFound, match="no strike"):
        await app.controls.unstrike(strike)


async def test_a_strike_stops_a_whole_task(app, start_worker):
    @app.task
    async def send(n: int) -> int:
        return n

    await start_worker()
    strike = await app.controls.strike("send")
    run = await send.enqueue(7)
    await asyncio.sleep(0.1)
    assert (await run.explain()).text.startswith("task send is struck")
    await app.controls.unstrike(strike)
    assert await run.result(10) == 7


@pytest.mark.parametrize(
    "call",
    [
        lambda controls: controls.pause(),
        lambda controls: controls.pause(queue="a", task="b"),
        lambda controls: controls.pause(queue="a b"),
        lambda controls: controls.limit(queue="a"),
        lambda controls: controls.limit(queue="a", concurrency=0),
        lambda controls: controls.limit(queue="a", per_key=1),
        lambda controls: controls.limit(queue="a", rate="fast"),
        lambda controls: controls.strike("a b"),
    ],
)
async def test_what_cannot_be_meant_is_refused_and_nothing_set(app, call):
    with pytest.raises(InvalidOption):
        await call(app.controls)
    assert await app.controls.list() == []


async def test_without_a_worker_explain_says_so(app, start_worker):
    @app.task(queue="gpu")
    async def train() -> None: ...

    run = await train.enqueue()
    assert (await run.explain()).text == "no live worker serves queue gpu"
    await run.cancel()
    assert (await run.explain()).reason == "finished"


async def test_explain_tells_of_delays(app, start_worker):
    @app.task
    async def later() -> None: ...

    run = await later.options(delay="1h").enqueue()
    why = await run.explain()
    assert why.reason == "delayed"
    assert why.text.startswith("delayed until ")
    await run.cancel()


async def test_decisions_that_would_do_nothing_are_refused(app):
    @app.task
    async def send(to: str, n: float = 1.0) -> None: ...

    with pytest.raises(NotFound, match="no task 'sent'"):
        await app.controls.strike("sent")
    with pytest.raises(NotFound, match="no task 'sent'"):
        await app.controls.pause(task="sent")
    with pytest.raises(InvalidOption, match="no parameter 'too'"):
        await app.controls.strike("send", {"too": "bob"})
    with pytest.raises(InvalidOption, match="no concurrency_key"):
        await app.controls.limit(task="send", per_key=2)
    assert await app.controls.list() == []


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, "true"),
        (False, "False"),
        (None, "null"),
        (1.0, "1"),
        (5, "5.0"),
        ("5", "5"),
        (["a", 1], '["a", 1]'),
        ({"a": None}, '{"a":null}'),
        (b"abc", "abc"),
        (b"abc", "YWJj"),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01 01:00:00+01:00"),
    ],
)
def test_a_strike_knows_values_as_people_write_them(value, written):
    assert Strike("x", "send", {"a": written}).hits({"a": value})
    assert not Strike("x", "send", {"a": "other"}).hits({"a": value})


async def test_a_limit_of_each_key_holds_also_where_keys_only_took_turns(app, start_worker, eventually):
    running: list[str] = []
    most = {"ann": 0, "bob": 0}
    go = asyncio.Event()

    @app.task(concurrency=4, concurrency_key=lambda who: who)
    async def bill(who: str) -> None:
        running.append(who)
        most[who] = max(most[who], running.count(who))
        await go.wait()
        running.remove(who)

    assert await app.controls.limit(task="bill", per_key=1)
    await start_worker()
    runs = await bill.enqueue_many([("ann",)] * 4 + [("bob",)] * 2)
    await eventually(lambda: sorted(running) == ["ann", "bob"])
    why = await runs[1].explain()
    assert (why.reason, why.holders) == ("concurrency", [runs[0].id])
    assert why.text.startswith("concurrency key ann of task bill is full (1 of 1)")

    assert await app.controls.limit(task="bill", per_key=2)
    await eventually(lambda: sorted(running) == ["ann", "ann", "bob", "bob"])
    assert await app.controls.unlimit(task="bill")
    go.set()
    for run in runs:
        await run.result(10)
    assert most == {"ann": 2, "bob": 2}


def test_limits_are_tried_in_one_order_whoever_set_them():
    names = {"queue|mail": 9, "queuerate|mail": "9/s", "key|send": 9, "task|send": 9, "rate|send": "9/s"}
    controls = Controls("1", {f"limit:{name}": {"value": value} for name, value in names.items()})
    defined = RunSpec("send", queue="mail", limits=[Limit("key|send|ann", 1)], fair="ann")
    bare = RunSpec("send", queue="mail", fair="ann")
    order = ["queue|mail", "queuerate|mail", "key|send|ann", "task|send", "rate|send"]
    assert [limit.gate for limit in needed(defined, controls)] == order
    assert [limit.gate for limit in needed(bare, controls)] == order


@dataclass
class Order:
    number: int
    due: datetime


MOMENT = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("name", "value"),
    [("when", MOMENT), ("data", b"x"), ("order", Order(1, MOMENT)), ("total", Decimal("1.50")), ("names", ["a", "b"])],
)
async def test_a_strike_hits_the_calls_with_the_value_it_was_given(app, start_worker, name, value):
    @app.task
    async def book(
        when: datetime | None = None,
        data: bytes = b"",
        order: Order | None = None,
        total: Decimal = Decimal(0),
        names: list[str] | None = None,
    ) -> None: ...

    strike = await app.controls.strike("book", {name: value})
    await start_worker()
    run = await book.enqueue(**{name: value})
    other = await book.enqueue(when=MOMENT + timedelta(1), data=b"y")
    await other.result(timeout=10)
    assert (await run.explain()).reason == "struck"
    await app.controls.unstrike(strike)
    await run.result(timeout=10)


@pytest.mark.parametrize(
    ("name", "value"),
    [("when", "2026-01-01T00:00:00Z"), ("data", "eA=="), ("total", "1.50"), ("more", [1]), ("to", "nan"), ("to", 5)],
)
async def test_a_strike_takes_values_as_the_command_line_gives_them(app, name, value):
    @app.task
    async def book(when: datetime, data: bytes, total: Decimal, to: str = "", **others: object) -> None: ...

    assert await app.controls.strike("book", {name: value})


async def test_a_strike_that_no_call_can_meet_is_refused(app):
    @app.task
    async def send(to: str, n: float = 1.0) -> None: ...

    with pytest.raises(InvalidOption, match="not a finite number"):
        await app.controls.strike("send", {"n": float("nan")})
    with pytest.raises(InvalidOption, match="no call can have"):
        await app.controls.strike("send", {"to": object()})
    with pytest.raises(InvalidOption, match=r"n='two' does not fit send\(to: str, n: float = 1.0\)"):
        await app.controls.strike("send", {"n": "two"})
    with pytest.raises(InvalidOption, match="n=None does not fit"):
        await app.controls.strike("send", {"n": None})
    with pytest.raises(InvalidOption, match="arguments by name"):
        await app.controls.strike("send", "to=bob")  # type: ignore[arg-type]
    assert await app.controls.list() == []


async def test_the_age_of_what_waits_at_a_gate_is_told_apart_from_what_a_worker_could_take(app, eventually):
    @app.task(concurrency=1, queue="narrow")
    async def narrow() -> None: ...

    async def look():
        (info,) = [q for q in await app.queues.list(sample=0) if q.name == "narrow"]
        return info

    async def told(age: str, *, zero: str) -> bool:
        info = await look()
        return getattr(info, age) > 0 == getattr(info, zero)

    runs = await narrow.enqueue_many([()] * 3)
    info = await look()
    assert (info.ready, info.depth, info.held) == (1, 3, 2)
    await runs[0].cancel()
    info = await look()
    assert (info.ready, info.depth, info.held) == (0, 2, 2)
    await eventually(lambda: told("oldest_held_age", zero="oldest_age"))
    metrics = await app.queues.metrics()
    assert 'weft_queue_oldest_age_seconds{queue="narrow"} 0\n' in metrics
    assert 'weft_queue_oldest_held_age_seconds{queue="narrow"} 0\n' not in metrics
    for run in runs[1:]:
        await run.cancel()


async def test_what_stands_in_a_paused_queue_is_held(app, eventually):
    @app.task(queue="mail")
    async def send() -> None: ...

    async def look():
        (info,) = [q for q in await app.queues.list(sample=0) if q.name == "mail"]
        return info

    async def is_old() -> bool:
        return (await look()).oldest_age > 0

    run = await send.enqueue()
    await eventually(is_old)
    await app.controls.pause(queue="mail")
    info = await look()
    assert (info.ready, info.held, info.depth, info.oldest_age) == (0, 1, 1, 0) and info.oldest_held_age > 0
    await app.controls.resume(queue="mail")
    info = await look()
    assert (info.ready, info.held, info.oldest_held_age) == (1, 0, 0) and info.oldest_age > 0
    await run.cancel()


async def test_deciding_the_same_again_changes_nothing(app):
    assert await app.controls.pause(queue="mail", reason="flood")
    (first,) = await app.controls.list()
    assert not await app.controls.pause(queue="mail", reason="flood")
    assert await app.controls.list() == [first]
    assert await app.controls.pause(queue="mail", reason="still")
    await app.controls.resume(queue="mail")


async def test_arguments_that_cannot_be_read_keep_nobody_else_waiting(app, raw, namespace, start_worker):
    @app.task
    async def send(to: str) -> int:
        return len(to)

    await app.controls.strike("send", {"to": "bob"})
    lost, sound = await send.enqueue("x" * 10_000), await send.enqueue("ann")
    for key in raw.scan_iter(f"{namespace}:*blob:{lost.id}:*"):
        raw.delete(key)
    await start_worker()
    assert await sound.result(10) == 3
    with pytest.raises(Exception, match=r"gone|no longer|expired"):
        await lost.result(10)
