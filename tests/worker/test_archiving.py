"""The archiver process beside a worker: one while it works, none when it has stopped."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from weft.worker import archiving
from weft.worker.archiving import Archiving

#: Ends a moment after its lifeline, as an archiver does that finishes its transaction.
SLOW = [sys.executable, "-c", "import sys, time; sys.stdin.read(); time.sleep(0.3)"]


async def test_no_other_process_is_started_while_the_worker_stops(ns, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        begun.append(popen(SLOW, **options))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(archiving, "LOOK", 0.01)
    beside = Archiving(ns, "s-1", environ={})
    beside.start()
    while not begun:
        await asyncio.sleep(0.01)
    await beside.stop()
    assert [process.returncode for process in begun] == [0]
