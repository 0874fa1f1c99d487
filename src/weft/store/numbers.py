"""Numbers for the keys of one call: records point at keys by them, because a script declares each key once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.core.gates import counts_slots, takes_turns
from weft.core.model import Limit
from weft.store.keys import Keyspace


class Numbers(dict[str, int]):
    """Numbers the distinct keys of one call, from 1, so that records can point at them; iterates over the keys."""

    __slots__ = ()

    def of(self, key: str) -> int:
        return self.setdefault(key, len(self) + 1)


class GateKeys:
    """Numbers the gates of one call and writes limits as the references of lib/gates.lua."""

    def __init__(self, keys: Keyspace, p: int) -> None:
        self._keys, self._p = keys, p
        #: By the names of gates: keys are made of them once, when the call is packed.
        self._gates, self._lines, self._turns, self._rates = Numbers(), Numbers(), Numbers(), Numbers()

    def line(self, gate: str) -> int:
        return self._lines.of(gate)

    def turns(self, gate: str) -> int:
        return self._turns.of(gate) if takes_turns(gate) else 0

    def refs(self, limits: Sequence[Limit], passed: Sequence[str] = ()) -> str:
        """Returns references to limits that are to be passed; rates among `passed` are to be spent."""
        return " ".join([self._ref(limit, limit.gate in passed) for limit in limits]) if limits else ""

    def _ref(self, limit: Limit, passed: bool) -> str:
        line, turns = self.line(limit.gate), self.turns(limit.gate)
        if limit.window_ms:
            rate = self._rates.of(limit.gate)
            return f"{'p' if passed else 'r'}{line}:{limit.n}:{limit.window_ms}:{limit.cost}:{rate}:{turns}"
        return f"c{line}:{limit.n}:{self._gates.of(limit.gate)}:{turns}"

    def slots(self, gate: str, n: int) -> str:
        """Returns a reference to the slots of a gate whose line is in order of arrival."""
        line_at, gate_at = self.places(gate)
        return f"c{line_at}:{n}:{gate_at}:0"

    def places(self, gate: str) -> tuple[int, int]:
        """Returns the numbers of a gate's line and of the gate."""
        lines, gates = self._lines, self._gates
        return lines.setdefault(gate, len(lines) + 1), gates.setdefault(gate, len(gates) + 1)

    def held(self, names: str) -> str:
        """Returns references to slots that are to be given back."""
        if not names:
            return ""
        if " " not in names and names.startswith("key|"):
            return self.slots(names, 0)  # the most common kind, and alone
        return " ".join([self._held(gate) for gate in names.split(" ")])

    def _held(self, gate: str) -> str:
        if counts_slots(gate):
            return f"c{self.line(gate)}:0:{self._gates.of(gate)}:0"
        return f"h{self.line(gate)}:{self._rates.of(gate)}"

    def families(self) -> dict[str, str | Collection[str]]:
        """Returns the keys that the references point at, and who has slots that were handed on."""
        keys, p = self._keys, self._p
        gate, line = keys.gate(p, ""), keys.line(p, "")
        return {
            "heirs": keys.heirs(p),
            "gate": [gate + name for name in self._gates],
            "line": [line + name for name in self._lines],
            "turns": [keys.turns(p, name) for name in self._turns],
            "ratelimit": [keys.ratelimit(p, name) for name in self._rates],
        }
