"""The one invariant checker, run at the end of every scenario, after the last heal.

It reads the store directly (never through the code under test where it can be helped), the recorder's rows, the
producers' ledgers and the workers' logs. The names I1 … I17 are those of FAULTS.md. All violations are collected
before it fails, because the second often explains the first.
"""

from __future__ import annotations

from chaos.checker.limits import Limits
from chaos.checker.reading import State, read_run, read_state
from chaos.checker.rest import await_rest, await_state, check_new_work
from chaos.checker.runs import (
    fold,
    i1_terminal,
    i2_results,
    i3_charges,
    i3_crashes,
    i3_effects,
    i4_events,
    i10_timers,
)
from chaos.checker.store import (
    audit_agrees,
    i5_at_once,
    i5_at_rest,
    i6_keys,
    i7_pending,
    i13_resources,
    i14_keys,
    i17_success,
)
from chaos.fleet import PATIENCE, Fleet

__all__ = [
    "Limits",
    "State",
    "await_rest",
    "await_state",
    "broken_promises",
    "check",
    "check_new_work",
    "fold",
    "read_run",
    "read_state",
]


def check(fleet: Fleet, limits: Limits | None = None, *, healed_at_ms: int = 0, settle: float = PATIENCE) -> State:
    """Waits until the fleet is at rest, then asserts every invariant; returns what it read."""
    limits = limits or Limits()
    await_rest(fleet, settle)
    state = read_state(fleet)
    problems = broken_promises(fleet, state, limits, healed_at_ms=healed_at_ms)
    assert not problems, f"{len(problems)} broken promises:\n" + "\n".join(problems[:25])
    return state


def broken_promises(fleet: Fleet, state: State, limits: Limits, *, healed_at_ms: int = 0) -> list[str]:
    """Returns every violation, each beginning with the name of its invariant."""
    problems = [
        *i1_terminal(fleet, state, limits),
        *i2_results(fleet, state, limits),
        *i3_effects(state, limits),
        *i4_events(state),
        *i5_at_rest(fleet, state),
        *i5_at_once(fleet, state, limits),
        *i6_keys(fleet, state),
        *audit_agrees(fleet),
        *i7_pending(fleet),
        *i10_timers(state, limits, healed_at_ms),
        *i13_resources(fleet, limits),
        *i14_keys(fleet, state, limits),
        *i17_success(fleet, limits),
        *i3_crashes(state, limits),
        *i3_charges(state),
    ]
    return [problem for problem in problems if problem.split(" ", 1)[0] not in limits.skip]
