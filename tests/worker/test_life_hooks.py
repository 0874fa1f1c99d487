"""Start-up and shutdown hooks that fail: whoever reads the error knows which one, and the others are still called."""

import asyncio

import pytest

from weft import Weft


def fail() -> None:
    raise RuntimeError("no database")


async def fail_later() -> None:
    await asyncio.sleep(0)
    raise ValueError("no pool")


@pytest.mark.parametrize(("hook", "error"), [(fail, RuntimeError), (fail_later, ValueError)])
async def test_a_worker_whose_start_up_fails_says_which_hook_and_where(app: Weft, hook, error):
    app.on_startup(hook)
    with pytest.raises(error) as caught:
        async with app.worker():
            pass
    (note,) = caught.value.__notes__
    assert note.startswith(f"raised by the start-up hook {hook.__name__} ({__file__}:")
    assert await app.workers.list() == []


async def test_every_shutdown_hook_is_called_and_the_first_error_raised(app: Weft):
    called = []
    app.on_shutdown(lambda: called.append(1))
    app.on_shutdown(fail)
    app.on_shutdown(fail_later)
    app.on_shutdown(lambda: called.append(2))

    with pytest.raises(RuntimeError, match="no database") as caught:
        async with app.worker():
            pass

    assert called == [1, 2]
    assert "shutdown hook fail " in caught.value.__notes__[0]
    assert await app.workers.list() == []
