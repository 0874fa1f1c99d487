"""Archiving beside a worker: a process of its own, so that folding and SQL take nothing from the loop that runs steps.

One worker of the fleet has that process, by a lease; it is `weft archiver` and runs nobody's code. It ends with its worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from typing import Any

from weft.engine.housekeeping.service import Service
from weft.errors import PartitionLost
from weft.telemetry import get_logger

log = get_logger("weft.archiver")

#: Seconds between two looks at the process.
LOOK = 1.0
#: Seconds the process gets to finish its transaction. To be killed in the middle of one does no harm, it only begins again.
STOP_PATIENCE = 1.0


class Archiving(Service):
    """Keeps an archiver process running while this session leads."""

    name = "archiving"

    def __init__(self, ns: Any, session: str, *, environ: dict[str, str]) -> None:
        super().__init__(ns, 0, session)
        self._environ = {**environ, "WEFT_NAMESPACE": ns.keys.namespace}
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False

    async def tick(self) -> float:
        if self._process is not None and self._process.poll() is not None:
            log.warning("the archiver process has ended; starting another", code=self._process.returncode)
            await self._end()
        if self._process is None and not self._stopping:
            # Its lifeline is the pipe it reads: when this worker is gone, however it went, so is the other end.
            command = [sys.executable, "-m", "weft", "archiver", "--lifeline", "0"]
            self._process = await asyncio.to_thread(
                subprocess.Popen,
                command,
                stdin=subprocess.PIPE,
                env={**os.environ, **self._environ},
                start_new_session=True,  # Ctrl-C in the terminal is the worker's to handle: it archives until it is drained
            )
        return LOOK

    async def stop(self) -> None:
        self._stopping = True
        await self._end()
        await super().stop()
        await self._end()

    async def _lead(self) -> bool:
        try:
            leads = await super()._lead()
        except PartitionLost:
            # The store is lost, and the lease with it. Whoever was rebuilding it may have died: the database says
            # whose turn it is.
            return True
        if not leads and self._process is not None:
            await self._end()
        return leads

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(_end_process, process)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()
    try:
        process.wait(STOP_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
