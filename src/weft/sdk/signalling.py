"""Signals of one execution of a workflow's code: those that nobody has received, and receivers that wait.

Each signal is received once, in the order they came. What was received by something that nobody waits for any more, as
by the loser of a race, is as if nobody had received it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from weft.core.flow import Entry

if TYPE_CHECKING:
    from weft.sdk.commands import Command


class Signals:
    """Signals and receivers by name."""

    def __init__(self) -> None:
        #: Signals that nobody has received, each with its place in the journal.
        self._early: dict[str, deque[tuple[int, Entry]]] = {}
        self._receivers: dict[str, deque[Command]] = {}

    def arrive(self, place: int, entry: Entry) -> Command | None:
        """Takes a signal; returns who waits for it. Else it waits, at its place among those that do."""
        waiting = self._receivers.get(entry.key)
        if waiting:
            command = waiting.popleft()
            self._note(command, place, entry)
            return command
        early = self._early.setdefault(entry.key, deque())
        if early and early[-1][0] > place:  # it was received before, and is given back
            later = [pair for pair in early if pair[0] > place]
            for _ in later:
                early.pop()
            early.append((place, entry))
            early.extend(later)
        else:
            early.append((place, entry))
        return None

    def receive(self, command: Command, name: str) -> Entry | None:
        """Returns the first signal of a name; None: the command waits for the next."""
        early = self._early.get(name)
        if early:
            place, entry = early.popleft()
            self._note(command, place, entry)
            return entry
        self._receivers.setdefault(name, deque()).append(command)
        return None

    def drop(self, command: Command) -> None:
        """Forgets a command that waits."""
        for waiting in self._receivers.values():
            if command in waiting:
                waiting.remove(command)

    def unread(self) -> list[tuple[int, Entry]]:
        """Returns all that nobody has received, each with its place in the journal."""
        return [pair for early in self._early.values() for pair in early]

    @staticmethod
    def _note(command: Command, place: int, entry: Entry) -> None:
        if command.future is not None:
            command.future.received = (place, entry)
