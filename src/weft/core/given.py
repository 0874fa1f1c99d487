"""What a node gave, in the form in which a run's context keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gave:
    """What a node gave."""

    status: str
    step: str
    attempt: int
    started_ms: int
    ended_ms: int
    value: bytes
    cached: bool = False

    def pack(self) -> bytes:
        """Returns it as the context keeps it."""
        ledger = "cached" if self.cached else "-"
        head = f"{self.status} {self.step} {self.attempt} {self.started_ms} {self.ended_ms} {ledger}\n"
        return head.encode() + self.value


def parse_given(data: bytes) -> Gave:
    """Returns what the context keeps of a node; the end stands there as a moment or, after `+`, as how long it took."""
    head, _, value = data.partition(b"\n")
    status, step, attempt, started, ended, ledger = head.decode().split(" ", 5)
    ended_ms = int(ended) + (int(started) if ended[0] == "+" else 0)
    return Gave(status, step, int(attempt), int(started), ended_ms, value, ledger == "cached")
