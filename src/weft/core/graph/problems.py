"""What is wrong with a definition: every problem with a stable code, a sentence, and where it is."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

#: Steps from the root of a definition to a value in it: ("nodes", "fetch", "after", 0).
Path = tuple[str | int, ...]

#: Problems that are reported of one definition; more would bury the first.
MAX_PROBLEMS = 100
#: How much of a refused value a message repeats, in characters.
SHOWN_CHARS = 60
#: Names that are compared to find a similar one. Comparing takes long: of more, those that may be meant are picked first.
MAX_CANDIDATES = 300


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong. Lines and columns count from 1 and are None where there is no file."""

    code: str
    message: str
    node: str | None = None
    #: A JSON pointer into the definition.
    path: str = ""
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.line}:{self.column}"
        return f"{where}: {self.message} [{self.code}]" if where else f"{self.message} [{self.code}]"


@dataclass(frozen=True)
class Place:
    """Where something begins in a file."""

    line: int
    column: int
    #: Characters before its text, such as a quote; None where the text does not stand in the file letter by letter.
    lead: int | None = None


class Places:
    """Where the values of a definition are, and their keys. This one knows nothing: there is no file."""

    def value(self, path: Path) -> Place | None:
        """Returns where a value begins."""
        return None

    def key(self, path: Path) -> Place | None:
        """Returns where the key of a value begins."""
        return None


@dataclass
class Problems:
    """Collects problems, and knows where things are."""

    places: Places = field(default_factory=Places)
    found: list[Problem] = field(default_factory=list)
    #: Values that were refused already: what follows from them is not worth saying.
    broken: set[Path] = field(default_factory=set)

    @property
    def full(self) -> bool:
        """Whether there are as many as are told: looking further would only take time."""
        return len(self.found) >= MAX_PROBLEMS

    def add(self, code: str, message: str, path: Path = (), *, offset: int | None = None, at_key: bool = False) -> None:
        """Notes a problem; `offset` counts characters into a text, `at_key` points at a field's name."""
        place = self._find(path, at_key)
        if place and place.lead is not None and offset is not None:
            place = Place(place.line, place.column + place.lead + offset)
        self.add_at(code, message, path, place)

    def add_at(self, code: str, message: str, path: Path, place: Place | None) -> None:
        """Notes a problem at a place that is known."""
        self.broken.add(path)
        if not self.full:
            line, column = (place.line, place.column) if place else (None, None)
            node = str(path[1]) if len(path) > 1 and path[0] == "nodes" else None
            self.found.append(Problem(code, message, node, pointer(path), line, column))

    def _find(self, path: Path, at_key: bool) -> Place | None:
        """Returns where a value is, or the key of the nearest thing around it that is in the file."""
        if at_key and (place := self.places.key(path)):
            return place
        if place := self.places.value(path):
            return place
        return next((found for n in range(len(path), 0, -1) if (found := self.places.key(path[:n]))), None) or (
            self.places.value(())
        )

    def sorted(self) -> list[Problem]:
        """Returns the problems in the order of the file, or as they were found."""
        return sorted(self.found, key=lambda problem: (problem.line or 0, problem.column or 0))


def pointer(path: Path) -> str:
    """Returns a path as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def similar(word: object, known: Iterable[str]) -> str:
    """Returns ": did you mean x?" for the word that is meant, or nothing."""
    if not isinstance(word, str) or not word or len(word) > SHOWN_CHARS:
        return ""
    known = list(known)
    if len(known) > MAX_CANDIDATES:
        near = (one for one in known if one[:1] == word[:1] and abs(len(one) - len(word)) <= 2)
        known = list(itertools.islice(near, MAX_CANDIDATES))
    close = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {close[0]}?" if close else ""


def show(value: Any) -> str:
    """Returns a short text for a refused value, cut before it is printed."""
    if isinstance(value, str):
        return repr(value) if len(value) <= SHOWN_CHARS else f"{value[:SHOWN_CHARS]!r}…"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (int, float)):
        return repr(value) if isinstance(value, float) or value.bit_length() < 128 else "a huge number"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else f"a {type(value).__name__}"
