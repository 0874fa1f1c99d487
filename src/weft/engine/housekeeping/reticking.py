"""Moves schedules past ticks whose runs are archived.

Schedules are kept every few seconds, runs at once: what a schedule remembers may be older than the runs that it has started.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.ids import tick_run_id
from weft.store.schedules import ScheduleRow
from weft.telemetry import get_logger

if TYPE_CHECKING:
    from weft.archive.recovery import Recovery

log = get_logger("weft.recovery")

#: Ticks that are looked for at once. A schedule moves on as long as any of them has a run.
AT_ONCE = 100


async def retick(
    archive: Recovery, p: int, schedules: Mapping[str, Mapping[str, bytes]], *, now_ms: int
) -> dict[str, dict[str, bytes]]:
    """Returns schedules as they stand behind the newest of their ticks that has a run."""
    found: dict[str, dict[str, bytes]] = {}
    for name, fields in schedules.items():
        found[name] = dict(fields)
        try:
            found[name] |= await _behind(archive, p, ScheduleRow(name, dict(fields)), now_ms)
        except (ValueError, OverflowError, KeyError) as error:
            log.warning("a schedule is restored as it was last kept", schedule=name, error=repr(error))
        if found[name].get("next") == b"":
            del found[name]["next"]  # its last tick
    return found


async def _behind(archive: Recovery, p: int, row: ScheduleRow, now_ms: int) -> dict[str, bytes]:
    next_ms, moved = row.moment("next"), dict[str, bytes]()
    while next_ms is not None and next_ms <= now_ms:
        some = list(itertools.islice(itertools.chain([next_ms], row.spec.times.all_after(next_ms)), AT_ONCE + 1))
        ids = {tick: tick_run_id(p, row.name, tick) for tick in some[:AT_ONCE] if tick <= now_ms}
        known = await archive.known(list(ids.values()))
        ran = [tick for tick, id in ids.items() if id in known]
        if not ran:
            break
        following = [tick for tick in some if tick > ran[-1]]
        next_ms = following[0] if following else None
        moved = {"last": b"%d" % ran[-1], "run": ids[ran[-1]].encode()}
        moved["next"] = b"" if next_ms is None else b"%d" % next_ms
    return moved
