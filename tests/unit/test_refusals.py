"""What an app, a task, a worker or a wait is given wrongly is refused where it is given, by an error of ours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from weft import Context, Depends, Weft
from weft.clock import parse_wait
from weft.errors import DefinitionError, InvalidOption, NotExecuted, NotFound, SettingsError, UserError


def function(a: int) -> int:
    return a


@pytest.mark.parametrize("value", [None, 5, True, {}, "old", object])
def test_aliases_are_a_list(value: Any) -> None:
    with pytest.raises(InvalidOption, match="aliases takes a list of names"):
        Weft("x").task(aliases=value)(function)


@pytest.mark.parametrize(
    "options", [{"unique": []}, {"unique": 1}, {"rate_cost": True}, {"rate_cost": True, "rate_limit": "1/s"}]
)
def test_limits_of_another_type_are_refused(options: Any) -> None:
    with pytest.raises(UserError):
        Weft("x").task(**options)(function)


def test_a_class_is_no_task() -> None:
    with pytest.raises(DefinitionError, match="a task is made of a function, not of the class"):

        @Weft("x").task  # type: ignore[arg-type]
        class Thing:
            pass


def test_what_is_a_task_or_a_workflow_already_is_said_to_be_one() -> None:
    app = Weft("x")
    task = app.task(function)

    @app.workflow
    async def order(ctx: Context) -> None: ...

    with pytest.raises(DefinitionError, match="function is a task already"):
        app.task(name="other")(task)
    with pytest.raises(DefinitionError, match="order is a workflow: a schedule starts a task"):
        app.cron("* * * * *")(order)
    with pytest.raises(DefinitionError, match=r"order is a workflow: it needs no @app\.task"):
        app.task(order)
    assert list(app.tasks) == ["function"] and not app.crons


def test_what_has_no_name_of_its_own_asks_for_one() -> None:
    app = Weft("x")
    bound = functools.partial(function, 1)
    with pytest.raises(DefinitionError, match="give it one, name="):
        app.task(bound)
    assert app.task(name="bound")(bound).name == "bound"


def test_an_unknown_option_is_told_all_that_there_are() -> None:
    with pytest.raises(InvalidOption, match=r"known are aliases, backoff, batch, batch_wait, concurrency"):
        Weft("x").task(acks_late=True)(function)  # type: ignore[call-overload]


@pytest.mark.parametrize("tag", ["schedule", "tick"])
def test_tags_that_every_tick_sets_are_refused(tag: str) -> None:
    app = Weft("x")
    with pytest.raises(InvalidOption, match=f"every tick sets the tag '{tag}' itself"):
        app.cron("* * * * *", name="nightly", tags={tag: "mine"})(lambda: None)


@pytest.mark.parametrize("when", ["on_startup", "on_shutdown", "before_task", "after_task", "on_error"])
def test_a_hook_that_asks_for_a_resource_is_refused(when: str) -> None:
    def hook(current: Any = None, result: Any = None, db: int = Depends(lambda: 5)) -> None: ...

    with pytest.raises(DefinitionError, match="db would get no resource"):
        getattr(Weft("x"), when)(hook)


@pytest.mark.parametrize("hook", [5, None, lambda who: who])
@pytest.mark.parametrize("when", ["on_startup", "on_shutdown"])
def test_a_hook_that_cannot_be_called_is_refused(when: str, hook: Any) -> None:
    app = Weft("x")
    with pytest.raises(DefinitionError, match=f"@app.{when} takes a function of"):
        getattr(app, when)(hook)
    assert not app.startup and not app.shutdown


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": "5"},
        {"concurrency": True},
        {"concurrency": 1.5},
        {"queues": 5},
        {"queues": "default"},
        {"grace": -1},
        {"grace": None},
        {"grace": float("nan")},
        {"archive": "no"},
        {"archive": 0},
    ],
)
def test_a_worker_refuses_what_it_cannot_do(options: Any) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        Weft("x").worker(**options)


async def test_a_worker_takes_any_length_of_time_as_grace_and_each_queue_once() -> None:
    worker = Weft("x").worker(grace="2m", queues=["a", "b", "a"])
    assert (worker.grace, worker.queues) == (120.0, ["a", "b"])
    assert Weft("x").worker(grace=timedelta(seconds=1)).grace == 1.0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"namespace": 5}, "namespace 5 cannot be used"),
        ({"redis_url": 5}, "a store URL is a text, not a int"),
        ({"redis_url": "redis://[::1"}, "an IPv6 host in brackets"),
        ({"redis_url": "redis://:geh/eim@host:6379"}, "%2F"),
        ({"redis_url": "redis://:geh#eim@host:6379"}, "%23"),
        ({"redis_url": "unix://run/redis.sock"}, "three slashes"),
        ({"redis_url": "rediss://host?ssl_cert_reqs=maybe"}, "ssl_cert_reqs is one of none, optional, required"),
        ({"redis_url": "rediss://host?ssl_check_hostname=maybe"}, "ssl_check_hostname is one of"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_at_once(options: Any, why: str) -> None:
    with pytest.raises((SettingsError, InvalidOption), match=why) as refused:
        Weft("x", **options)
    assert "geh" not in str(refused.value), "not a part of the password"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        (5, 5.0),
        (0.25, 0.25),
        ("250ms", 0.25),
        ("5s", 5.0),
        (timedelta(minutes=1), 60.0),
        (-3, 0.0),
        (0, 0.0),
    ],
)
def test_a_wait_is_any_length_of_time(given: Any, seconds: float | None) -> None:
    assert parse_wait(given) == seconds


@pytest.mark.parametrize("given", ["soon", float("nan"), True, [], "-5s"])
def test_a_wait_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(InvalidOption, match="timeout"):
        parse_wait(given)


async def test_sentinels_that_do_not_answer_are_told_in_one_line() -> None:
    app = Weft("x", redis_url="redis+sentinel://joe:geheim@127.0.0.1:1/main")
    with pytest.raises(NotExecuted) as refused:
        await app.runs.list()
    await app.close()
    assert str(refused.value) == (
        "the store cannot be reached: no sentinel of 127.0.0.1:1 names a master for 'main' that answers"
    )


async def drain(events: Any) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize(
    "ask",
    [
        lambda app: app.runs.list(limit="x"),
        lambda app: app.runs.list(limit=True),
        lambda app: app.runs.get("r0-01J9ZC5T0FQ8M2X7K4VNBW").result(timeout="soon"),
        lambda app: drain(app.runs.get("r0-01J9ZC5T0FQ8M2X7K4VNBW").events(after=-1)),
        lambda app: drain(app.runs.get("r0-01J9ZC5T0FQ8M2X7K4VNBW").events(after="x")),
    ],
)
async def test_a_question_that_makes_no_sense_reaches_no_store(ask: Callable[[Weft], Any]) -> None:
    with pytest.raises(InvalidOption):
        await ask(Weft("x", redis_url="redis://127.0.0.1:1"))


@pytest.mark.parametrize(
    "setting",
    ["WEFT_RETENTION", "WEFT_MAX_LAG", "WEFT_MAX_MEMORY", "WEFT_KEEP_COLD", "WEFT_EGRESS_PORTS", "WEFT_STATUS_FEED"],
)
def test_a_worker_refuses_settings_before_it_needs_them(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Weft("x")
    app.worker(archive=True)
    monkeypatch.setenv(setting, "soon")
    with pytest.raises(SettingsError, match=f"{setting}='soon' cannot be used"):
        app.worker(archive=True)


def test_a_name_that_an_app_does_not_have_is_told_with_those_it_has() -> None:
    app = Weft("shop")
    app.task(name="mail")(function)
    with pytest.raises(NotFound, match=r"app .shop. has no task .mial.: did you mean mail\?; it has: mail$"):
        app.tasks["mial"]
    with pytest.raises(NotFound, match=r"app .shop. has no graph .order.; it has: none$"):
        app.graphs["order"]
    assert app.graphs.get("order") is None
    assert "order" not in app.workflows


def test_several_exception_classes_go_in_a_tuple() -> None:
    with pytest.raises(InvalidOption, match=r"retry_on takes exception classes, .*: several go in a tuple"):
        Weft("x").task(retry_on=[ValueError, KeyError])(function)  # type: ignore[call-overload]
