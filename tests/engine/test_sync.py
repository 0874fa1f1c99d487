"""The verbs for code without a loop: from plain threads, from a loop's own thread, and after a fork."""

import asyncio
import inspect
import subprocess
import sys
import textwrap
import threading

import pytest

from weft import NotFound, StepFailed
from weft.errors import UserError


async def test_sync_verbs_do_what_the_async_ones_do(app, add, start_worker):
    await start_worker()

    def plain_code() -> list[object]:
        run = add.sync.enqueue(2, 3)
        many = add.sync.enqueue_many([(1, 1), (2, 2)])
        return [
            run.sync.result(timeout=10),
            run.sync.status(),
            run.sync.info().name,
            [event.type for event in run.sync.history()],
            run.sync.cancel(),
            [each.sync.result(10) for each in many],
            add.options(priority=9).sync.enqueue(4, 5).sync.result(10),
            add.delay(6, 7).sync.result(10),
        ]

    assert await asyncio.to_thread(plain_code) == [
        5,
        "completed",
        "add",
        ["queued", "completed"],
        False,
        [2, 4],
        9,
        13,
    ]


async def test_errors_come_through(app, add, start_worker):
    @app.task
    async def boom() -> None:
        raise ValueError("no")

    await start_worker()

    def plain_code() -> None:
        with pytest.raises(StepFailed, match="ValueError: no"):
            boom.sync.enqueue().sync.result(10)
        with pytest.raises(TimeoutError):
            add.options(queue="nobody", deadline="1s").sync.enqueue(1, 2).sync.result(0.05)
        with pytest.raises(NotFound):
            app.runs.get("r0-0000000000000000000000").sync.status()

    await asyncio.to_thread(plain_code)
    for info in await app.runs.list(status="queued"):
        await app.runs.get(info.id).cancel()


async def test_many_threads_share_one_app(add, start_worker):
    await start_worker()
    results: list[int] = []

    def plain_code(n: int) -> None:
        results.append(add.sync.enqueue(n, n).sync.result(20))

    threads = [threading.Thread(target=plain_code, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))

    assert sorted(results) == [2 * n for n in range(20)]


async def test_a_plain_task_may_enqueue_another(app, add, start_worker):
    @app.task
    def parent(n: int) -> str:
        return add.delay(n, 1).id

    await start_worker()
    child = await (await parent.enqueue(41)).result(10)

    assert await add.run(child).result(10) == 42


async def test_sync_verbs_on_the_background_loop_are_refused_rather_than_hung(app, add):
    async def on_the_portal() -> None:
        add.sync.enqueue(1, 2)

    with pytest.raises(UserError, match="use the async verb"):
        await asyncio.to_thread(lambda: app.portal.call(on_the_portal()))


def test_a_plain_program_needs_no_loop_at_all(app, add):
    run = add.sync.enqueue(1, 2)

    assert run.sync.status() == "queued"
    assert run.sync.cancel("done testing")
    app.portal.call(app.close())


FORKING = """
import os, sys
from weft import Weft

app = Weft("forking", redis_url=sys.argv[1], namespace=sys.argv[2])

@app.task
async def add(a: int, b: int) -> int: ...

# The parent has a loop, a thread and connections before it forks, as a prefork web server has.
assert add.sync.enqueue(0, 0).sync.result(20) == 0
children = []
for n in range(1, 4):
    if (pid := os.fork()) == 0:
        # Each child uses the app on its own, and twice, and the parent's connections are not its.
        first = add.sync.enqueue(n, n).sync.result(20)
        second = add.delay(first, n).sync.result(20)
        os._exit(0 if (first, second) == (2 * n, 3 * n) else 1)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
assert add.sync.enqueue(1, 1).sync.result(20) == 2
print(codes)
"""


async def test_an_app_can_be_used_on_both_sides_of_a_fork(app, add, start_worker, server, namespace):
    await start_worker()

    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", textwrap.dedent(FORKING), server.url, namespace],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout.strip(), done.returncode) == ("[0, 0, 0]", 0), done.stderr


ENDING = """
import atexit, builtins, sys

@atexit.register
def after_weft() -> None:
    try:
        add.sync.enqueue(5, 6)
    except UserError as error:
        print("refused", "this process is ending" in str(error))

from weft import Weft
from weft.errors import UserError

app = Weft("ending", redis_url=sys.argv[1], namespace=sys.argv[2])

@app.task
async def add(a: int, b: int) -> int: ...

atexit.register(lambda: print("at the end", add.sync.enqueue(3, 4).sync.cancel()))
print("before", add.sync.enqueue(1, 2).sync.cancel())
"""


def test_sync_verbs_work_when_the_process_ends_and_are_refused_behind_that(server, namespace):
    command = [sys.executable, "-c", ENDING, server.url, namespace]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    assert (done.stdout.splitlines(), done.stderr) == (["before True", "at the end True", "refused True"], "")


def test_the_handler_of_a_signal_may_use_them_while_its_thread_makes_the_loop(app, add, monkeypatch):
    start, nested = threading.Thread.start, []

    def start_and_be_interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "weft portal" and not nested:
            nested.append(None)
            nested.append(add.sync.enqueue(1, 1))  # as a handler would, in the same thread

    monkeypatch.setattr(threading.Thread, "start", start_and_be_interrupted)

    outer = add.sync.enqueue(2, 2)

    assert outer.sync.cancel() and nested[1].sync.cancel()
    app.portal.call(app.close())


async def test_whatever_an_app_has_for_code_with_a_loop_it_has_for_code_without(app, add, start_worker):
    def is_async(thing: object, name: str) -> bool:
        return inspect.iscoroutinefunction(getattr(thing, name)) or inspect.isasyncgenfunction(getattr(thing, name))

    parts = {name: getattr(app, name) for name in dir(app) if not name.startswith("_")}
    parts = {name: part for name, part in parts.items() if type(part).__module__.startswith("weft.sdk")}
    verbs = {
        (name, verb) for name, part in parts.items() for verb in dir(part) if verb[0] != "_" and is_async(part, verb)
    }
    assert {("queues", "metrics"), ("workers", "list"), ("retention", "apply"), ("dlq", "replay")} <= verbs
    missing = [f"{name}.sync.{verb}" for name, verb in verbs if not hasattr(getattr(parts[name], "sync", None), verb)]
    assert missing == []

    await start_worker()
    await (await add.enqueue(1, 2)).result(10)
    ((queue,), (one,), metrics) = await asyncio.to_thread(
        lambda: (app.queues.sync.list(sample=0), app.workers.sync.list(), app.queues.sync.metrics())
    )
    assert (queue.name, queue.workers, one.alive) == ("default", 1, True)
    assert "weft_workers 1\n" in metrics
