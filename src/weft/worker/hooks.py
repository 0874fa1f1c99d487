"""Calls an app's hooks: around an attempt, where a hook before it can fail the attempt and those behind it change nothing; and
around a worker's life."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Sequence
from typing import Any

from weft.sdk.current import Current
from weft.sdk.hooks import AfterHook, BeforeHook, ErrorHook
from weft.telemetry import get_logger

log = get_logger("weft.worker")

#: Seconds one hook behind an attempt may take: the step's own time limit no longer watches over it.
HOOK_SECONDS = 30.0


async def call_before(hooks: Sequence[BeforeHook], here: Current) -> None:
    """Calls the hooks in order; what one raises is the attempt's own failure."""
    for hook in hooks:
        await _call(hook, here)


async def call_behind(hooks: Sequence[AfterHook] | Sequence[ErrorHook], here: Current, end: Any) -> None:
    """Calls the hooks of an attempt that has ended, the last registered first; whatever they raise is only logged.

    A cancellation ends them too: the worker leaves, and the outcome that stands already must get out with it.
    """
    for hook in reversed(hooks):
        try:
            async with asyncio.timeout(HOOK_SECONDS):
                await _call(hook, here, end)
        except BaseException as error:  # noqa: BLE001 - the attempt has ended; a hook must not change how
            name = getattr(hook, "__qualname__", repr(hook))
            log.error("a hook failed; the outcome stands", hook=name, run=here.run_id, error=repr(error))
            if isinstance(error, asyncio.CancelledError):
                return


async def call_hook(hook: Any, when: str) -> None:
    """Calls a hook of the worker's own life; what it raises says which hook it was."""
    try:
        await _call(hook)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        error.add_note(f"raised by the {when} hook {_name_of(hook)} ({frame.filename}:{frame.lineno})")
        raise


async def call_shutdown(hooks: Sequence[Any]) -> None:
    """Calls every shutdown hook, also behind one that fails: what others close must not stay open. Raises the first error."""
    failed: Exception | None = None
    for hook in hooks:
        try:
            await call_hook(hook, "shutdown")
        except Exception as error:  # noqa: BLE001 - raised when all were called
            if failed is not None:
                log.error("a shutdown hook failed", hook=_name_of(hook), error=repr(error))
            failed = failed or error
    if failed is not None:
        raise failed


async def _call(hook: Any, *values: Any) -> None:
    done = hook(*values)
    if inspect.isawaitable(done):
        await done


def _name_of(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", hook))
