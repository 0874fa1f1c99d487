"""The keyspace, declared once: every Redis key Weft may hold, its type, its meaning and its lifetime.

Nobody else spells a key: not Python, not Lua, not tests. From this registry come the key builders, the
generated reference (`docs/reference/keys.md`), `weft keys` and the audit that runs after every test.

Form: `<namespace>:{<partition>}:<family>:<id>…`. The braces are Redis Cluster's hash tag, so all keys of a
partition share one slot and every script is single-slot.
"""

from __future__ import annotations

import re

from weft.errors import InvalidOption
from weft.store.families import FAMILIES, Family, Lifetime

#: The consumer group every queue stream has. One group, so that each token goes to one worker.
GROUP = "weft"

#: Priorities run from 1 to 10, higher first; each level of a queue is a stream of its own.
PRIORITIES = range(1, 11)

#: The name under which timers are woken. `@` cannot stand in a queue's name, so it cannot clash with one.
TIMER_WAKE = "@timers"

_NAMESPACE = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


class Keyspace:
    """Builds the keys of one namespace."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
            raise InvalidOption(
                f"namespace {namespace!r} cannot be used: 1 to 64 letters, digits, `_`, `.` or `-`", namespace=namespace
            )
        self.namespace = namespace

    def prefix(self, p: int) -> str:
        """Returns what all keys of a partition begin with."""
        return f"{self.namespace}:{{{p}}}:"

    def namespace_meta(self) -> str:
        return f"{self.namespace}:{{0}}:namespace"

    def epoch(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:epoch"

    def run(self, p: int, run: str) -> str:
        return f"{self.namespace}:{{{p}}}:run:{run}"

    def tasks(self, p: int, queue: str, priority: int) -> str:
        return f"{self.namespace}:{{{p}}}:wf.tasks:{queue}:{priority}"

    def queues(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:queues"

    def wake(self, p: int, queue: str) -> str:
        return f"{self.namespace}:{{{p}}}:wake:{queue}"

    def timers(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:timers"

    def log(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:log"

    def archived(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:archived"

    def blob(self, p: int, run: str, digest: str) -> str:
        return f"{self.namespace}:{{{p}}}:blob:{run}:{digest}"

    def tasklog(self, p: int, run: str) -> str:
        return f"{self.namespace}:{{{p}}}:tasklog:{run}"

    def idempotency(self, p: int, digest: str) -> str:
        return f"{self.namespace}:{{{p}}}:idempotency:{digest}"

    def unique(self, p: int, digest: str) -> str:
        return f"{self.namespace}:{{{p}}}:unique:{digest}"

    def schedule(self, p: int, name: str) -> str:
        return f"{self.namespace}:{{{p}}}:schedule:{name}"

    def schedules(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:schedules"

    def session(self, p: int, session: str) -> str:
        return f"{self.namespace}:{{{p}}}:session:{session}"

    def sessions(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:sessions"

    def lock(self, p: int, service: str) -> str:
        return f"{self.namespace}:{{{p}}}:lock:{service}"

    def unserved(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:unserved"

    def repair(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:repair"

    def gate(self, p: int, gate: str) -> str:
        return f"{self.namespace}:{{{p}}}:gate:{gate}"

    def line(self, p: int, gate: str) -> str:
        return f"{self.namespace}:{{{p}}}:line:{gate}"

    def turns(self, p: int, gate: str) -> str:
        return f"{self.namespace}:{{{p}}}:turns:{gate}"

    def ratelimit(self, p: int, gate: str) -> str:
        return f"{self.namespace}:{{{p}}}:ratelimit:{gate}"

    def lines(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:lines"

    def admit(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:admit"

    def heirs(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:heirs"

    def controls(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:controls"

    def dlq(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:dlq"

    def ir(self, p: int, digest: str) -> str:
        return f"{self.namespace}:{{{p}}}:ir:{digest}"

    def definitions(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:definitions"

    def ledger(self, p: int, run: str) -> str:
        return f"{self.namespace}:{{{p}}}:ledger:{run}"

    def arrivals(self, p: int, run: str) -> str:
        return f"{self.namespace}:{{{p}}}:arrivals:{run}"

    def context(self, p: int, run: str) -> str:
        return f"{self.namespace}:{{{p}}}:context:{run}"

    def undo(self, p: int, run: str) -> str:
        return f"{self.namespace}:{{{p}}}:undo:{run}"

    def cache(self, p: int, node: str, digest: str) -> str:
        return f"{self.namespace}:{{{p}}}:cache:{node}:{digest}"

    def map(self, p: int, run: str, step: str) -> str:
        return f"{self.namespace}:{{{p}}}:map:{run}:{step}"

    def items(self, p: int, run: str, step: str) -> str:
        return f"{self.namespace}:{{{p}}}:items:{run}:{step}"

    def results(self, p: int, run: str, step: str, chunk: int) -> str:
        return f"{self.namespace}:{{{p}}}:results:{run}:{step}:{chunk}"

    def belongings(self, p: int, run: str) -> str:
        return f"{self.namespace}:{{{p}}}:belongings:{run}"

    def signals(self, p: int, run: str) -> str:
        return f"{self.namespace}:{{{p}}}:signals:{run}"

    def journal(self, p: int, run: str) -> str:
        return f"{self.namespace}:{{{p}}}:journal:{run}"

    def mail(self, p: int, run: str) -> str:
        return f"{self.namespace}:{{{p}}}:mail:{run}"

    def updates(self, p: int, run: str) -> str:
        return f"{self.namespace}:{{{p}}}:updates:{run}"

    def approval(self, p: int, id: str) -> str:
        return f"{self.namespace}:{{{p}}}:approval:{id}"

    def pending_approvals(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:pending_approvals"

    def secret(self) -> str:
        return f"{self.namespace}:{{0}}:secret"

    def status(self, p: int, task: str) -> str:
        return f"{self.namespace}:{{{p}}}:status:{task}"

    def status_history(self, p: int, task: str) -> str:
        return f"{self.namespace}:{{{p}}}:status_history:{task}"

    def status_event(self, p: int, digest: str) -> str:
        return f"{self.namespace}:{{{p}}}:status_event:{digest}"

    def status_children(self, p: int, task: str) -> str:
        return f"{self.namespace}:{{{p}}}:status_children:{task}"

    def status_feed(self, p: int) -> str:
        return f"{self.namespace}:{{{p}}}:status_feed"

    def inbox(self, p: int, owner: str) -> str:
        return f"{self.namespace}:{{{p}}}:inbox:{owner}"

    def pattern(self) -> str:
        """Returns a SCAN pattern that matches every key of the namespace and nothing else."""
        return f"{self.namespace}:{{*"

    def runs_pattern(self, p: int) -> str:
        return self.prefix(p) + "run:*"

    def parse(self, key: str) -> tuple[int, Family, tuple[str, ...]] | None:
        """Returns partition, family and parts of a key; None when it is not one of ours."""
        head = re.match(re.escape(self.namespace) + r":\{(\d+)\}:", key)
        if head is None:
            return None
        name, *parts = key[head.end() :].split(":")
        family = FAMILIES.get(name)
        if family is None or len(parts) != len(family.parts):
            return None
        return int(head.group(1)), family, tuple(parts)


__all__ = ["FAMILIES", "GROUP", "PRIORITIES", "TIMER_WAKE", "Family", "Keyspace", "Lifetime"]
