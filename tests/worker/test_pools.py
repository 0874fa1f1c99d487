"""Slots, threads and processes on their own, without a store."""

import asyncio
import contextvars
import sys
import threading

import pytest

from weft.errors import DefinitionError
from weft.sdk.app import importing
from weft.worker import child
from weft.worker.slots import Slots
from weft.worker.threads import Threads

# --- slots ----------------------------------------------------------------------------------------


async def test_slots_are_handed_out_up_to_what_is_asked_and_free():
    slots = Slots(5)

    assert await slots.take(3) == 3
    assert await slots.take(3) == 2
    assert slots.free == 0


async def test_whoever_finds_none_free_waits_for_one():
    slots = Slots(1)
    await slots.take(1)
    waiter = asyncio.create_task(slots.take(10))
    await asyncio.sleep(0)
    assert not waiter.done()

    slots.give()

    assert await asyncio.wait_for(waiter, 5) == 1


async def test_many_waiters_share_what_is_given_back():
    slots = Slots(2)
    await slots.take(2)
    waiters = [asyncio.create_task(slots.take(1)) for _ in range(4)]
    await asyncio.sleep(0)

    slots.give(2)
    done, pending = await asyncio.wait(waiters, timeout=0.05)
    assert (len(done), len(pending), slots.free) == (2, 2, 0)

    slots.give(2)
    assert await asyncio.gather(*waiters) == [1] * 4
    assert slots.free == 0


async def test_a_waiter_that_is_cancelled_takes_nothing_with_it():
    slots = Slots(1)
    await slots.take(1)
    waiter = asyncio.create_task(slots.take(1))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)

    slots.give()

    assert slots.free == 1


async def test_more_adopted_tokens_than_slots_are_waited_out():
    slots = Slots(1)
    await slots.take(1)
    slots.give(1 - 3)  # three were adopted on one slot
    waiter = asyncio.create_task(slots.take(1))
    for _ in range(2):
        slots.give()
        await asyncio.sleep(0)
        assert not waiter.done()

    slots.give()

    assert await asyncio.wait_for(waiter, 5) == 1


# --- threads --------------------------------------------------------------------------------------


@pytest.fixture
def threads():
    made = Threads()
    yield made
    made.close()


async def test_a_function_runs_in_a_thread_and_its_value_or_error_comes_back(threads):
    def boom() -> None:
        raise KeyError("no")

    assert await threads.run(lambda: threading.current_thread().name) != threading.current_thread().name
    with pytest.raises(KeyError, match="no"):
        await threads.run(boom)


async def test_an_idle_thread_is_used_again(threads):
    names = {await threads.run(lambda: threading.current_thread().name) for _ in range(10)}

    assert len(names) <= 2


async def test_as_many_threads_as_are_needed_run_at_once(threads):
    barrier = threading.Barrier(20, timeout=10)

    await asyncio.gather(*(threads.run(barrier.wait) for _ in range(20)))


async def test_context_variables_are_seen_in_the_thread_and_not_changed_by_it(threads):
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("outer")

    def look() -> str:
        seen = variable.get()
        variable.set("inner")
        return seen

    assert await threads.run(look) == "outer"
    assert variable.get() == "outer"


async def test_an_abandoned_thread_goes_on_and_comes_back_to_work(threads):
    started, release = threading.Event(), threading.Event()

    def stuck() -> None:
        started.set()
        release.wait(10)

    waiter = asyncio.create_task(threads.run(stuck))
    await asyncio.to_thread(started.wait, 10)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter

    assert await threads.run(lambda: "another") == "another"
    release.set()
    assert await threads.run(lambda: "again") == "again"


async def test_threads_do_not_keep_the_process_alive(threads):
    assert await threads.run(lambda: threading.current_thread().daemon) is True


@pytest.mark.parametrize("error", [StopIteration("x"), GeneratorExit("x")])
async def test_errors_that_cannot_pass_an_await_are_named_in_one_that_can(threads, error):
    def boom() -> None:
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__):
        await threads.run(boom)


# --- processes ------------------------------------------------------------------------------------


def test_a_script_that_starts_work_when_it_is_imported_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio\nfrom weft import Weft\napp = Weft('x', redis_url='redis://127.0.0.1:1')\n"
        "@app.task(pool='process')\ndef double(n: int) -> int:\n    return 2 * n\n"
        "async def main():\n    async with app, app.worker():\n        pass\n"
        "asyncio.run(main())\n"
    )
    for _ in range(2):  # the second job of the process is told the same
        with pytest.raises(DefinitionError, match='under `if __name__ == "__main__":`'):
            child._find("__main__", "double", str(script))

    script.write_text(script.read_text().replace("asyncio.run", "if __name__ == '__main__':\n    asyncio.run"))
    try:
        assert child._find("__main__", "double", str(script)).fn(4) == 8
        assert not importing.main, "what the task itself starts is welcome"
    finally:
        del sys.modules[child.MAIN]
