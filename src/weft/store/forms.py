"""Forms: calls that were packed once.

Nearly all calls of a worker without load are alike: one run started, one step ended. They differ in a few places, and
packing all the others anew takes most of the time. A form is packed by the ordinary function from a sample whose parts
are blanks, so there is one truth about what a call looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from weft.store.scripts import Arg
from weft.store.wire import pack

#: Forms kept: one per queue, priority and what else is fixed in a call; beyond that they are made anew.
MAX_FORMS = 256


class Form:
    """A packed call with blanks."""

    __slots__ = ("_packed", "_places", "_wired")

    def __init__(self, packed: list[Arg], blanks: Sequence[Arg]) -> None:
        self._packed = packed
        self._places = [packed.index(blank) for blank in blanks]
        self._wired = b""

    def fill(self, *values: Arg) -> list[Arg]:
        """Returns the call with something in each blank, in the order of the blanks."""
        packed = self._packed.copy()
        for place, value in zip(self._places, values, strict=True):
            packed[place] = value
        return packed

    def wired(self) -> bytes:
        """Returns a call without blanks as it goes over the wire."""
        if not self._wired:
            self._wired = pack(self.fill())
        return self._wired


class Forms(dict[Hashable, Form]):
    """The forms of one namespace, by what is fixed in them."""

    def of(self, fixed: Hashable, make: Callable[[], Form]) -> Form:
        """Returns the form for what is fixed; makes it the first time."""
        found = self.get(fixed)
        if found is None:
            if len(self) >= MAX_FORMS:
                self.clear()
            found = self[fixed] = make()
        return found
