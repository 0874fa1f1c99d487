"""The verbs on links to approvals: make one, read what it is about, decide by it."""

from __future__ import annotations

import dataclasses
import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from weft.core.approvals import Approval, Vote, cast
from weft.core.links import Link, confirmation, read, sign, text_in
from weft.engine.approvals import Actor, check_people, decide, get, load_open
from weft.engine.engine import Engine
from weft.errors import Conflict, InvalidArguments, InvalidOption, LinkRefused
from weft.ids import partition_of
from weft.settings import read_setting
from weft.store.approvals import secret_of
from weft.store.timers import read_now

#: What a link says -> what is decided by it.
DECISIONS = {"approve": "approved", "reject": "rejected"}


@dataclass(frozen=True, slots=True)
class Linked:
    """What a link says, and the approval it is about as it stands now."""

    link: Link
    approval: Approval
    #: What its page puts into the form: so it is known whose page sent it.
    confirm: str

    @property
    def expires_at(self) -> datetime:
        return datetime.fromtimestamp(self.link.expires_ms / 1000, UTC)

    @property
    def vote(self) -> dict[str, Any] | None:
        """What the person of the link said, by whatever way; None when they have not."""
        return next((vote for vote in self.approval.votes if vote["by"] == self.link.approver), None)

    @property
    def is_used(self) -> bool:
        """Whether that person has decided just what the link says."""
        return self.vote is not None and self.vote["decision"] == DECISIONS[self.link.decision]


async def link(engine: Engine, id: str, approver: str, decision: str, *, expires_ms: int) -> str:
    """Returns the text of a link by which one person decides so, once, until it expires."""
    if decision not in DECISIONS:
        raise InvalidOption(f"decision must be approve or reject, not {decision!r:.100}", option="decision")
    check_people(approver)
    record = await load_open(engine, id)
    now_ms = await read_now(engine.ns, partition_of(record.id.partition("/")[0]))
    # The same checks as a click would meet: a link that cannot work is not made.
    vote = Vote(DECISIONS[decision], approver, now_ms, request="-")
    # Its form is filled in when the link is used.
    bare = dataclasses.replace(record, ask=msgspec.structs.replace(record.ask, form=None))
    cast(bare, vote, digest=record.digest)
    said = Link(id, decision, approver, record.digest, now_ms + expires_ms, record.opened_ms)
    return sign(said, await _key(engine))


async def follow(engine: Engine, given: str) -> Linked:
    """Reads what a link is about, and changes nothing. Raises LinkRefused, NotFound, Conflict."""
    said = await _read(engine, given)
    found = await get(engine, said.id)
    if round(found.opened_at.timestamp() * 1000) != said.opened_ms:
        raise LinkRefused(
            f"this link is about an earlier time that {said.id} was asked, before its run was retried: ask for a new one",
            reason="asked_anew",
        )
    if found.digest != said.digest:
        raise Conflict(f"approval {said.id} shows something else than when this link was made", id=said.id)
    return Linked(said, found, confirmation(text_in(given), await _key(engine)))


async def redeem(engine: Engine, given: str, *, comment: str = "", form: Any = None, ip: str = "") -> Approval:
    """Decides by a link. It works once: a person has one vote."""
    said = await _read(engine, given)
    actor = Actor(said.approver, via=f"link:{_address(ip)}" if ip else "link")
    return await decide(
        engine, said.id, actor, DECISIONS[said.decision], digest=said.digest, comment=comment, form=form, link=said
    )


async def _read(engine: Engine, given: str) -> Link:
    await engine.open()
    return read(text_in(given), await _key(engine), await read_now(engine.ns, 0))


async def _key(engine: Engine) -> bytes:
    given = read_setting("WEFT_SECRET_KEY")
    return given.encode() if given else await secret_of(engine.ns)


def _address(ip: str) -> str:
    try:
        return str(ipaddress.ip_address(ip))
    except ValueError as error:
        raise InvalidArguments(f"ip must be the address of a client, such as 203.0.113.7, not {ip!r:.100}") from error
