"""A parent of several worker processes: starts them, passes signals on, replaces those that die.

Each child is the same command in a fresh interpreter and a session of its own, so that Ctrl-C in the terminal reaches
it once, through the parent. A pipe to each tells it to stop, and by its end that the parent is gone. Not a signal: a supervisor
that signals all processes of a service, as systemd does, would have asked each child twice, and twice means at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from weft.cli.serve import ASKED, Heard, stop_signals, unless
from weft.telemetry import get_logger

log = get_logger("weft.cli")

#: Seconds before a dead child is replaced; doubled for each death in a row.
RESTART_DELAY = 0.2
#: The longest such wait, in seconds.
MAX_RESTART_DELAY = 30.0
#: Seconds a child must have lived for its death to count as the first one again.
STEADY = 30.0


class Fleet:
    """Keeps `n` children of one command alive until it is told to stop; `look` comes first and may refuse by raising."""

    def __init__(
        self, command: Sequence[str], n: int, *, look: Callable[[], Coroutine[Any, Any, bool]], heard: Heard
    ) -> None:
        self._command, self._n, self._look, self._heard = list(command), n, look, heard
        #: By place: the child, and this end of its pipe.
        self._children: dict[int, tuple[asyncio.subprocess.Process, int]] = {}
        self._asked = 0

    def run(self) -> bool:
        """Looks, starts the children and runs until all have drained; returns whether all of them did so cleanly."""
        return asyncio.run(self._run())

    async def _run(self) -> bool:
        self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self._stop, signal.Signals(number).name)
        for _ in range(self._heard.asked):
            self._stop("a signal before it began")
        if not await unless(self._stopping, self._look()):
            return True
        codes = await asyncio.gather(*(self._keep(place) for place in range(self._n)))
        return not any(codes)

    async def _keep(self, place: int) -> int:
        """Keeps one child alive; returns the exit code of the one that drained, 0 for none."""
        deaths = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            child = await self._start(place)
            code = await child.wait()
            os.close(self._children.pop(place)[1])
            if self._stopping.is_set():
                # A child that was told to stop before it could listen has claimed nothing.
                return 0 if code == -signal.SIGTERM else code
            deaths = 1 if time.monotonic() - began > STEADY else deaths + 1
            delay = min(MAX_RESTART_DELAY, RESTART_DELAY * 2 ** (deaths - 1))
            log.warning("a worker process died; another one is started", pid=child.pid, code=code, delay=f"{delay:g}s")
            await self._pause(delay)
        return 0

    async def _start(self, place: int) -> asyncio.subprocess.Process:
        theirs, ours = os.pipe()
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                "--lifeline",
                str(theirs),
                pass_fds=(theirs,),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        self._children[place] = child, ours
        for _ in range(self._asked):  # a signal that came while the child was being made
            self._tell(child, ours)
        return child

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _stop(self, why: str) -> None:
        self._asked += 1
        log.info("stopping all worker processes" if self._asked == 1 else "hastening all worker processes", why=why)
        self._stopping.set()
        for child, pipe in self._children.values():
            self._tell(child, pipe)

    def _tell(self, child: asyncio.subprocess.Process, pipe: int) -> None:
        """Asks a child once to stop; from the second time on also by a signal, for one that does not listen yet."""
        if child.returncode is not None:
            return
        with contextlib.suppress(OSError):  # it has just left
            os.write(pipe, ASKED)
        if self._asked > 1:
            child.send_signal(signal.SIGTERM)
