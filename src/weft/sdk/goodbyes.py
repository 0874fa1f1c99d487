"""How the code of a workflow is let go: it goes on elsewhere, and what it does on its way out reaches nothing."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio import events
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

#: How often code that waits on its way out is told so again.
MAX_GOODBYES = 100

_GATHER = asyncio.gather.__code__


def let_go(coro: Any) -> None:
    """Ends a coroutine, also one that waits on its way out."""
    for _ in range(MAX_GOODBYES):
        with contextlib.suppress(BaseException):
            coro.close()
        if coro.cr_frame is None:
            return


def let_go_all(loop: asyncio.AbstractEventLoop, tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Ends tasks of a loop, each as the one that runs: what `finally` asks of asyncio would else reach the worker's loop."""
    outer, hooks = events._get_running_loop(), sys.get_asyncgen_hooks()
    events._set_running_loop(loop)
    sys.set_asyncgen_hooks(None, lambda generator: None)
    try:
        for task in tasks:
            asyncio.tasks._enter_task(loop, task)
            try:
                let_go(task.get_coro())
            finally:
                asyncio.tasks._leave_task(loop, task)
    finally:
        events._set_running_loop(outer)
        sys.set_asyncgen_hooks(*hooks)


def refuse_task(coro: Any, caller: FrameType | None) -> NoReturn:
    """Closes what code that is let go would make a task of, and what it gave asyncio.gather with it: nobody will await it."""
    given = [coro]
    for _ in range(3):
        if caller is not None and caller.f_code is _GATHER:
            given += caller.f_locals["coros_or_futures"]
        caller = caller.f_back if caller is not None else None
    for one in given:
        if asyncio.iscoroutine(one):
            one.close()
    raise GeneratorExit
