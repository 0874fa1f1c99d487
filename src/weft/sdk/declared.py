"""What an app has by name: a dict that says which names there are when it is asked for another."""

from __future__ import annotations

from typing import TypeVar

from weft.core.graph.problems import similar
from weft.errors import NotFound

T = TypeVar("T")

#: Names that a message tells.
SHOWN = 20


class Declared(dict[str, T]):
    """Graphs, tasks or workflows of an app, by name."""

    def __init__(self, app: str, kind: str) -> None:
        super().__init__()
        self._app, self._kind = app, kind

    def __missing__(self, name: str) -> T:
        names = sorted(self)
        told = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        raise NotFound(
            f"app {self._app!r} has no {self._kind} {name!r}{similar(name, names)}; it has: {told or 'none'}", name=name
        )
