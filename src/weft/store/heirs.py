"""Handing slots on in Redis: which run a step that ends names as its heir; lib/heirs.lua does it, or does not."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.gates import Controls, alike, likeness, needed
from weft.core.model import Limit, Outcome, RunSpec, Token
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys

#: Numbers of a line and its gate; then of the heir's run, the ledger of an heir that waits for its first delivery, and what its
#: token tells of its gate (empty: nobody is known behind it).
Parts = tuple[int, int] | tuple[int, int, int, str, str]


def refs_and_slots(gates: GateKeys, spec: RunSpec, limits: Sequence[Limit]) -> tuple[str | int, str]:
    """Returns what start_runs reads of the limits of a run: of one per key, as nearly all are, only its number and slots."""
    if len(limits) == 1 and limits is spec.limits and limits[0].gate.startswith("key|"):
        n = limits[0].n
        line, gate = gates.places(limits[0].gate)
        if line == gate:
            return line, f"1 {alike(spec)}" if n == 1 else str(n)
    return refs_and_likeness(gates, spec, limits), ""


def refs_and_likeness(gates: GateKeys, spec: RunSpec, limits: Sequence[Limit]) -> str:
    """Returns references to the limits that a run must pass, and how it is like those who may hand it their slot."""
    like, refs = likeness(spec), gates.refs(limits)
    return f"{refs} ={like}" if like else refs


class Heirs(list[str]):
    """The keys of the runs to which steps that end hand their slots on, behind `n` other runs of a call."""

    def __init__(self, ns: Namespace, p: int, n: int, outcomes: Sequence[Outcome]) -> None:
        #: By the run of a step that ends: the number of its heir, how that is like it, and who stands behind the heir.
        self._heirs: dict[str, tuple[int, str, str]] = {}
        controls, prefix = ns.controls[p], ns.keys.run(p, "")
        for outcome in outcomes:
            token = outcome.token
            if token.heirs and (like := likeness(token.spec)):
                heir, _, behind = token.heirs.partition(" ")
                if _inherits(token, heir, controls):
                    self.append(prefix + heir)
                    self._heirs[token.run] = n + len(self), like, behind

    def refs(self, token: Token, gates: GateKeys) -> str:
        """Returns references to the slots of a step that ends, and to its heir, if it has one."""
        if token.run not in self._heirs:
            return gates.held(token.gates)
        number, like, behind = self._heirs[token.run]
        return f"{gates.slots(token.gates, 1)} >{number}:{like} {behind}"

    def parts(self, token: Token, gates: GateKeys) -> str | Parts:
        """Returns the same in parts, as commit_bare reads it; in words where the slots are others than one of a key."""
        gate = token.gates
        if token.run in self._heirs:
            number, like, behind = self._heirs[token.run]
            return *gates.places(gate), number, f"1:#{gate} {like}", f"{gate} >{behind}" if behind else ""
        if " " not in gate and gate.startswith("key|"):
            return gates.places(gate)
        return gates.held(gate)


def _inherits(token: Token, heir: str, controls: Controls) -> bool:
    """Tells whether the one limit that the heir of a token has to pass is the one whose slot the token has."""
    if not controls.entries:
        return token.spec.limits[0].gate == token.gates  # it has no other, or nobody would be like it
    if controls.strikes(token.spec.name):
        return False
    limits = needed(token.spec, controls, run=heir)
    return len(limits) == 1 and limits[0].n == 1 and limits[0].gate == token.gates
