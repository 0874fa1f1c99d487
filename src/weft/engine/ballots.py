"""Votes of people where somebody archives: each stands in the database, as a ballot, before the store is told of it.

The store stays the judge: its script decides who wins. It is told of the ballots of an approval in the order in which they were
stored, by whoever comes: a later voter first tells it of earlier ones, whose voters may have died. So nothing is
acknowledged that another vote, stored earlier and counted later, could take back.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from weft.codec import encode_plain
from weft.core.approvals import Change, Record, Vote, cast
from weft.core.ballots import Ballot
from weft.engine.cold import load_archive
from weft.engine.committed import LEVEL, commits_of
from weft.engine.engine import Engine
from weft.errors import Conflict, DurabilityUnmet, PartitionLost, Unavailable, UserError
from weft.ids import partition_of
from weft.store.approvals import change_approval, read_approvals
from weft.store.durability import Home, read_home
from weft.store.namespace import Namespace

if TYPE_CHECKING:
    from weft.archive.ballots import Ballots


async def read_committing(engine: Engine, p: int) -> Home | None:
    """Returns how a partition stands; None when nobody archives it: then there is no database to commit to."""
    home = await read_home(engine.ns, p)
    return home if home.database else None


async def commit_vote(engine: Engine, record: Record, vote: Vote, home: Home) -> None:
    """Stores a vote that was found to be in order, then has it counted. Raises Conflict when another one has won.

    Raises DurabilityUnmet: before the store was told of anything when the database does not take it, or else when the store
    does not answer; then it is counted as soon as that does.
    """
    commits = commits_of(engine)
    await commits.check_database(home, "a decision needs", "Nothing was decided", "")
    table = await open_ballots(engine)
    run, _, step = record.id.partition("/")
    ballot = Ballot(run, partition_of(run), step, record.opened_ms, record.digest, home.life, vote)
    again = f"Decide again with request_id={vote.request!r}, which counts once, or look at it"
    try:
        stored = await table.write(ballot)
    except Unavailable as error:
        raise DurabilityUnmet(
            f"the database did not take the vote of {vote.by} on {record.id}: {error.message}. The store was told of nothing;"
            f" if only the answer was lost, it is counted from there. {again}",
            level=LEVEL,
            id=record.id,
        ) from error
    try:
        await _count_in_order(engine, table, stored)
    except Unavailable as error:
        raise DurabilityUnmet(
            f"the vote of {vote.by} on {record.id} stands in the database, but the store did not take it: {error.message}."
            f" It is counted when the store takes it, unless that is decided by then. {again}",
            level=LEVEL,
            id=record.id,
        ) from error


async def _count_in_order(engine: Engine, table: Ballots, stored: list[Ballot]) -> None:
    *earlier, mine = stored
    for other in earlier:
        with contextlib.suppress(UserError):
            await engine.insist(other.partition, partial(count_ballot, engine.ns, table, other))
    try:
        word = await engine.insist(mine.partition, partial(count_ballot, engine.ns, table, mine))
    except UserError:
        with contextlib.suppress(Unavailable):  # who archives finds that too
            await table.drop([mine])
        raise
    if word == "absent":
        raise PartitionLost(f"it does not know approval {mine.id} any more", id=mine.id)


async def count_ballot(ns: Namespace, table: Ballots, ballot: Ballot) -> str:
    """Tells the store of a vote; returns `counted`, `known` (it was before) or `absent` (it has no such approval).

    Raises Conflict and other errors of users when it does not count.
    """
    p = ballot.partition
    while True:
        (record,) = await read_approvals(ns, p, [ballot.id])
        if record is None or record.opened_ms < ballot.opened_ms:
            return "absent"
        if record.opened_ms > ballot.opened_ms and not await _is_asked_again(ns, table, ballot):
            raise Conflict(f"approval {ballot.id} was asked anew since: look at it again", id=ballot.id)
        # Whether they may was asked before it was stored; what let them may be lost with the store.
        change = cast(record, ballot.vote, digest=ballot.digest, admin=True)
        if change is None:
            return "known"
        word = await write_change(ns, p, record, change, digest=ballot.digest, by=ballot.vote.by)
        if word == "ok":
            return "counted"
        await refuse(ns, p, ballot.id, word)


async def _is_asked_again(ns: Namespace, table: Ballots, ballot: Ballot) -> bool:
    """Tells whether an opening was lost with the store before it was archived: then the next one asks the same again."""
    if (await read_home(ns, ballot.partition)).life == ballot.life:
        return False
    return not await table.is_opened(ballot)


async def write_change(
    ns: Namespace, p: int, record: Record, change: Change, *, digest: str, by: str, due_ms: int | None = None
) -> str:
    """Changes an approval that is still as it was read; returns a word (see change_approval.lua)."""
    given = encode_plain(change.output) if change.output is not None else b""
    return await change_approval(ns, p, record, change, given=given, digest=digest, due_ms=due_ms, by=by)


async def refuse(ns: Namespace, p: int, id: str, word: str) -> None:
    """Raises Conflict for a change that cannot be made any more; returns when it is worth another look."""
    if word == "ended":
        (record,) = await read_approvals(ns, p, [id])
        status = "cancelled" if record is None or record.status == "pending" else record.status
        output = (record.state.output if record is not None else None) or {"decision": status}
        raise Conflict(f"approval {id} is {status}: its run has ended", id=id, decision=output)
    if word == "changed":
        raise Conflict(f"approval {id} shows something else by now: look at it again", id=id)


async def open_ballots(engine: Engine) -> Ballots:
    """Returns the ballots of an engine's namespace."""
    await load_archive("ballots")
    from weft.archive.ballots import Ballots

    return Ballots(engine.cold.database, engine.ns.keys.namespace)
