"""The verbs on dead letters: list, group, read, replay, purge, investigate."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from weft.codec import decode_plain
from weft.core.acts import Act, pack_act
from weft.core.effects import run_of, step_of
from weft.core.letters import (
    DeadLetter,
    Investigation,
    LetterGroup,
    LetterPage,
    fingerprint_of,
)
from weft.core.model import RunSpec, RunStatus
from weft.engine.coldletters import find_letter
from weft.engine.engine import Engine, user_name
from weft.engine.events import error_dict
from weft.engine.runs import input_of, load
from weft.errors import Conflict, InvalidOption, NotFound, ResultExpired
from weft.ids import partition_of
from weft.store.letters import (
    count_letters,
    investigate_letter,
    purge_letters,
    server_ms,
    walk_letters,
)
from weft.store.runs import RunRow, read_runs

#: Dead letters read, replayed or purged by one call of the store.
PAGE = 100
#: Characters of a note that are kept.
MAX_NOTE = 2_000

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters are meant. Everything that is None admits all."""

    task: str | None = None
    queue: str | None = None
    error: str | None = None
    fingerprint: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tag: tuple[str, str] | None = None
    investigated: bool | None = None
    replayed: bool | None = None

    def admits(self, letter: DeadLetter) -> bool:
        return (
            (self.task is None or letter.task == self.task)
            and (self.queue is None or letter.queue == self.queue)
            and (self.error is None or self.error in (letter.error["type"], letter.error["code"]))
            and (self.fingerprint is None or letter.fingerprint == self.fingerprint)
            and (self.tag is None or letter.tags.get(self.tag[0]) == self.tag[1])
            and (self.investigated is None or (letter.investigated is not None) == self.investigated)
            and (self.replayed is None or bool(letter.replayed_as) == self.replayed)
        )


