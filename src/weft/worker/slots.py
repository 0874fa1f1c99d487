"""How many steps may run at once, shared by all lanes of a worker."""

from __future__ import annotations

import asyncio


class Slots:
    """A counting gate that hands out several slots at a time."""

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._freed = asyncio.Event()
        self._freed.set()

    async def take(self, most: int) -> int:
        """Waits until at least one slot is free, then takes up to `most`."""
        while self.free <= 0:
            self._freed.clear()
            await self._freed.wait()
        taken = min(self.free, most)
        self.free -= taken
        return taken

    def give(self, n: int = 1) -> None:
        """Gives slots back."""
        self.free += n
        if self.free > 0:
            self._freed.set()
