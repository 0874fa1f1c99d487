"""How many steps may run at once, shared by all lanes of a worker."""

from __future__ import annotations

import asyncio


class Slots:
    """A counting gate that hands out several slots at a time."""

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._freed = asyncio.Event()
        #: Whether somebody waits for a slot.
        self._wanted = False

    async def take(self, most: int) -> int:
        """Waits until at least one slot is free, then takes up to `most`."""
        while self.free <= 0:
            self._wanted = True
            self._freed.clear()
            await self._freed.wait()
        taken = min(self.free, most)
        self.free -= taken
        return taken

    def give(self, n: int = 1) -> None:
        """Gives slots back."""
        self.free += n
        if self._wanted and self.free > 0:
            self._wanted = False
            self._freed.set()
