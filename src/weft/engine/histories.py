"""What happened to a run: its events, from the log or the archive, all so far or as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from weft.core.model import Event
from weft.engine.coldruns import cold_events
from weft.engine.engine import Engine
from weft.engine.events import event_of
from weft.engine.runs import find
from weft.errors import HistoryExpired, NotFound
from weft.ids import partition_of
from weft.store.log import RawEvent, read_events, scan_events


async def history(engine: Engine, run: str, *, after: int = 0) -> list[Event]:
    """Returns the run's events with seq > after, gapless; raises HistoryExpired when no store has them all."""
    return [event_of(event) for event in await raw_history(engine, run, after)]


async def raw_history(engine: Engine, run: str, after: int = 0, since_ms: int = 0) -> list[RawEvent]:
    """Reads events with seq > after, which the log has from `since_ms` on."""
    row = await find(engine, run)
    p, last = partition_of(run), row.number("seq", 1)
    pointers = [at for at in row.pointers if int(at) >= since_ms]
    raw = [event for event in await read_events(engine.ns, p, run, pointers) if event.seq > after]
    if len(raw) < last - after:
        # More events than the run could keep pointers to: read the log between the first and the last.
        first = str(max(since_ms, int(row.text("born"))))
        found = await scan_events(engine.ns, p, run, first, "+" if row.open else row.text("ended"))
        raw = [event for event in found if event.seq > after]
    if len(raw) < last - after:
        # Trimmed, because they are archived.
        known = {event.seq: event for event in (*await cold_events(engine, run, after=after), *raw)}
        raw = [known[seq] for seq in sorted(known)]
    seqs = [event.seq for event in raw]
    if seqs[: max(0, last - after)] != list(range(after + 1, last + 1)):
        raise HistoryExpired(
            f"run {run} has {last} events, but log and archive keep only {_ranges(seqs)} of them", run=run
        )
    return raw


def _ranges(seqs: Sequence[int]) -> str:
    return str(list(seqs)) if len(seqs) <= 10 else f"{len(seqs)}, from {seqs[0]} to {seqs[-1]},"


async def events(engine: Engine, run: str, *, after: int = 0) -> AsyncIterator[Event]:
    """Yields the run's events as they happen, from after + 1 on; ends after the terminal one."""
    await engine.open()
    # Where the log was read up to: a run of a large map has very many events, and none is read twice.
    since_ms = 0
    async with engine.waiting.news_of(run) as news:
        while True:
            try:
                ended = await news.register()
            except NotFound:
                ended = True  # only the archive may still have it, which has it whole
            found = await raw_history(engine, run, after, since_ms)
            for raw in found:
                event, since_ms = event_of(raw), int(raw.entry.partition("-")[0])
                after = event.seq
                yield event
            # The newest one: a run that was retried has ended before. Or the caller had seen it already.
            if (found and event_of(found[-1]).terminal) or (ended and not found):
                return
            if (
                not ended
            ):  # else something was told behind its end, as that it was replayed: the next look finds nothing more
                await news.wait()
