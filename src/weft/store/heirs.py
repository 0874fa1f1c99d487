"""Handing slots over in Redis: which run a step that ends names as its heir; lib/heirs.lua does it, or does not."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.gates import Controls, likeness, needed
from weft.core.model import Limit, Outcome, RunSpec, Token
from weft.store.namespace import Namespace
from weft.store.numbers import GateKeys


def refs_and_likeness(gates: GateKeys, spec: RunSpec, limits: Sequence[Limit]) -> str:
    """Returns references to the limits that a run must pass, and how it is like those who may hand it their slot."""
    refs, like = gates.refs(limits), likeness(spec)
    return f"{refs} ={like}" if like else refs


class Heirs(list[str]):
    """The keys of the runs to which steps that end hand their slots over, behind `n` other runs of a call."""

    def __init__(self, ns: Namespace, p: int, n: int, outcomes: Sequence[Outcome]) -> None:
        self._found: dict[str, tuple[Limit, int, str, str]] = {}
        controls, prefix = ns.controls[p], ns.keys.run(p, "")
        for outcome in outcomes:
            token = outcome.token
            if token.heirs:
                heir, _, behind = token.heirs.partition(" ")
                like = likeness(token.spec)
                limit = _inherited(token, heir, controls) if like else None
                if limit is not None:
                    self.append(prefix + heir)
                    self._found[token.run] = limit, n + len(self), like, behind

    def refs(self, token: Token, gates: GateKeys) -> str:
        """Returns references to the slots of a step that ends, and to its heir, if it has one."""
        found = self._found.get(token.run) if token.heirs else None
        return gates.handed(*found) if found else gates.held(token.gates)


def _inherited(token: Token, heir: str, controls: Controls) -> Limit | None:
    """Returns the one limit that the heir of a token has to pass; None when it has to be looked at in the ordinary way."""
    if controls.entries and controls.strikes(token.spec.name):
        return None
    limits = needed(token.spec, controls, run=heir)
    return limits[0] if len(limits) == 1 and limits[0].n == 1 and limits[0].gate == token.gates else None
