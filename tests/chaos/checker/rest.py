"""Waiting until a fleet is at rest, and asking its workers for something new."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any

from chaos.checker.reading import GATE_KEYS, directory, live_sessions, read_run, scan, set_timers
from chaos.fleet import PATIENCE, Fleet, wait_for
from weft.store.keys import GROUP


def await_rest(fleet: Fleet, timeout: float = PATIENCE) -> None:
    """Waits until nothing is open, queued, due or pending, and no dead session is left in the directory."""
    deadline = time.monotonic() + timeout
    # One is enough to wait on: to look at all of thousands takes the processor from those who work them off.
    while any(True for _ in _unrest(fleet)):
        if time.monotonic() > deadline:
            unrest = list(itertools.islice(_unrest(fleet), 30))
            raise AssertionError(f"I1 not at rest after {timeout:g} s:\n" + "\n".join(unrest))
        time.sleep(0.05)


def _unrest(fleet: Fleet) -> Iterable[str]:
    client = fleet.server.client
    for key in scan(fleet):
        parsed = fleet.keys.parse(key)
        if parsed is None:
            continue
        _, family, parts = parsed
        if family.name == "run":
            open_field = client.execute_command("HGET", key, "open")
            if open_field is not None and not open_field.startswith(b"="):
                yield f"run {parts[0]} is open at {open_field.decode()}{_where(fleet, key)}"
        elif family.name == "wf.tasks":
            n = client.execute_command("XLEN", key)
            if n:
                yield f"{key} holds {n} tokens, pending: {_pending(fleet, key)}"
        elif family.name == "timers":
            if members := set_timers(fleet, parsed[0]):
                yield f"{len(members)} timers are set: {members[:5]}"
        elif family.name in GATE_KEYS and (n := client.execute_command(GATE_KEYS[family.name], key)):
            yield f"{key} has {n} members"
    alive = live_sessions(fleet)
    for p in range(fleet.partitions):
        for session in directory(fleet, p) - alive:
            yield f"session {session} of partition {p} is dead and still in the directory"


def _where(fleet: Fleet, key: str) -> str:
    """Tells what holds an open run, for the failure message."""
    row = read_run(fleet, key)
    if row is None or not row.open:
        return ""
    parsed = fleet.keys.parse(key)
    assert parsed is not None
    p = parsed[0]
    if row.line:
        score = fleet.server.client.execute_command("ZSCORE", fleet.keys.line(p, row.line), row.id)
        return f" (in line at {score!r}, task {row.spec.name})"
    if row.due_ms is not None:
        score = fleet.server.client.execute_command("ZSCORE", fleet.keys.timers(p), f"open:{row.id}")
        return f" (timer {score!r}, task {row.spec.name})"
    stream = fleet.keys.tasks(p, row.spec.queue, row.spec.priority)
    there = fleet.server.client.execute_command("XRANGE", stream, row.token, row.token)
    return f" (entry there: {bool(there)}, task {row.spec.name}, queue {row.spec.queue})"


def _pending(fleet: Fleet, stream: str) -> Any:
    try:
        return fleet.server.client.execute_command("XPENDING", stream, GROUP, "-", "+", 3)
    except Exception as error:
        return error


def check_new_work(fleet: Fleet, timeout: float = PATIENCE) -> None:
    """I12: every live worker does new work, asked for through the queue of its own name, without a restart by hand."""
    runs = {worker.name: fleet.start("effect", 1, queue=worker.name) for worker in fleet.live_workers}
    assert runs, "I12 no worker is alive"
    for name, run in runs.items():
        try:
            fleet.result(run, timeout)
        except TimeoutError:
            raise AssertionError(f"I12 worker {name} does no new work after the heal") from None


def await_state(fleet: Fleet, run: str, status: str, timeout: float = PATIENCE) -> None:
    """Waits until a run's hash shows a status."""
    p = int(run[1:].partition("-")[0])
    key = fleet.keys.run(p, run)
    wait_for(
        f"run {run} to be {status}",
        lambda: fleet.server.client.execute_command("HGET", key, "status") == status.encode(),
        timeout,
    )
