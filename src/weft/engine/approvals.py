"""The verbs on approvals: get, decide, delegate; and what time does to them. Load -> decide -> commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from weft.codec import encode_plain
from weft.core import approvals as rules
from weft.core.approvals import (
    Approval,
    Change,
    Note,
    Record,
    Vote,
    cast,
    describe,
    digest_of,
    pass_time,
    refusal,
)
from weft.core.links import Link
from weft.engine.ballots import commit_vote, read_committing, refuse, write_change
from weft.engine.coldapprovals import find_cold_approval
from weft.engine.committed import LEVEL
from weft.engine.engine import Engine
from weft.errors import Conflict, InvalidArguments, LinkRefused, NotFound, PartitionLost, WeftError
from weft.ids import check_key, new_id, partition_of
from weft.store.approvals import is_fsynced, read_approvals
from weft.store.durability import read_home
from weft.store.namespace import Namespace
from weft.store.timers import drop_timers, read_now

#: Characters of a comment, and of a person's name.
MAX_COMMENT, MAX_NAME = 4_000, 200
#: Bytes of a filled-in form.
MAX_FORM = 64 * 1024
#: The most people that one delegation names.
MAX_PEOPLE = 100

_STEP = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}(~[0-9.]+)?")


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, in which roles, from where."""

    by: str
    roles: Sequence[str] = ()
    via: str = "api"
    #: May decide whatever the approvers are: a local admin, by the command line.
    admin: bool = False


async def get(engine: Engine, id: str) -> Approval:
    """Returns one approval, decided or not, from whichever store has it; raises NotFound."""
    try:
        return describe(await _load(engine, id))
    except NotFound:
        found = await find_cold_approval(engine, id)
        if found is None:
            raise
        return found


async def decide(
    engine: Engine,
    id: str,
    actor: Actor,
    decision: str,
    *,
    digest: str,
    comment: str = "",
    form: Any = None,
    request_id: str | None = None,
    link: Link | None = None,
) -> Approval:
    """Counts a person's vote, which decides when it is the last that was needed; returns the approval as it is then.

    Raises Conflict when it is decided already, with the decision in its facts, or when it shows something else than `digest`.
    """
    check_people(actor.by, *actor.roles)
    _check_text(comment, "comment")
    if not isinstance(actor.via, str) or len(actor.via) > MAX_NAME or not actor.via.isprintable():
        raise InvalidArguments(f"via must be a text of at most {MAX_NAME} printable characters, not {actor.via!r:.100}")
    _check_form(form)
    if not isinstance(digest, str) or not digest:
        raise InvalidArguments("a decision must name the digest of what was shown: approval.digest")
    request = new_id("q") if request_id is None else check_key(request_id, what="request_id")

    def judge(record: Record, now_ms: int) -> Change | None:
        if link is not None and link.opened_ms != record.opened_ms:
            raise LinkRefused(
                f"this link is about an earlier time that {id} was asked, before its run was retried: ask for a new one",
                reason="asked_anew",
            )
        vote = Vote(decision, actor.by, now_ms, comment, form, actor.via, request)
        return cast(record, vote, digest=digest, roles=actor.roles, admin=actor.admin)

    record = await load_open(engine, id)
    p = partition_of(record.id.partition("/")[0])
    home = await read_committing(engine, p)
    if home is None:
        return await _change(engine, id, judge, digest=digest, by=actor.by)
    # What is wrong with it is told before it is stored.
    change = judge(record, home.now_ms)
    if change is None:
        return describe(record)
    vote = Vote(decision, actor.by, home.now_ms, comment, form, actor.via, request)
    await commit_vote(engine, record, vote, home)
    if change.output is not None:
        # Else a server that stops now might come back without it, and time it out before it is counted again.
        await is_fsynced(engine.ns, p)
    return describe(await _load(engine, id), LEVEL)


async def delegate(
    engine: Engine, id: str, actor: Actor, to: Sequence[str], *, comment: str = "", request_id: str | None = None
) -> Approval:
    """Lets others decide in a person's place; returns the approval as it is then."""
    check_people(actor.by, *actor.roles, *to)
    _check_text(comment, "comment")
    if not to or len(to) > MAX_PEOPLE or actor.by in to:
        raise InvalidArguments(f"delegate names 1 to {MAX_PEOPLE} others, not {list(to)!r:.200}")
    request = new_id("q") if request_id is None else check_key(request_id, what="request_id")

    def judge(record: Record, now_ms: int) -> Change | None:
        note = Note("delegated", now_ms, actor.by, list(to), comment, request)
        return rules.delegate(record, note, roles=actor.roles, admin=actor.admin)

    return await _change(engine, id, judge, digest="", by=actor.by)