#: A step of a graph run that became a letter: `<run>/<step>`.
_STEP = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(~[0-9.]+)?(#[0-9]+)?")


def home_of(id: str) -> int:
    """Returns the partition of a letter: a run, or a step of one. Raises NotFound for what can be neither."""
    if not isinstance(id, str) or "/" not in id:
        return partition_of(id)
    if not _STEP.fullmatch(step_of(id)):
        raise NotFound(f"there is no dead letter {id[:60]!r}: it is named by its run, or by its run and step")
    return partition_of(run_of(id))


async def _load(engine: Engine, id: str) -> RunRow:
    """Reads a letter's run or step; raises NotFound."""
    if "/" not in id:
        return await load(engine, id)
    await engine.open()
    p = home_of(id)
    row = (await read_runs(engine.ns, p, [id]))[0] if p < engine.ns.partitions else None
    if row is None:
        raise NotFound(f"there is no dead letter {id}: it never was, or it is no longer kept", run=id)
    return row


async def seek(engine: Engine, id: str) -> tuple[RunRow, bool]:
    """Reads a letter from whichever store has it, and tells whether it is the archive; raises NotFound."""
    try:
        return await _load(engine, id), False
    except NotFound:
        row = await find_letter(engine, id)
        if row is None:
            raise
        return row, True


async def count(engine: Engine) -> int:
    """Counts dead letters without reading them."""
    await engine.open()
    return sum([await count_letters(engine.ns, p) for p in range(engine.ns.partitions)])


async def now_ms(engine: Engine) -> int:
    """Returns the store's time, by which dead letters are ordered."""
    await engine.open()
    return await server_ms(engine.ns)


async def page(engine: Engine, wanted: LetterFilter, *, limit: int, cursor: str = "") -> LetterPage:
    """Returns dead letters, newest first, after a cursor that an earlier page gave."""
    found: list[DeadLetter] = []
    async for letter in walk(engine, wanted, after=_read_cursor(cursor) if cursor else None):
        found.append(letter)
        if len(found) > limit:
            break
    if len(found) <= limit:
        return LetterPage(found, "")
    ms, id = _place(found[limit - 1])
    return LetterPage(found[:limit], f"{ms}.{id}")


def _read_cursor(text: str) -> tuple[int, str]:
    ms, _, run = text.partition(".")
    try:
        home_of(run)
        return int(ms), run
    except (NotFound, ValueError):
        raise InvalidOption(
            f"{text[:60]!r} is not a cursor: use what the page before gave, or none for the first page", option="cursor"
        ) from None


async def groups(engine: Engine, wanted: LetterFilter) -> list[LetterGroup]:
    """Returns the dead letters by the fingerprint of their error, the largest group first. Reads all that are meant."""
    members: dict[str, list[DeadLetter]] = {}
    counts: dict[str, int] = {}
    async for letter in walk(engine, wanted):
        # Newest first, so the first is the newest; of the others only the last one seen is needed.
        first = members.setdefault(letter.fingerprint, [letter])[0]
        members[letter.fingerprint] = [first, letter]
        counts[letter.fingerprint] = counts.get(letter.fingerprint, 0) + 1
    found = [
        LetterGroup(
            mark, new.task, new.error["type"], new.error["message"], counts[mark], old.failed_at, new.failed_at, new.id
        )
        for mark, (new, old) in members.items()
    ]
    return sorted(found, key=lambda group: (-group.count, group.task, group.fingerprint))


async def walk(
    engine: Engine, wanted: LetterFilter, *, after: tuple[int, str] | None = None
) -> AsyncIterator[DeadLetter]:
    """Yields dead letters of all partitions, newest first."""
    await engine.open()
    walks = [_walk_partition(engine, p, wanted, after) for p in range(engine.ns.partitions)]
    heads = [(letter, each) for each in walks if (letter := await anext(each, None)) is not None]
    while heads:
        at = max(range(len(heads)), key=lambda i: _place(heads[i][0]))
        letter, each = heads[at]
        yield letter
        following = await anext(each, None)
        if following is None:
            heads.pop(at)
        else:
            heads[at] = (following, each)


async def _walk_partition(
    engine: Engine, p: int, wanted: LetterFilter, after: tuple[int, str] | None
) -> AsyncIterator[DeadLetter]:
    newest = wanted.until_ms
    if after is not None:
        newest = after[0] if newest is None else min(newest, after[0])
    async for places in walk_letters(engine.ns, p, newest_ms=newest, oldest_ms=wanted.since_ms or 0, page=PAGE):
        ids = [run for ms, run in places if after is None or (ms, run) < after]
        for row in await read_runs(engine.ns, p, ids):
            if row is not None and is_dead(row) and wanted.admits(letter := describe(row)):
                yield letter


def _place(letter: DeadLetter) -> tuple[int, str]:
    return round(letter.failed_at.timestamp() * 1000), letter.id


def is_dead(row: RunRow) -> bool:
    return not row.open and row.text("status") == RunStatus.FAILED


def describe(row: RunRow) -> DeadLetter:
    """Turns a failed run's hash into a dead letter."""
    # What is empty is left out on the wire; a reader finds all of it.
    error = {"traceback": "", "causes": [], "code": "", **error_dict(row.fields["error"])}
    investigated = None
    if "investigated" in row.fields:
        ms, by, note = row.text("investigated").split(" ", 2)
        investigated = Investigation(_time(int(ms)), by, note)
    return DeadLetter(
        id=row.id,
        task=row.spec.name,
        queue=row.spec.queue,
        priority=row.spec.priority,
        error=error,
        fingerprint=fingerprint_of(row.spec.name, error),
        attempts=row.number("attempt", 1),
        crashes=row.number("crashes", 0),
        worker=row.text("by"),
        created_at=_time(row.number("born", 0)),
        failed_at=_time(row.number("ended", 0)),
        tags=row.spec.tags,
        replay_of=row.spec.replay_of,
        replayed_as=row.text("replayed"),
        investigated=investigated,
        run_id=run_of(row.id),
        step=step_of(row.id),
    )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


async def get(engine: Engine, run: str) -> DeadLetter:
    """Returns one dead letter with its arguments; raises NotFound, also for a run that did not fail."""
    row, _ = await seek(engine, run)
    if not is_dead(row):
        raise NotFound(f"run {run} is no dead letter: it has not failed", run=run)
    try:
        data = await input_of(engine, row)
    except ResultExpired:
        return describe(row)
    return msgspec.structs.replace(describe(row), input=decode_plain(data) if data else {})


async def find(engine: Engine, wanted: LetterFilter) -> list[str]:
    """Returns the ids of all dead letters that are meant, oldest first: in that order they are replayed."""
    return [letter.id async for letter in walk(engine, wanted)][::-1]


def chunks(engine: Engine, ids: Iterable[str]) -> Iterable[tuple[int, list[str]]]:
    by_partition: dict[int, list[str]] = {}
    for run in dict.fromkeys(ids):
        by_partition.setdefault(home_of(run), []).append(run)
    for p, runs in by_partition.items():
        if p < engine.ns.partitions:
            for at in range(0, len(runs), PAGE):
                yield p, runs[at : at + PAGE]


def act_on(engine: Engine, verb: str, run: str, detail: dict[str, Any] | None = None, *, actor: str = "") -> bytes:
    """Returns what the audit is told."""
    return pack_act(Act(f"letter.{verb}", run, actor or user_name(), engine.id, detail=detail or {}))


def retry_act(engine: Engine, run: str, new: str, by: str) -> bytes:
    """Returns what the audit is told of a workflow run that is tried again."""
    return act_on(engine, "retry", run, {"retried_as": new}, actor="-".join(by.split()))


# --- purge, investigate ---------------------------------------------------------------------------


async def purge(engine: Engine, ids: Sequence[str], *, progress: Progress | None = None) -> int:
    """Deletes dead letters with all that is kept of their runs; returns how many. Runs that did not fail are left."""
    await engine.open()
    purged = done = 0
    for p, chunk in chunks(engine, ids):
        rows = await read_runs(engine.ns, p, chunk)
        there = [(run, row.spec if row else RunSpec("")) for run, row in zip(chunk, rows, strict=True)]
        acts = [act_on(engine, "purge", run) for run in chunk]
        purged += (await purge_letters(engine.ns, p, there, acts=acts, by=engine.id)).count("purged")
        done += len(chunk)
        if progress is not None:
            progress(done, len(ids))
    return purged


async def investigate(engine: Engine, run: str, note: str | None, *, by: str) -> None:
    """Marks a dead letter as looked into, with a note; None takes the mark back."""
    if note is not None and (not isinstance(note, str) or not note.strip()):
        raise InvalidOption("note must be a text that says what was found; None takes the mark back", option="note")
    if note is not None and len(note) > MAX_NOTE:
        raise InvalidOption(f"note has {len(note)} characters, at most {MAX_NOTE} are kept", option="note")
    row = await _load(engine, run)
    text = "" if note is None else note.strip().encode("utf-8", "replace").decode()
    try:
        who = "-".join(by.split())
        act = act_on(engine, "investigate", row.id, {"note": text}, actor=who)
        await investigate_letter(engine.ns, home_of(run), row.id, by=who, note=text, act=act)
    except Conflict as error:
        raise Conflict(f"run {run} is no dead letter: it has not failed", run=run) from error
