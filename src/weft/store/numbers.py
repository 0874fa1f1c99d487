"""Numbers for the keys of one call: records point at keys by them, because a script declares each key once."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.gates import counts_slots, takes_turns
from weft.core.model import Limit
from weft.store.keys import Keyspace


class Numbers(dict[str, int]):
    """Numbers the distinct keys of one call, from 1, so that records can point at them; iterates over the keys."""

    __slots__ = ()

    def of(self, key: str) -> int:
        return self.setdefault(key, len(self) + 1)


class GateKeys:
    """Numbers the gate keys of one call and writes limits as the references of lib/gates.lua."""

    def __init__(self, keys: Keyspace, p: int) -> None:
        self._keys, self._p = keys, p
        self._gates, self._lines, self._turns, self._rates = Numbers(), Numbers(), Numbers(), Numbers()

    def line(self, gate: str) -> int:
        return self._lines.of(self._keys.line(self._p, gate))

    def turns(self, gate: str) -> int:
        return self._turns.of(self._keys.turns(self._p, gate)) if takes_turns(gate) else 0

    def refs(self, limits: Sequence[Limit], passed: Sequence[str] = ()) -> str:
        """Returns references to limits that are to be passed; rates among `passed` are to be spent."""
        return " ".join([self._ref(limit, limit.gate in passed) for limit in limits]) if limits else ""

    def _ref(self, limit: Limit, passed: bool) -> str:
        line, turns = self.line(limit.gate), self.turns(limit.gate)
        if limit.window_ms:
            rate = self._rates.of(self._keys.ratelimit(self._p, limit.gate))
            return f"{'p' if passed else 'r'}{line}:{limit.n}:{limit.window_ms}:{limit.cost}:{rate}:{turns}"
        return f"c{line}:{limit.n}:{self._gates.of(self._keys.gate(self._p, limit.gate))}:{turns}"

    def held(self, names: str) -> str:
        """Returns references to slots that are to be given back."""
        if not names:
            return ""
        return " ".join([self._held(gate) for gate in names.split(" ")])

    def handed(self, limit: Limit, heir: int, like: str, behind: str) -> str:
        """Returns a reference to a slot that is to be handed over, to the run with that number; see lib/heirs.lua."""
        gate = self._gates.of(self._keys.gate(self._p, limit.gate))
        return f"c{self.line(limit.gate)}:1:{gate}:0 >{heir}:{like} {behind}"

    def _held(self, gate: str) -> str:
        if counts_slots(gate):
            return f"c{self.line(gate)}:0:{self._gates.of(self._keys.gate(self._p, gate))}:0"
        return f"h{self.line(gate)}:{self._rates.of(self._keys.ratelimit(self._p, gate))}"

    def families(self) -> dict[str, Numbers]:
        """Returns the keys that the references point at."""
        return {
            "gate": self._gates,
            "line": self._lines,
            "turns": self._turns,
            "ratelimit": self._rates,
        }
