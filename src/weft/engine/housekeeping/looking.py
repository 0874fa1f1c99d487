"""Looks at what no event tells, and keeps what changed: what operators set, and how far schedules have come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from weft.engine.cold import Cold
from weft.store.archived import has_entry
from weft.store.recovery import read_settings
from weft.store.timers import read_timers

#: Seconds between two looks.
SECONDS = 2.0

_pack = msgspec.msgpack.Encoder(order="sorted").encode


class Looker:
    """Looks at one partition, for its archiver."""

    def __init__(self, ns: Any, p: int, cold: Cold) -> None:
        self._ns, self._p, self._cold = ns, p, cold
        self._known: dict[tuple[str, str], bytes] | None = None
        #: When the next look is due, and when it may come at the earliest.
        self._due = self._earliest = 0.0

    def forget(self) -> None:
        """Trusts nothing it remembers: another archiver may have led meanwhile."""
        self._known = None

    def hurry(self) -> None:
        """Has the next look come soon: the log tells that somebody did something."""
        self._due = min(self._due, self._earliest)

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    async def look(self, checkpoint: str, writing: asyncio.Lock) -> None:
        """Keeps what changed. `checkpoint` is an entry that the log must still have; empty: that cannot be asked."""
        from weft.archive.recovery import Recovery

        began = time.monotonic()
        archive = Recovery(self._cold.database, self._ns.keys.namespace, self._p)
        if self._known is None:
            schedules = {("schedule", name): _pack(fields) for name, fields in (await archive.read_schedules()).items()}
            self._known = await archive.read_settings() | schedules
        now_ms, _, _ = await read_timers(self._ns, self._p, limit=0)
        seen = await read_settings(self._ns, self._p)
        found = {key: _pack(fields) for key, fields in seen.items()}
        changed = {key for key, data in found.items() if self._known.get(key) != data}
        gone = [key for key in self._known if key not in found]
        if changed or gone:
            # A store that was emptied, or went back in time, between two reads has nobody's schedules: they were not deleted.
            await read_timers(self._ns, self._p, limit=0)
            if checkpoint and not await has_entry(self._ns, self._p, checkpoint):
                return
            async with writing, self._cold.turn:
                await self._keep(archive, {key: seen[key] for key in changed}, found, gone, now_ms)
        self._known = found
        # The more schedules there are, the less often they are read, even when thousands are created one by one.
        now = time.monotonic()
        self._due, self._earliest = now + max(SECONDS, 50 * (now - began)), now + 5 * (now - began)

    async def _keep(
        self,
        archive: Any,
        changed: Mapping[tuple[str, str], dict[str, bytes]],
        packed: Mapping[tuple[str, str], bytes],
        gone: list[tuple[str, str]],
        now_ms: int,
    ) -> None:
        controls = {key: packed[key] for key in changed if key[0] == "control"}
        lifted = [key for key in gone if key[0] == "control"]
        schedules = {name: fields for (kind, name), fields in changed.items() if kind == "schedule"}
        dropped = [name for kind, name in gone if kind == "schedule"]
        if controls or lifted:
            await archive.write_settings(controls, lifted)
        if schedules or dropped:
            await archive.write_schedules(schedules, dropped, now_ms=now_ms)
