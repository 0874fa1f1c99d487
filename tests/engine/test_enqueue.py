"""Enqueueing: what becomes a run, and what is refused before anything is written."""

import pytest

from weft import Conflict, DefinitionError, DurabilityUnmet, InvalidArguments, InvalidOption, PayloadRefused, Run, Weft
from weft.errors import UserError
from weft.sdk.options import SharedOptions, TaskOptions


def keys_of(raw, namespace: str) -> list[bytes]:
    return [key for key in raw.scan_iter(f"{namespace}:*") if b":run:" in key or b":log" in key]


def nothing() -> None:
    """Does nothing, under a name that a task may have."""


# --- the happy path -------------------------------------------------------------------------------


async def test_an_enqueued_task_gives_its_result(add, start_worker):
    await start_worker()

    run = await add.enqueue(2, 3)

    assert isinstance(run, Run)
    assert not run.deduplicated
    assert await run.result(timeout=10) == 5
    assert await run.status() == "completed"


async def test_arguments_may_be_given_by_name_and_left_to_their_defaults(app, start_worker):
    @app.task
    async def greet(name: str, *, greeting: str = "hello", times: int = 1) -> str:
        return ", ".join([f"{greeting} {name}"] * times)

    await start_worker()

    assert await (await greet.enqueue("ann")).result(10) == "hello ann"
    assert await (await greet.enqueue(name="bob", times=2)).result(10) == "hello bob, hello bob"


async def test_calling_a_task_just_calls_it(app, raw, namespace):
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    def triple(n: int) -> int:
        return 3 * n

    assert await double(2) == 4
    assert triple(2) == 6
    assert triple.__name__ == "triple"
    assert keys_of(raw, namespace) == []


async def test_importing_an_app_and_declaring_tasks_does_no_io():
    app = Weft("nowhere", redis_url="redis://127.0.0.1:1")

    @app.task
    async def job() -> None: ...

    assert app.find_task("job") is job
    assert app.embedded is None


async def test_a_run_is_its_id(add):
    run = await add.enqueue(1, 2)

    assert add.run(run.id) == run
    assert len({run, add.run(run.id)}) == 1
    assert repr(run) == f"Run({run.id!r})"
    await run.cancel()


# --- many at once ---------------------------------------------------------------------------------


async def test_enqueue_many_keeps_the_order_over_several_round_trips(add, start_worker):
    await start_worker()

    runs = await add.enqueue_many([(n, n) for n in range(600)])

    assert len({run.id for run in runs}) == 600
    assert [await run.result(20) for run in runs] == [2 * n for n in range(600)]


async def test_enqueue_many_takes_tuples_lists_and_mappings_from_any_iterable(add, start_worker):
    await start_worker()

    runs = await add.enqueue_many(iter([(1, 2), [3, 4], {"a": 5, "b": 6}]))

    assert [await run.result(10) for run in runs] == [3, 7, 11]


async def test_enqueue_many_of_nothing_is_nothing(add):
    assert await add.enqueue_many([]) == []


@pytest.mark.parametrize("bad", [(1, "x"), (1,), {"a": 1, "c": 2}, 5, "ab", {1: 2}])
async def test_one_bad_item_among_many_starts_none(add, raw, namespace, bad):
    await add.app.open()

    with pytest.raises(InvalidArguments, match=r"item 1 of enqueue_many.*add\(a: int, b: int\) -> int"):
        await add.enqueue_many([(1, 2), bad, (3, 4)])

    assert keys_of(raw, namespace) == []


async def test_the_item_whose_key_cannot_be_made_is_named(app, raw, namespace):
    def key(n: int) -> int:
        return 10 // n

    @app.task(concurrency_key=key, concurrency_per_key=1)
    async def limited(n: int) -> None: ...

    @app.task(throttle="1m", unique_key=key)
    async def throttled(n: int) -> None: ...

    await app.open()
    for task in (limited, throttled):
        with pytest.raises(UserError, match=r"^item 2 of enqueue_many: .*ZeroDivisionError"):
            await task.enqueue_many([(1,), (2,), (0,)])
    assert keys_of(raw, namespace) == []


async def test_enqueue_many_takes_options_but_no_idempotency_key(add, start_worker):
    runs = await add.options(tags={"batch": "1"}, priority=9).enqueue_many([(1, 2), (3, 4)])
    assert [(await run.info()).tags for run in runs] == [{"batch": "1"}] * 2

    with pytest.raises(InvalidOption, match="names one run"):
        await add.options(idempotency_key="k").enqueue_many([(1, 2)])

    await start_worker()
    assert [await run.result(10) for run in runs] == [3, 7]


