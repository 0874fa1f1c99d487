"""An app whose store is wiped while archivers run, and what its tasks did outside of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from weft import Conflict, NotFound, Weft, current
from weft.core.effects import effect_key
from weft.core.fold import read_facts
from weft.core.history import read_history
from weft.engine.cold import Cold
from weft.errors import Unavailable
from weft.ids import partition_of
from weft.store.recovery import Closed, read_hot


class Losing:
    """An app whose store is wiped while archivers run; what its tasks did outside is kept here."""

    def __init__(self, app: Weft, raw: Any) -> None:
        self.app, self.raw = app, raw
        self.effects: list[str] = []
        self.cold = Cold(app.database(), app.engine().ns.keys.namespace)
        #: Steps that were archived as ended at a loss, and how often each had run by then.
        self.ended: dict[str, int] = {}

    def note(self) -> None:
        self.effects.append(current().effect_key)

    def archived(self) -> dict[str, str]:
        """Returns the status of every run in the database."""
        connection = sqlite3.connect(os.environ["WEFT_DATABASE_URL"].removeprefix("sqlite:///"))
        try:
            return dict(connection.execute("SELECT id, status FROM weft_runs").fetchall())
        finally:
            connection.close()

    async def lose(self) -> None:
        """Wipes the store, notes what was archived as ended, and waits until it is rebuilt."""
        space = self.app.engine().ns
        keys = [*self.raw.scan_iter(match=f"{space.keys.namespace}:*")]
        ran = Counter(self.effects)
        if keys:
            self.raw.delete(*keys)
        for run in self.archived():
            for event in read_history(run, await self.cold.reader.all_events(run)).events:
                if event.type in ("step_completed", "step_failed", "step_cached"):
                    key = effect_key(f"{run}/{read_facts(event.facts)['step']}", "")
                    self.ended.setdefault(key, ran[key])
        closed = Closed(space, space.partitions)
        while any([(await read_hot(closed, p, "1-1")).epoch == 0 for p in range(space.partitions)]):
            await asyncio.sleep(0.02)

    async def until_finished(self, run: str, seconds: float = 90) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not await self.finished(run):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            keys, p = self.app.engine().ns.keys, partition_of(run)
            names = [name.decode() for name in self.raw.hkeys(keys.ledger(p, run))]
            steps = {name: self.raw.hgetall(keys.run(p, f"{run}/{name}")) for name in names}
            maps = {name: self.raw.hgetall(keys.map(p, run, name)) for name in names}
            pytest.fail(f"it does not end: {self.raw.hgetall(keys.run(p, run))}\n{steps}\n{maps}")

    async def finished(self, run: str) -> bool:
        found = await self.cold.reader.run(run)
        return found is not None and found.state.finished

    def nothing_ran_again(self) -> None:
        again = Counter(self.effects)
        wrong = {key: f"{n} times, and {again[key]} in the end" for key, n in self.ended.items() if again[key] != n}
        assert not wrong, wrong


async def insisting(work: Callable[[], Any]) -> None:
    """Does something from outside, whatever the store is going through; what it does not know any more is left."""
    with contextlib.suppress(Conflict, NotFound, Unavailable):
        await work()
