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
        #: What the keys of gates and of lines begin with: a call may have hundreds of them.
        self._gate, self._line = keys.gate(p, ""), keys.line(p, "")

    def line(self, gate: str) -> int:
        return self._lines.of(self._line + gate)

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
        return f"c{line}:{limit.n}:{self._gates.of(self._gate + limit.gate)}:{turns}"

    def slots(self, gate: str, n: int) -> str:
        """Returns a reference to the slots of a gate whose line is in order of arrival."""
        lines, gates = self._lines, self._gates
        line = lines.setdefault(self._line + gate, len(lines) + 1)
        return f"c{line}:{n}:{gates.setdefault(self._gate + gate, len(gates) + 1)}:0"

    def held(self, names: str) -> str:
        """Returns references to slots that are to be given back."""
        if not names:
            return ""
        if " " not in names and names.startswith("key|"):
            return self.slots(names, 0)  # the most common kind, and alone
        return " ".join([self._held(gate) for gate in names.split(" ")])

    def _held(self, gate: str) -> str:
        if counts_slots(gate):
            return f"c{self.line(gate)}:0:{self._gates.of(self._gate + gate)}:0"
        return f"h{self.line(gate)}:{self._rates.of(self._keys.ratelimit(self._p, gate))}"

    def families(self) -> dict[str, str | Numbers]:
        """Returns the keys that the references point at, and who has slots that were handed on."""
        return {
            "heirs": self._keys.heirs(self._p),
            "gate": self._gates,
            "line": self._lines,
            "turns": self._turns,
            "ratelimit": self._rates,
        }