# --- refused at enqueue, not in a worker ----------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((1,), {}, "missing a required argument: 'b'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"c": 2}, "unexpected keyword argument 'c'|missing a required argument"),
        ((1, 2), {"a": 3}, "multiple values for argument 'a'"),
        ((1, "2"), {}, "argument b of .* does not fit `int`"),
        ((1, 2.5), {}, "does not fit `int`"),
        ((1, True), {}, "does not fit `int`"),
        ((1, None), {}, "does not fit `int`"),
    ],
)
async def test_wrong_arguments_are_refused_with_the_signature(add, raw, namespace, args, kwargs, why):
    with pytest.raises(InvalidArguments, match=why) as caught:
        await add.enqueue(*args, **kwargs)

    assert "add(a: int, b: int) -> int" in str(caught.value)
    assert keys_of(raw, namespace) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {"a": {1, 2}}, object(), 2**70])
async def test_values_that_cannot_be_stored_are_refused(app, raw, namespace, value):
    @app.task
    async def take(anything) -> None: ...

    with pytest.raises(PayloadRefused):
        await take.enqueue(value)

    assert keys_of(raw, namespace) == []


async def test_a_payload_over_the_limit_is_refused_with_both_numbers(app, raw, namespace):
    @app.task
    async def take(data: bytes) -> None: ...

    with pytest.raises(PayloadRefused, match=r"16,777,2\d\d.*limit"):
        await take.enqueue(b"x" * (16 * 1024 * 1024 + 1))

    assert keys_of(raw, namespace) == []


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option", [*sorted({*TaskOptions.__annotations__} - {*SharedOptions.__annotations__}), "batch"]
)
def test_an_option_of_a_definition_is_refused_for_one_call(add, option):
    with pytest.raises(InvalidOption, match=f"{option} belongs to the definition"):
        add.options(**{option: 1})


async def test_durability_is_never_downgraded_silently(add, app, monkeypatch):
    monkeypatch.setattr("weft.engine.committed.PATIENCE", 0.01)
    with pytest.raises(DurabilityUnmet, match="durability='committed' needs somebody who archives"):
        await add.options(durability="committed").enqueue(1, 2)
    assert await app.runs.list() == []


async def test_the_durability_that_is_built_is_accepted_and_told(add):
    run = await add.options(durability="redis").enqueue(1, 2)

    assert (await run.info()).durability == "redis"
    await run.cancel()


@pytest.mark.parametrize(
    ("wrong", "right"), [("retires", "retries"), ("prioriti", "priority"), ("time_out", "timeout"), ("tag", "tags")]
)
def test_a_misspelt_option_is_refused_with_what_was_meant(app, add, wrong, right):
    with pytest.raises(InvalidOption, match=f"did you mean {right}"):
        add.options(**{wrong: 1})
    with pytest.raises(InvalidOption, match=f"did you mean {right}"):
        app.task(**{wrong: 1})(nothing)


@pytest.mark.parametrize(
    ("word", "ours"), [("countdown", "delay"), ("expires", "deadline"), ("max_retries", "retries")]
)
def test_what_others_call_an_option_is_told(add, word, ours):
    with pytest.raises(InvalidOption, match=f"no option '{word}': did you mean {ours}"):
        add.options(**{word: 1})


def test_every_option_that_is_told_for_others_words_exists(app):
    from weft.sdk.options import _ELSEWHERE, CallOptions, TaskOptions

    known = CallOptions.__annotations__.keys() | TaskOptions.__annotations__.keys()
    assert set(_ELSEWHERE.values()) <= known and not _ELSEWHERE.keys() & known


def test_an_option_that_resembles_none_is_refused_with_all_there_are(add):
    with pytest.raises(InvalidOption, match=r"known are .*priority"):
        add.options(zzz=1)


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 0},
        {"priority": 11},
        {"priority": True},
        {"priority": "5"},
        {"retries": -1},
        {"retries": 1.5},
        {"backoff": "random"},
        {"jitter": "yes"},
        {"retry_delay": -1},
        {"retry_delay": "soon"},
        {"max_delay": float("inf")},
        {"retry_delay": "1h"},
        {"retry_delay": "2s", "max_delay": "1s"},
        {"timeout": 0},
        {"timeout": "0s"},
        {"deadline": -5},
        {"deadline": "9999y"},
        {"keep_result": 0},
        {"keep_result": None},
        {"queue": ""},
        {"queue": "a b"},
        {"queue": "a:b"},
        {"queue": "{a}"},
        {"queue": "x" * 500},
        {"queue": "a\n"},
        {"tags": "team"},
        {"tags": {"a b": "c"}},
        {"tags": {"a": object()}},
        {"tags": {"a": "x" * 10_000}},
    ],
)
def test_senseless_values_are_refused_at_definition_and_at_the_call(app, add, options):
    with pytest.raises(InvalidOption):
        app.task(**options)(nothing)
    with pytest.raises(InvalidOption):
        add.options(**options)


