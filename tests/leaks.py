"""The leak check: what a namespace holds that its keyspace does not promise."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import redis

from servers import raw_entries
from weft.core.acts import ACTS
from weft.store.keys import Family, Keyspace, Lifetime
from weft.store.log import parse_entry
from weft.store.lone import parse_lone

#: Families of what a run has besides its hash.
BELONGINGS = (
    "blob tasklog ledger arrivals context belongings undo map items results journal mail signals updates".split()
)

#: Asked of a namespace's keys in one call, so that nothing expires between two answers about a key.
LOOK = """
local told = {}
for n, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  local got = kind == 'hash' and redis.call('HMGET', key, 'open', 'lone') or {}
  told[n] = {kind, redis.call('PTTL', key), got[1] or '', got[2] or ''}
end
return told
"""


def find_leaks(client: redis.Redis, namespace: str) -> list[tuple[str, str]]:
    """Returns what a namespace holds that its keyspace does not promise, as (kind, sentence).

    At rest there is no open run without somebody to say so, nothing pending, no session, nothing to repair; every
    finished run, lease and window has an expiry; every token and timer belongs to an open run and every open run has
    one; each run's events are numbered 1 to n.
    """
    keyspace = Keyspace(namespace)
    found: list[tuple[str, str]] = []
    ledgers: dict[tuple[int, str], str] = {}
    alone: set[tuple[int, str]] = set()
    blobs: list[tuple[int, str, str, int]] = []
    slots: list[tuple[int, str, str]] = []
    represented: set[tuple[int, str]] = set()
    seqs: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    keys = scan(client, keyspace)
    #: Graph runs that have ended, and whose steps and values the next look at timers puts away.
    closing = {
        (parsed[0], member.decode().removeprefix("close:"))
        for key, parsed in keys.items()
        if parsed is not None and parsed[1].name == "timers"
        for member in client.zrange(key, 0, -1)
        if member.startswith(b"close:")
    }
    looks = look(client, keys)
    for key, parsed in keys.items():
        if parsed is None:
            found.append(("broken keys", f"{key} is of no declared family"))
            continue
        p, family, parts = parsed
        kind, ttl, ledger, lone = looks[key]
        if kind == "none" or ttl == -2:
            continue  # it expired between SCAN and here
        if kind != family.type:
            found.append(("broken keys", f"{key} is a {kind}, not a {family.type}"))
            continue
        if family.lifetime in (Lifetime.LEASE, Lifetime.WINDOW) and ttl < 0:
            found.append(("broken keys", f"{key} has no expiry"))
        if family.lifetime in (Lifetime.FOREVER, Lifetime.QUEUE) and ttl >= 0:
            found.append(("broken keys", f"{key} expires, and must not"))
        if family.name == "run":
            if not ledger.startswith("="):
                ledgers[p, parts[0]] = ledger
                if lone:
                    # All there is of its only open step.
                    step, about = parse_lone(lone)
                    ledgers[p, f"{parts[0]}/{step}"] = about["open"].decode()
                    alone.add((p, parts[0]))
                if (p, parts[0].partition("/")[0]) in closing:
                    continue
                found.append(("open runs", f"{key} is open: {ledger}"))
                if ttl >= 0:
                    found.append(("broken keys", f"{key} is open and expires"))
            elif ttl < 0:
                found.append(("broken keys", f"{key} is finished and has no expiry"))
        elif family.name == "approval" and ttl < 0:
            blobs.append((p, parts[0].partition("/")[0], key, ttl))
        elif family.name in BELONGINGS and ttl < 0:
            blobs.append((p, parts[0], key, ttl))
        elif family.name == "sessions":
            found += [("sessions", f"{key} still has {session.decode()}") for session in client.hkeys(key)]
        elif family.name == "repair":
            found += [("repair", f"{key} has {run.decode()}") for run in client.zrange(key, 0, -1)]
        elif family.name == "wake" and client.llen(key) > 1:
            found.append(("broken keys", f"{key} has more than one pebble"))
        elif family.name == "wf.tasks":
            for group in client.xinfo_groups(key):
                if group["pending"]:
                    found.append(("pending", f"{key} has {group['pending']} tokens pending"))
            represented |= {(p, f"{fields[b'r'].decode()} {entry.decode()}") for entry, fields in client.xrange(key)}
        elif family.name == "timers":
            for member, due in client.zrange(key, 0, -1, withscores=True):
                what, _, run = member.decode().partition(":")
                if what == "cron":
                    if not client.exists(keyspace.schedule(p, run)):
                        found.append(("broken keys", f"timer without its schedule: {run}"))
                elif what in ("close", "route", "shut"):
                    # A run that ended just now is about to be put away.
                    closing.add((p, run.partition("/")[0]))
                elif what not in ("gate", "end", "wait"):
                    represented.add((p, f"{run} @{int(due)}" if what == "open" else f"{run} deadline"))
        elif family.name == "line":
            represented |= {(p, f"{run.decode()} #{parts[0]}") for run in client.zrange(key, 0, -1)}
        elif family.name == "ledger":
            represented.add((p, f"{parts[0]} *"))
        elif family.name == "gate":
            heir = client.hget(keyspace.heirs(p), parts[0])
            slots += [(p, (heir if heir and run == b">" else run).decode(), key) for run in client.zrange(key, 0, -1)]
        elif family.name == "heirs":
            for gate, run in client.hgetall(key).items():
                if client.zscore(keyspace.gate(p, gate.decode()), ">") is None:
                    found.append(("broken keys", f"{key} names {run.decode()}, but {gate.decode()} has no such slot"))
        elif family.name == "log":
            for entry, fields in raw_entries(client, key):
                for event in parse_entry(entry, fields):
                    seqs[p, event.run].append(event.seq)
    for p, run, key, _ in blobs:
        if (p, run) not in ledgers and (p, run) not in closing:
            found.append(("broken keys", f"{key} has neither an open run nor an expiry"))
    found += [
        ("broken keys", f"{key} is held by {run}, which is no open run")
        for p, run, key in slots
        if (p, run) not in ledgers
    ]
    # A graph run is represented by its ledger, and nothing represents a step that waits for something from outside.
    for (p, run), ledger in ledgers.items():
        if ledger.endswith(":*") and (p, run) not in alone and not client.hlen(keyspace.ledger(p, run)):
            found.append(("broken keys", f"open graph run without an open step: {run}"))
    # Behind the gate it waits at a ledger may say what its run is like.
    places = {at: ledger.partition(":")[2].partition(" ")[0] for at, ledger in ledgers.items()}
    wanted = {(p, f"{run} {place}") for (p, run), place in places.items() if place[:1] not in ("*", "?")}
    found += [("broken keys", f"open run without token or timer: {text}") for _, text in wanted - represented]
    for p, text in represented - wanted:
        run, _, what = text.partition(" ")
        if (p, run) in closing:
            continue
        if what != "deadline" or (p, run) not in ledgers:
            found.append(("broken keys", f"token or timer without its open run: {text}"))
    for (_, run), numbers in seqs.items():
        if run == ACTS:
            continue  # what people do is numbered within its entry
        if "/" in run:
            continue  # a step of a graph run that opens once more, as one that was retried does, begins with 1 again
        if Counter(numbers) != Counter(range(1, len(numbers) + 1)):
            found.append(("history", f"events of {run} are numbered {sorted(numbers)}"))
    return found


def scan(client: redis.Redis, keyspace: Keyspace) -> dict[str, tuple[int, Family, tuple[str, ...]] | None]:
    """Lists the keys of a namespace in order, each with what its name says."""
    keys = sorted(bytes(key).decode() for key in client.scan_iter(keyspace.pattern(), count=1000))
    return {key: keyspace.parse(key) for key in keys}


def look(client: redis.Redis, keys: Iterable[str]) -> dict[str, tuple[str, int, str, bytes]]:
    """Reads of each key at one moment: its type, the milliseconds it has left and, of a run, its ledger and its lone step."""
    names = list(keys)
    told = client.eval(LOOK, len(names), *names)
    return {
        key: (kind.decode(), ttl, ledger.decode(errors="replace"), lone)
        for key, (kind, ttl, ledger, lone) in zip(names, told, strict=True)
    }