async def _change(
    engine: Engine, id: str, judge: Callable[[Record, int], Change | None], *, digest: str, by: str
) -> Approval:
    p = partition_of(id.partition("/")[0]) if "/" in id else 0
    while True:
        record = await load_open(engine, id)
        change = judge(record, await engine.insist(p, lambda: read_now(engine.ns, p)))
        if change is None:
            return describe(record)
        write = partial(write_change, engine.ns, p, record, change, digest=digest, by=by)
        word = await engine.insist(p, write)
        if word == "ok":
            kept = "fsync" if change.output and await is_fsynced(engine.ns, p) else "redis"
            return describe(await _load(engine, id), kept)
        await refuse(engine.ns, p, id, word)


async def tick_approval(ns: Namespace, p: int, id: str, *, by: str, seen_ms: int) -> None:
    """Does what is due for one approval. A decision that came first has won."""
    (record,) = await read_approvals(ns, p, [id])
    now_ms = await read_now(ns, p)
    change = None if record is None else pass_time(record, now_ms)
    if record is None or change is None:
        if record is None or record.status != "pending":
            await drop_timers(ns, p, [f"wait:{id}"], seen_ms=seen_ms)
        return
    word = await write_change(ns, p, record, change, digest="", by=by, due_ms=now_ms)
    if word == "ended":
        await drop_timers(ns, p, [f"wait:{id}"], seen_ms=seen_ms)


async def _load(engine: Engine, id: str) -> Record:
    await engine.open()
    run, _, step = id.partition("/") if isinstance(id, str) else ("", "", "")
    found = None
    if _STEP.fullmatch(step):
        p = partition_of(run)
        if p < engine.ns.partitions:
            (found,) = await engine.insist(p, lambda: read_approvals(engine.ns, p, [id]))
    if found is None:
        await _refuse_lost(engine, run)
        raise NotFound(f"there is no approval {id!r:.200}: it never was, or its run is no longer kept", id=id)
    if digest_of(id, msgspec.json.encode(found.ask), found.show) != found.digest:
        raise Conflict(f"what approval {id} shows was changed in the store: it cannot be decided", id=id)
    return found


async def load_open(engine: Engine, id: str) -> Record:
    """Loads an approval that somebody wants to change. Raises Conflict when only the archive has it, as decided."""
    try:
        return await _load(engine, id)
    except NotFound:
        found = await find_cold_approval(engine, id)
        if found is None:
            raise
        if found.status != "pending":
            raise refusal(id, found.status, found.decision) from None
        raise PartitionLost(f"approval {id} is open, and the store lost it: an archiver rebuilds it", id=id) from None


async def _refuse_lost(engine: Engine, run: str) -> None:
    """Raises PartitionLost while a partition is rebuilt: what is not there is not known not to be."""
    try:
        p = partition_of(run)
    except WeftError:
        return
    if p < engine.ns.partitions and (await read_home(engine.ns, p)).life.startswith(" "):
        raise PartitionLost(f"the store lost partition {p}, which is to be rebuilt: try again", partition=p)


# --- what people give -----------------------------------------------------------------------------


def check_people(*names: str) -> None:
    for name in names:
        if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or not name.isprintable():
            raise InvalidArguments(
                f"a person or role is a text of 1 to {MAX_NAME} printable characters, not {name!r:.100}"
            )


def _check_text(text: str, what: str) -> None:
    if not isinstance(text, str) or len(text) > MAX_COMMENT or "\0" in text:
        raise InvalidArguments(f"{what} must be a text of at most {MAX_COMMENT} characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArguments(f"{what} has characters that have no bytes: {error.reason}") from error


def _check_form(form: Any) -> None:
    data = encode_plain(form, what="the form")
    try:
        plain = msgspec.json.decode(msgspec.json.encode(form)) == form
    except (msgspec.MsgspecError, TypeError, UnicodeEncodeError):
        plain = False
    if not plain:
        raise InvalidArguments("the form must be plain JSON: texts, numbers, booleans, null, lists and mappings")
    if len(data) > MAX_FORM:
        raise InvalidArguments(f"the form takes {len(data)} bytes, at most {MAX_FORM} are kept")
