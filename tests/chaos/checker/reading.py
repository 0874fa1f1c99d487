"""What a store at rest holds, read directly and never through the code under test where it can be helped."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from chaos.fleet import Fleet
from chaos.recorder import Row
from weft.codec import decode_plain
from weft.core.acts import ACTS
from weft.core.model import SPEC_DECODER
from weft.store.log import RawEvent, parse_entry
from weft.store.runs import RunRow, hash_fields

#: Keys that are empty when nobody waits at a limit, and how their members are counted. A slot is held, and a line stood
#: in, only by open runs, so at rest there is none.
GATE_KEYS = {"gate": "ZCARD", "line": "ZCARD", "lines": "SCARD", "admit": "SCARD", "heirs": "HLEN", "turns": "HLEN"}


@dataclass
class State:
    """Everything read from one store at rest."""

    runs: dict[str, RunRow]
    events: dict[str, list[RawEvent]]
    keys: dict[str, tuple[str, int]]  # key -> (type, PTTL)
    effects: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))


def scan(fleet: Fleet) -> list[str]:
    cursor, found = b"0", set()
    while True:
        # A server of its own must hold nothing else; on a shared one the neighbours' keys are the neighbours' business.
        match = ("MATCH", fleet.keys.pattern()) if fleet.shared else ()
        cursor, keys = fleet.server.client.execute_command("SCAN", cursor, *match, "COUNT", 5000)
        found.update(key.decode() for key in keys)
        if cursor == b"0":
            return sorted(found)


def read_run(fleet: Fleet, key: str) -> RunRow | None:
    """Reads one run's hash."""
    flat = fleet.server.client.execute_command("HGETALL", key)
    fields = hash_fields(flat)
    if "spec" not in fields:
        return None
    return RunRow(key.rpartition(":")[2], SPEC_DECODER.decode(fields["spec"]), fields)


def read_state(fleet: Fleet) -> State:
    """Reads runs, log, keys and effects."""
    client = fleet.server.client
    state = State({}, defaultdict(list), {})
    for key in scan(fleet):
        kind = client.execute_command("TYPE", key).decode()
        if kind == "none":
            continue
        state.keys[key] = kind, int(client.execute_command("PTTL", key))
        parsed = fleet.keys.parse(key)
        if parsed and parsed[1].name == "run" and (row := read_run(fleet, key)):
            state.runs[row.id] = row
    for p in range(fleet.partitions):
        for entry, fields in client.execute_command("XRANGE", fleet.keys.log(p), "-", "+"):
            for event in parse_entry(entry.decode(), fields):
                # What operators did stands under a name that no run has.
                if event.run != ACTS:
                    state.events[event.run].append(event)
    for row in fleet.effects.rows():
        state.effects[row.run].append(row)
    return state


def arguments_of(fleet: Fleet, row: RunRow) -> dict[str, Any]:
    data = row.spec.input
    if row.spec.blob:
        p = int(row.id[1:].partition("-")[0])
        data = fleet.server.client.execute_command("GET", fleet.keys.blob(p, row.id, row.spec.blob))
        if data is None:
            raise LookupError(f"the input blob of {row.id} is gone")
    decoded = decode_plain(data)
    if isinstance(decoded, dict):
        return decoded
    raise AssertionError(f"arguments of {row.id} are {decoded!r}")


def set_timers(fleet: Fleet, p: int) -> list[str]:
    """The timers that are set. That of a schedule is always: it is no work that waits."""
    members = fleet.server.client.execute_command("ZRANGE", fleet.keys.timers(p), 0, -1)
    return [member.decode() for member in members if not member.startswith(b"cron:")]


def directory(fleet: Fleet, p: int) -> set[str]:
    return {name.decode() for name in fleet.server.client.execute_command("HKEYS", fleet.keys.sessions(p))}


def live_sessions(fleet: Fleet) -> set[str]:
    client = fleet.server.client
    return {
        session
        for p in range(fleet.partitions)
        for session in directory(fleet, p)
        if client.execute_command("GET", fleet.keys.session(p, session)) == b"alive"
    }


def task_streams(fleet: Fleet) -> list[str]:
    return [key for key in scan(fleet) if (parsed := fleet.keys.parse(key)) and parsed[1].name == "wf.tasks"]


def stray_consumers(fleet: Fleet) -> list[tuple[str, str]]:
    """Consumers of sessions that are not alive, each with its stream."""
    client = fleet.server.client
    found = []
    for key in task_streams(fleet):
        for group in client.execute_command("XINFO", "GROUPS", key):
            facts = {group[i].decode(): group[i + 1] for i in range(0, len(group), 2)}
            for consumer in client.execute_command("XINFO", "CONSUMERS", key, facts["name"]):
                about = {consumer[i].decode(): consumer[i + 1] for i in range(0, len(consumer), 2)}
                found.append((key, about["name"].decode()))
    alive = live_sessions(fleet)
    return [(key, session) for key, session in found if session not in alive]