def test_a_first_delay_beyond_the_longest_one_is_refused_and_says_beyond_which(app, add):
    with pytest.raises(InvalidOption, match="retry_delay 1h is longer than the default max_delay 5m"):
        app.task(retry_delay="1h")(nothing)
    with pytest.raises(InvalidOption, match="retry_delay 2s is longer than max_delay 1s"):
        app.task(retry_delay="2s", max_delay="1s")(nothing)
    with pytest.raises(InvalidOption, match="retry_delay 300001ms is longer than the default max_delay 300000ms"):
        add.options(retry_delay=300.001)

    @app.task(retry_delay="10s")
    async def slow() -> None: ...

    with pytest.raises(InvalidOption, match="retry_delay 10s is longer than max_delay 5s"):
        slow.options(max_delay="5s")

    # The delays that nobody gave are no contradiction: they are cut.
    @app.task(max_delay="100ms")
    async def brisk() -> None: ...

    brisk.options(retries=2)
    brisk.options(max_delay="50ms")
    slow.options(retry_delay="1h", max_delay="1h").options(retries=1)


@pytest.mark.parametrize("options", [{"delay": -1}, {"delay": "10000y"}, {"delay": float("nan")}, {"delay": True}])
def test_senseless_delays_are_refused(add, options):
    with pytest.raises(InvalidOption):
        add.options(**options)


@pytest.mark.parametrize("key", ["", 5, "a\x00b", "x" * 10_000, "\ud800"])
def test_senseless_idempotency_keys_are_refused(add, key):
    with pytest.raises(InvalidOption):
        add.options(idempotency_key=key)


@pytest.mark.parametrize("option", ["delay", "idempotency_key"])
def test_what_belongs_to_one_call_is_refused_at_definition(app, option):
    with pytest.raises(DefinitionError, match=rf"\.options\({option}="):
        app.task(**{option: "1"})(nothing)


@pytest.mark.parametrize("option", ["name", "aliases", "pool", "retry_on", "fatal_on"])
def test_what_belongs_to_the_definition_is_refused_at_the_call(add, option):
    with pytest.raises(InvalidOption, match=f"{option} belongs to the definition"):
        add.options(**{option: "x"})


async def test_options_of_a_call_stand_on_those_of_the_task_and_change_neither(app, start_worker):
    @app.task(queue="slow", priority=2, tags={"team": "a", "kind": "x"}, retries=3)
    async def job() -> None: ...

    run = await job.options(priority=9).options(tags={"kind": "y"}).enqueue()
    plain = await job.enqueue()

    info = await run.info()
    assert (info.queue, info.priority, info.tags) == ("slow", 9, {"team": "a", "kind": "y"})
    assert (await plain.info()).priority == 2
    await start_worker(queues=["slow"])
    await run.result(10)
    await plain.result(10)


# --- names ----------------------------------------------------------------------------------------


def test_a_second_task_of_the_same_name_is_refused_with_where_the_first_is(app, add):
    with pytest.raises(DefinitionError, match=r"already has a task 'add' \(.*add\)"):

        @app.task(name="add")
        async def other() -> None: ...

    assert app.find_task("add") is add


def test_an_alias_may_not_shadow_a_task(app, add):
    with pytest.raises(DefinitionError, match="already has a task 'add'"):

        @app.task(aliases=["add"])
        async def other() -> None: ...

    assert app.find_task("other") is None


def test_a_text_is_no_list_of_aliases(app):
    with pytest.raises(InvalidOption, match="aliases"):
        app.task(aliases="old")(nothing)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\n", "x" * 300, "ä"])
def test_a_name_that_could_not_stand_in_a_key_is_refused(app, name):
    def nameless() -> None: ...

    nameless.__name__ = "" if not name else "fine"
    with pytest.raises(InvalidOption):
        app.task(name=name)(nameless)


async def test_runs_of_a_renamed_task_are_served_by_its_alias(app, start_worker, server, namespace):
    # Given a run that was queued under the old name.
    before = Weft("before", redis_url=server.url, namespace=namespace)

    @before.task(name="send_mail")
    async def send_mail(to: str) -> str:
        raise AssertionError("the old code is gone")

    run = await send_mail.enqueue("ann")
    await before.close()

    # When only the renamed task exists.
    @app.task(name="mail.send", aliases=["send_mail"])
    async def send(to: str) -> str:
        return f"to {to}"

    await start_worker()

    # Then it serves both names.
    assert await app.runs.get(run.id).result(10) == "to ann"
    assert await (await send.enqueue("bob")).result(10) == "to bob"


def test_generators_and_wrong_pools_are_no_tasks(app):
    with pytest.raises(DefinitionError, match="generator"):

        @app.task
        def numbers():
            yield 1

    with pytest.raises(DefinitionError, match="pool='process' takes a plain `def`"):

        @app.task(pool="process")
        async def cpu() -> None: ...

    with pytest.raises(DefinitionError, match="no pool 'fibre'"):
        app.task(pool="fibre")(nothing)


def test_retry_on_takes_exception_classes_only(app):
    with pytest.raises(InvalidOption, match="exception classes"):
        app.task(name="x", retry_on=(ValueError, "TypeError"))(nothing)


def test_conflict_is_a_public_error():
    assert Conflict.code == "conflict"
