"""A hand on the raw keys of one partition: brings it into a given state, and reads what a script made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import redis

from servers import raw_entries
from weft.core.acts import ACTS
from weft.core.model import SPEC_ENCODER, ErrorRecord, Outcome, RunSpec, SessionInfo, Token, Value
from weft.ids import new_run_id
from weft.store.keys import GROUP, TIMER_WAKE
from weft.store.log import RawEvent, parse_entry
from weft.store.namespace import Namespace
from weft.store.runs import NewRun, hash_fields, start_runs
from weft.store.sessions import renew_session
from weft.store.steps import claim_steps, commit_steps
from weft.store.timers import set_clock

RESULT = msgspec.msgpack.encode(Value(b"\xc0"))
ERROR = msgspec.msgpack.encode(ErrorRecord("ValueError", "no"))


@dataclass
class Partition:
    """The raw keys of one partition, and the verbs that bring it into a given state."""

    ns: Namespace
    p: int
    raw: redis.Redis
    keys: Any = field(init=False)

    def __post_init__(self) -> None:
        self.keys = self.ns.keys

    # --- given ------------------------------------------------------------------------------------

    async def start(self, n: int = 1, **options: Any) -> list[str]:
        """Starts runs and returns their ids."""
        spec = RunSpec(options.pop("name", "job"), **options)
        runs = [NewRun(new_run_id(self.p), spec, SPEC_ENCODER.encode(spec)) for _ in range(n)]
        assert await start_runs(self.ns, self.p, runs, by="c-test") == ["started"] * n
        return [run.id for run in runs]

    async def claim(self, session: str = "s-1", room: int = 10, queues: Sequence[str] = ("default",)) -> list[Token]:
        return await claim_steps(self.ns, self.p, session=session, queues=queues, room=room)

    async def claimed(self, session: str = "s-1", **options: Any) -> Token:
        """Starts one run and claims it."""
        await self.start(**options)
        (token,) = await self.claim(session, queues=[options.get("queue", "default")])
        return token

    async def commit(self, *outcomes: Outcome, session: str = "s-1") -> list[str]:
        return (await commit_steps(self.ns, self.p, outcomes, session=session))[0]

    async def dead(self) -> str:
        """Lets a run fail for good; returns its id."""
        token = await self.claimed()
        await self.commit(failed(token))
        return token.run

    async def session(self, session: str = "s-1", lease_ms: int = 60_000, queues: Sequence[str] = ("default",)) -> None:
        """Opens a worker session."""
        about = msgspec.msgpack.encode(SessionInfo(session, "test", "host", 1, list(queues), [], 1, 0))
        await renew_session(self.ns, self.p, session=session, lease_ms=lease_ms, about=about)

    async def advance(self, ms: int) -> None:
        """Moves the partition's clock."""
        await set_clock(self.ns, self.p, ms)

    # --- then -------------------------------------------------------------------------------------

    def run(self, run: str) -> dict[str, Any]:
        """Returns a run's hash: text, but msgpack fields as bytes."""
        packed = ("spec", "result", "error", "given", "lone")
        flat = [part for pair in self.raw.hgetall(self.keys.run(self.p, run)).items() for part in pair]
        return {name: value if name in packed else value.decode() for name, value in hash_fields(flat).items()}

    def ttl(self, run: str) -> int:
        return self.raw.pttl(self.keys.run(self.p, run))

    def ttl_of(self, key: str) -> int:
        return self.raw.pttl(key)

    def stream(self, queue: str = "default", priority: int = 5) -> list[tuple[str, dict[str, str]]]:
        """Returns the tokens in one stream: entry id, run and `<delivery>:<attempt>`, which first tokens leave out."""
        entries = self.raw.xrange(self.keys.tasks(self.p, queue, priority))
        return [(id.decode(), {"r": f[b"r"].decode(), "n": f.get(b"n", b"1:1").decode()}) for id, f in entries]

    def pending(self, queue: str = "default", priority: int = 5) -> list[tuple[str, str]]:
        """Returns (entry id, consumer) of the delivered tokens of one stream."""
        found = self.raw.xpending_range(self.keys.tasks(self.p, queue, priority), GROUP, "-", "+", 1000)
        return [(each["message_id"].decode(), each["consumer"].decode()) for each in found]

    def events(self, run: str | None = None) -> list[RawEvent]:
        """Returns all events of the log, or those of one run, in the order of the log."""
        entries = raw_entries(self.raw, self.keys.log(self.p))
        found = [event for entry, fields in entries for event in parse_entry(entry, fields)]
        return [event for event in found if run in (None, event.run)]

    def timers(self) -> dict[str, int]:
        return {m.decode(): int(due) for m, due in self.raw.zrange(self.keys.timers(self.p), 0, -1, withscores=True)}

    def letters(self) -> dict[str, int]:
        """Returns the index of dead letters: run id and when it failed."""
        return {m.decode(): int(at) for m, at in self.raw.zrange(self.keys.dlq(self.p), 0, -1, withscores=True)}

    def schedule(self, name: str = "s") -> dict[str, str]:
        """Returns a schedule's hash, without its spec."""
        found = self.raw.hgetall(self.keys.schedule(self.p, name))
        return {key.decode(): value.decode() for key, value in found.items() if key != b"spec"}

    def pebbles(self, queue: str = "default") -> int:
        return self.raw.llen(self.keys.wake(self.p, queue))

    def timer_pebbles(self) -> int:
        return self.pebbles(TIMER_WAKE)

    def take_pebbles(self) -> None:
        """Takes all pebbles away, so that a new one can be seen."""
        for queue in ("default", "other", TIMER_WAKE):
            self.raw.delete(self.keys.wake(self.p, queue))

    def snapshot(self) -> dict[str, bytes]:
        """Returns every key of the namespace with its content."""
        keys = sorted(self.raw.scan_iter(self.keys.pattern(), count=1000))
        return {key.decode(): self.raw.dump(key) for key in keys}


def moment(event: RawEvent) -> str:
    """Returns what a run keeps as its pointer to an event: the ms at which the log tells of it."""
    return event.entry.partition("-")[0]


def acts_of(part: Partition) -> list[RawEvent]:
    """Returns what the log was told for the audit."""
    entries = raw_entries(part.raw, part.keys.log(part.p))
    return [event for entry, fields in entries for event in parse_entry(entry, fields) if event.run == ACTS]


def completed(token: Token, value: bytes = RESULT, **changes: Any) -> Outcome:
    return Outcome(token, "completed", value, token.spec.keep_ms, token.claimed_ms, **changes)


def failed(token: Token) -> Outcome:
    return Outcome(token, "failed", ERROR, token.spec.keep_ms, token.claimed_ms)


def snoozed(token: Token, after_ms: int = 60_000) -> Outcome:
    return Outcome(token, "snoozed", b"later", after_ms, token.claimed_ms)


def discarded(token: Token) -> Outcome:
    return Outcome(token, "cancelled", ERROR, token.spec.keep_ms, token.claimed_ms)


def retrying(token: Token, after_ms: int = 0) -> Outcome:
    return Outcome(token, "retrying", ERROR, after_ms, token.claimed_ms)


def returned(token: Token, after_ms: int = 0) -> Outcome:
    return Outcome(token, "returned", b"worker stopped", after_ms, token.claimed_ms)
