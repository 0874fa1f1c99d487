"""The verb that asks a workflow run something and waits for its answer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from weft.core.flow import MAX_MAIL, Entry, is_flow
from weft.core.fold import write_fact
from weft.core.model import ERROR_DECODER, VALUE_DECODER
from weft.engine.engine import Engine
from weft.engine.living import load_living
from weft.engine.runs import failure_of
from weft.engine.signals import pack
from weft.errors import Conflict, InvalidArguments, PartitionLost, Unavailable
from weft.ids import check_key, check_name, new_id, partition_of
from weft.store import flows as store
from weft.store.runs import RunRow, read_runs

#: Seconds between looks at a store that is being rebuilt.
REBUILT = 0.2
#: Seconds of the last look at a run that has not answered in time.
LATE = 1.0


async def update(
    engine: Engine, run: str, name: str, value: Any, *, id: str | None, timeout: float | None, by: str
) -> bytes:
    """Gives a workflow run an update and returns the bytes of its answer; one id is one update, however often it is asked.

    Raises what the handler failed with, InvalidArguments when it is refused, Conflict for a run that has ended, TimeoutError.
    """
    check_name(name, what="update")
    id = new_id("u") if id is None else check_key(id, what="id")
    data = pack(value, what=f"the value of update {name}")
    row = await load_living(engine, run)
    if not is_flow(row.spec):
        raise InvalidArguments(f"run {run} is of no workflow: only those take updates", run=run)
    try:
        async with asyncio.timeout(timeout):
            answer = await _ask(engine, row, Entry(0, "update", name, id, data), by)
    except TimeoutError:
        late = await _look_late(engine, run, name, id)
        if late is None:
            raise TimeoutError(
                f"run {run} has not answered update {name} within {timeout:g} s; it goes on: ask again with id={id!r}"
            ) from None
        answer = late
    return _read(answer, run)


async def _ask(engine: Engine, row: RunRow, entry: Entry, by: str) -> bytes:
    run, p, name = row.id, partition_of(row.id), entry.key
    facts = f"name={name},id={write_fact(entry.more)}"
    send = partial(store.mail_run, engine.ns, p, run, row.spec, entry, event="update_received", facts=facts)
    async with engine.waiting.news_of(run) as news:
        sent, epoch, taken = False, "", False
        while True:
            try:
                # In this order: an answer is never later than the end of its run.
                ended = await news.register(every=False)
                # A store that was rebuilt knows of the update, and not who waits for its answer.
                if not sent or epoch != engine.ns.epochs[p]:
                    words = await engine.insist(p, lambda: send(update=entry.more, watch=engine.waiting.channel, by=by))
                    _check(words, run, name)
                    sent, epoch, taken = True, engine.ns.epochs[p], True
                answer = await store.read_answer(engine.ns, p, run, entry.more)
            except PartitionLost:
                if not taken:
                    raise
                await asyncio.sleep(REBUILT)  # it was given, and waits for its answer: somebody rebuilds the store
                continue
            if answer is not None and answer[:1] != b"?":
                return answer
            if ended:
                raise _unanswered(run, name)
            if answer is None:
                sent = False  # the store has lost it: it is asked anew
                continue
            await news.wait()


async def _look_late(engine: Engine, run: str, name: str, id: str) -> bytes | None:
    """Returns the answer to an update if it is there, although no news told of it. Raises Conflict for a run that has ended."""
    p = partition_of(run)
    try:
        async with asyncio.timeout(LATE):
            # In this order: an answer is never later than the end of its run.
            row = (await read_runs(engine.ns, p, [run]))[0]
            answer = await store.read_answer(engine.ns, p, run, id)
    except (TimeoutError, Unavailable):
        return None
    if answer is not None and answer[:1] != b"?":
        return answer
    if row is not None and not row.open:
        raise _unanswered(run, name)
    return None


def _unanswered(run: str, name: str) -> Conflict:
    return Conflict(
        f"run {run} has ended without an answer to update {name}: its code came to no handler of that name, or ended while"
        " one was at work",
        run=run,
        name=name,
    )


def _check(words: str, run: str, name: str) -> None:
    word, _, status = words.partition(" ")
    if word == "full":
        raise Conflict(f"run {run} has {MAX_MAIL} pieces of mail that it did not take yet: wait", run=run, name=name)
    if word == "ended":
        raise Conflict(f"run {run} has ended ({status}): it takes no update any more", run=run, status=status)


def _read(answer: bytes, run: str) -> bytes:
    kind, payload = answer[:1], answer[1:]
    if kind == b"+":
        return bytes(VALUE_DECODER.decode(payload).inline)
    record = ERROR_DECODER.decode(payload)
    if kind == b"-":
        raise failure_of(record, run)
    raise InvalidArguments(f"the update was refused: {record.message or record.type}", run=run, type=record.type)
