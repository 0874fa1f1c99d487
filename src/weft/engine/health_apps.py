"""What `weft doctor` says of apps that share a store, and of runs that none of them can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.engine.health import Health, Session

#: Tasks that a finding names.
SHOWN = 3


def judge_apps(health: Health, live: Sequence[Session]) -> None:
    """Tells of runs that rest because no live worker can do them, and of shared queues."""
    for needs, n in health.resting.items():
        fix = "start a worker that does; they go on by themselves then"
        health.judge("warning", "resting", f"{n} runs rest: no live worker {needs}", fix)
    _judge_sharing(health, live)


def _judge_sharing(health: Health, live: Sequence[Session]) -> None:
    """Tells of queues that several apps serve: each takes what it finds there, also what only another one can run."""
    for queue in sorted({queue for session in live for queue in session.queues}):
        tasks: dict[str, set[str]] = {}
        for session in live:
            if queue in session.queues:
                tasks.setdefault(session.app, set()).update(session.tasks)
        if len(tasks) < 2:
            continue
        both = sorted(set.intersection(*tasks.values()))
        what = "a run that reaches the wrong one waits to be offered again"
        if both:
            what = f"each has a task {', '.join(both[:SHOWN])}, and a run goes to whichever takes it first"
        fix = "give each app a namespace (WEFT_NAMESPACE), or queues of its own"
        health.judge("warning", "apps", f"{' and '.join(sorted(tasks))} serve queue {queue!r}: {what}", fix)
