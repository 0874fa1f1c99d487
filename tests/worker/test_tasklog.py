"""What steps log stays with their run, bounded, and survives their worker."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from weft import NotFound, StepFailed, current
from weft.core.model import ErrorRecord
from weft.sdk.tasklog import MAX_BYTES, MAX_LINES, Lines, pack_line
from weft.store.audit import audit
from weft.store.lost import reclaim_steps
from weft.store.steps import report_steps


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_lines_are_kept_with_level_fields_and_attempt(app, start_worker):
    @app.task(retries=1, retry_delay="1ms")
    async def job() -> None:
        log = current().log
        log.info("try %s of %d", current().attempt, 2, to="a@b.c", n=3, ok=True, none=None, when=timedelta(seconds=1))
        log.debug("not kept, for nobody asked for it")
        if current().attempt == 1:
            log.warning("about to fail")
            raise LookupError("not yet")

    await start_worker()
    run = await job.enqueue()
    await run.result(10)
    lines = await run.logs()

    assert [(line.level, line.message, line.attempt) for line in lines] == [
        ("info", "try 1 of 2", 1),
        ("warning", "about to fail", 1),
        ("info", "try 2 of 2", 2),
    ]
    assert lines[0].fields == {"to": "a@b.c", "n": 3, "ok": True, "none": None, "when": "0:00:01"}
    assert abs(lines[0].at - datetime.now(UTC)) < timedelta(minutes=5)
    assert [line.dropped for line in lines] == [0, 0, 0]


async def test_a_field_may_have_any_name(app, start_worker):
    named = {
        "level": "gold",
        "msg": "hi",
        "self": 1,
        "extra": "v",
        "stacklevel": "v",
        "stack_info": "v",
        "exc_info": "v",
    }

    @app.task
    async def job() -> None:
        for say in (current().log.info, current().log.warning, current().log.error, current().log.critical):
            say("payment", **named)
        current().log.log(logging.INFO, "payment", **named)

    await start_worker()
    run = await job.enqueue()
    await run.result(10)

    assert [line.fields for line in await run.logs()] == [named] * 5


async def test_what_the_standard_library_calls_extra_is_kept_too(app, start_worker, caplog):
    @app.task
    async def job() -> None:
        current().log.info("paid", extra={"card": "visa", "amount": 5}, amount=7)

    await start_worker()
    run = await job.enqueue()
    with caplog.at_level(logging.INFO):
        await run.result(10)

    (line,) = await run.logs()
    assert line.fields == {"card": "visa", "amount": 7}
    (record,) = [record for record in caplog.records if record.message == "paid"]
    assert record.card == "visa"


async def test_lines_of_plain_functions_and_of_failed_runs_are_kept(app, start_worker):
    @app.task
    def job() -> None:
        try:
            raise ValueError("inner")
        except ValueError:
            current().log.exception("it broke")
        raise LookupError("for good")

    await start_worker()
    run = await job.enqueue()
    with pytest.raises(StepFailed):
        await run.result(10)

    (line,) = await run.logs()
    assert (line.level, line.message, line.fields) == ("error", "it broke", {"error": "ValueError: inner"})


async def test_the_workers_own_log_has_the_lines_too(app, start_worker, caplog):
    @app.task
    async def job() -> None:
        current().log.info("sent %s", "it", to="x")

    caplog.set_level(logging.INFO, "weft.task")
    await start_worker()
    run = await job.enqueue()
    await run.result(10)

    (record,) = [record for record in caplog.records if record.name == "weft.task.job"]
    assert record.getMessage() == "sent it"
    assert record.facts == {"run": run.id, "attempt": 1, "to": "x"}
    assert record.filename == "test_tasklog.py"


async def test_the_last_lines_are_kept_and_the_first_tells_how_many_went(app, start_worker):
    @app.task
    async def many() -> None:
        for n in range(250):
            current().log.info("line %d", n)

    @app.task
    async def long() -> None:
        for n in range(60):
            current().log.info("x" * 999, n=n)

    await start_worker()
    run, other = await many.enqueue(), await long.enqueue()
    await run.result(10)
    await other.result(10)
    lines, texts = await run.logs(), await other.logs()

    assert [line.message for line in lines] == [f"line {n}" for n in range(150, 250)]
    assert (lines[0].dropped, lines[1].dropped) == (150, 0)
    assert len(lines) == MAX_LINES
    assert 10 <= len(texts) <= MAX_BYTES // 999
    assert (texts[0].dropped, texts[-1].fields) == (60 - len(texts), {"n": 59})


async def test_what_cannot_be_carried_becomes_text_and_what_is_too_long_is_cut(app, start_worker):
    @app.task
    async def job() -> None:
        log = current().log
        log.info("x" * 5_000, big=1 << 80, broken=Broken(), bad="\ud800", long="y" * 5_000)
        log.info("%d wrong", "text")
        log.info(Broken())
        log.info("wide", **{f"f{n}": "😀" * 5_000 for n in range(50)})
        log.info("%(name)s", {"name": "by name"})

    await start_worker()
    run = await job.enqueue()
    await run.result(10)
    first, second, third, fourth, fifth = await run.logs()

    assert len(first.message) == 1_000
    assert first.fields["big"] == str(1 << 80)
    assert first.fields["broken"] == "<a Broken that cannot be shown>"
    assert first.fields["bad"] == "?"
    assert len(first.fields["long"]) == 200
    assert second.message == "%d wrong"
    assert "cannot be shown" in third.message
    assert fourth.fields == {"fields": "too large to be kept"}
    assert fifth.message == "by name"


async def test_lines_of_a_step_that_still_runs_can_be_read(app, start_worker, eventually):
    release = asyncio.Event()

    @app.task(timeout=None)
    async def job() -> None:
        current().log.info("begun")
        await release.wait()
        current().log.info("ended")

    await start_worker()
    run = await job.enqueue()
    assert [line.message for line in await eventually(run.logs)] == ["begun"]
    release.set()
    await run.result(10)

    assert [line.message for line in await run.logs()] == ["begun", "ended"]


async def test_a_report_whose_answer_is_lost_keeps_each_line_once(app, start_worker, monkeypatch, eventually):
    from weft.errors import OutcomeUnknown
    from weft.worker import worker as module

    real, lost = module.report_steps, asyncio.Event()
    release = asyncio.Event()

    async def report(*args, **options):
        reply = await real(*args, **options)
        if not lost.is_set():
            lost.set()
            raise OutcomeUnknown("the reply was lost")
        return reply

    monkeypatch.setattr(module, "report_steps", report)

    @app.task(timeout=None)
    async def job() -> None:
        current().log.info("one")
        current().log.info("two")
        current().progress(0.5)
        await release.wait()
        current().log.info("three")

    await start_worker()
    run = await job.enqueue()
    await asyncio.wait_for(lost.wait(), 10)
    release.set()
    await run.result(10)

    assert [line.message for line in await run.logs()] == ["one", "two", "three"]


async def test_a_cancelled_run_keeps_its_lines_for_as_long_as_itself(app, start_worker, raw, eventually):
    @app.task(timeout=None, keep_result="1m")
    async def job() -> None:
        current().log.info("begun")
        current().progress(0.1)
        await asyncio.sleep(60)

    await start_worker()
    run = await job.enqueue()
    await eventually(run.logs)
    await run.cancel()

    assert [line.message for line in await run.logs()] == ["begun"]
    ns = app.engine().ns
    p = int(run.id[1 : run.id.index("-")])
    assert 0 < raw.pttl(ns.keys.tasklog(p, run.id)) <= 60_000


@pytest.mark.leaves("sessions")
@pytest.mark.parametrize(("max_crashes", "word"), [(1, "poisoned"), (3, "emitted")])
async def test_reported_lines_of_a_worker_that_died_survive_and_expire_with_the_run(
    ns, app, raw, die_with, start_worker, max_crashes, word
):
    @app.task
    async def job() -> str:
        return "another worker's"

    run = await job.enqueue()
    p = int(run.id[1 : run.id.index("-")])
    (token,) = await die_with(p)
    lines = Lines()
    lines.add(pack_line(logging.INFO, "last words", {}, 1))
    await report_steps(ns, p, [(token, 1, "")], session="s-dead", lines={token.key: lines.pack()[0]})
    raw.delete(ns.keys.session(p, "s-dead"))
    words = await reclaim_steps(
        ns,
        p,
        dead="s-dead",
        queue="default",
        stream=ns.keys.tasks(p, "default", 5),
        held=[(token.entry, run.id, token.spec, "")],
        keep_ms=lambda spec: spec.keep_ms,
        by="s-1",
        max_crashes=max_crashes,
        poison=msgspec.msgpack.encode(ErrorRecord("Poisoned", "poison")),
    )

    assert words == [word]
    if word == "emitted":
        await start_worker()
        assert await run.result(10) == "another worker's"
    assert [line.message for line in await run.logs()] == ["last words"]
    assert 0 < raw.pttl(ns.keys.tasklog(p, run.id)) <= token.spec.keep_ms


async def test_lines_of_an_earlier_delivery_expire_with_a_run_that_logs_no_more(app, start_worker, raw):
    @app.task(retries=1, retry_delay="1ms")
    async def job() -> None:
        if current().attempt == 1:
            current().log.info("only here")
            raise LookupError("again")

    await start_worker()
    run = await job.enqueue()
    await run.result(10)

    p = int(run.id[1 : run.id.index("-")])
    assert raw.pttl(app.engine().ns.keys.tasklog(p, run.id)) > 0
    assert [line.message for line in await run.logs()] == ["only here"]


async def test_a_run_that_logged_nothing_has_no_key(app, start_worker, raw):
    @app.task
    async def job() -> None: ...

    await start_worker()
    run = await job.enqueue()
    await run.result(10)

    assert await run.logs() == []
    assert not list(raw.scan_iter(app.engine().ns.keys.tasklog(0, "*").replace("{0}", "*")))
    with pytest.raises(NotFound):
        await app.runs.get("r0-0000000000000000000000").logs()


async def test_a_broken_list_costs_only_the_lines(app, start_worker, raw):
    @app.task
    async def job() -> str:
        p = int(current().run_id[1 : current().run_id.index("-")])
        raw.set(app.engine().ns.keys.tasklog(p, current().run_id), "not a list")
        current().log.info("lost")
        return "done"

    await start_worker()
    run = await job.enqueue()

    assert await run.result(10) == "done"
    for key in raw.scan_iter(app.engine().ns.keys.pattern()):
        if b":tasklog:" in key:
            raw.delete(key)


async def test_lines_that_outlive_their_run_are_found_by_the_audit(app, start_worker, raw):
    @app.task
    async def job() -> None:
        current().log.info("a line")

    await start_worker()
    run = await job.enqueue()
    await run.result(10)
    ns, p = app.engine().ns, int(run.id[1 : run.id.index("-")])
    assert await audit(ns) == []

    raw.persist(ns.keys.tasklog(p, run.id))
    (finding,) = await audit(ns)
    assert finding.problem == "its run does not need it, and it never expires: leaked"
    raw.delete(ns.keys.tasklog(p, run.id))


def test_code_without_a_loop_reads_them_too(weft_app, weft_worker):
    @weft_app.task
    def job() -> None:
        current().log.info("hello", n=1)

    run = job.sync.enqueue()
    weft_worker.sync.run_until_idle()

    (line,) = run.sync.logs()
    assert (line.message, line.fields) == ("hello", {"n": 1})
