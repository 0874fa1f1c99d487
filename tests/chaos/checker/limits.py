"""What one scenario may deviate in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Limits:
    """What one scenario may deviate in. Everything not named here holds everywhere."""

    #: The least share of asked starts that must have been acknowledged (I17).
    success: float = 0.5
    #: Log lines per worker (I13).
    log_lines: int = 300
    #: File descriptors a worker may hold beyond its baseline (I13).
    fds: int = 25
    #: Run ids that may end as poison although the model says otherwise.
    poisoned: frozenset[str] = frozenset()
    #: Runs that were cancelled by the scenario.
    cancelled: frozenset[str] = frozenset()
    #: Runs that were cancelled or due to fail by their deadline about when they ended: either end is right.
    contested: frozenset[str] = frozenset()
    #: Runs that the scenario wiped: acknowledged, and allowed to be absent.
    wiped: frozenset[str] = frozenset()
    #: Worker deaths the scenario caused; None: do not count. More crashes than that were counted wrongly.
    crashes: int | None = None
    #: Executions of one delivery (I3): more than one only where an operator tore the group itself apart.
    same_delivery: int = 1
    #: Seconds a timer may be late, counted from its due time or the heal (I10).
    late: float = 10.0
    #: How many a gate let through at once at the most, where an operator overruled its definition (I5).
    at_once: Mapping[str, int] = field(default_factory=dict)
    #: Names of invariants that do not apply.
    skip: frozenset[str] = frozenset()
