"""The verbs on keys: count them, weigh them, explain one, audit all. Everything reads; nothing is changed."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from weft.codec import decode_plain
from weft.core.model import ERROR_DECODER, SESSION_DECODER, SPEC_DECODER, VALUE_DECODER, RunSpec
from weft.engine.engine import Engine
from weft.errors import NotFound, WeftError
from weft.ids import partition_of
from weft.store import audit as store_audit
from weft.store.findings import PAGE, Finding
from weft.store.keys import FAMILIES, GROUP, Family
from weft.store.lone import parse_lone
from weft.store.runs import hash_fields, read_ledgers
from weft.store.schedules import SPEC_DECODER as SCHEDULE_DECODER

#: Members of a key that an explanation shows.
SHOWN_MEMBERS = 5

Progress = Callable[[int], None]


def _quiet(n: int) -> None:
    """Nobody watches."""


class FamilyCount(msgspec.Struct, frozen=True):
    """How many keys of a family there are. The family without a name holds what nobody declared."""

    family: str
    keys: int
    type: str
    lifetime: str
    holds: str


class FamilyMemory(msgspec.Struct, frozen=True):
    """What the keys of a family weigh. Not `exact`: estimated from `sampled` of them."""

    family: str
    keys: int
    bytes: int
    bytes_per_key: float
    sampled: int
    exact: bool


class Field(msgspec.Struct, frozen=True):
    """One field of a key, or one fact about it."""

    name: str
    meaning: str
    value: Any


class Explanation(msgspec.Struct, frozen=True):
    """What there is to know about one key; with `exists` False, about a key that is not there."""

    key: str
    family: str
    template: str
    type: str
    holds: str
    lifetime: str
    owner: str
    inspect: str
    exists: bool = True
    role: str = ""
    partition: int | None = None
    ttl_ms: int | None = None
    bytes: int | None = None
    replaces: str = ""
    fields: list[Field] = []


# --- all keys -------------------------------------------------------------------------------------


async def estimate_keys(engine: Engine) -> int:
    """Returns about how many keys a walk over the namespace will meet: never too few."""
    await engine.open()
    return await store_audit.count_keys(engine.ns)


async def audit(engine: Engine, *, progress: Progress = _quiet) -> list[Finding]:
    """Returns every key that should not be as it is."""
    await engine.open()
    return await store_audit.audit(engine.ns, progress=progress)


async def count_families(engine: Engine, *, progress: Progress = _quiet) -> list[FamilyCount]:
    """Counts the keys of every declared family, and last those of none, if there are any."""
    counts, _ = await _walk(engine, 0, progress)
    known = [
        FamilyCount(family.name, counts.get(family.name, 0), family.type, family.lifetime, family.holds)
        for family in FAMILIES.values()
    ]
    if unknown := counts.get("", 0):
        known.append(FamilyCount("", unknown, "", "", "Keys that nobody declared: see `weft keys audit`."))
    return known


async def weigh_families(engine: Engine, *, sample: int, progress: Progress = _quiet) -> list[FamilyMemory]:
    """Weighs the keys of every family that has some; above `sample` keys by a random sample of that many."""
    counts, samples = await _walk(engine, sample, progress)
    weights = []
    for family, keys in sorted(samples.items(), key=lambda item: -counts[item[0]]):
        sizes = []
        for at in range(0, len(keys), PAGE):
            sizes += await _sizes(engine, keys[at : at + PAGE])
        mean = sum(sizes) / len(sizes) if sizes else 0.0
        n, exact = counts[family], counts[family] <= sample
        weights.append(
            FamilyMemory(family, n, sum(sizes) if exact else round(mean * n), round(mean, 1), len(sizes), exact)
        )
    return sorted(weights, key=lambda weight: -weight.bytes)


async def _walk(engine: Engine, sample: int, progress: Progress) -> tuple[dict[str, int], dict[str, list[bytes]]]:
    """Counts keys by family and draws up to `sample` of each, every key with the same chance."""
    await engine.open()
    counts: defaultdict[str, int] = defaultdict(int)
    samples: defaultdict[str, list[bytes]] = defaultdict(list)
    async for page in store_audit.scan_keys(engine.ns):
        for key in page:
            parsed = engine.ns.keys.parse(key.decode(errors="backslashreplace"))
            family = parsed[1].name if parsed else ""
            counts[family] += 1
            drawn = samples[family]
            if len(drawn) < sample:
                drawn.append(key)
            elif sample and (place := random.randrange(counts[family])) < sample:
                drawn[place] = key
        progress(len(page))
    return counts, samples


async def _sizes(engine: Engine, keys: Sequence[bytes]) -> list[int]:
    replies = await engine.ns.read_many([("MEMORY", "USAGE", key) for key in keys], p=0)
    return [int(reply) for reply in replies if isinstance(reply, int)]


# --- one key --------------------------------------------------------------------------------------


async def explain(engine: Engine, text: str) -> list[Explanation]:
    """Explains a key, a family by its name, or all keys of a run by its id; raises NotFound."""
    await engine.open()
    if text in FAMILIES:
        return [_describe(FAMILIES[text], FAMILIES[text].template, exists=False)]
    try:
        partition_of(text)
    except NotFound:
        pass
    else:
        return await _explain_run(engine, text)
    parsed = engine.ns.keys.parse(text)
    if parsed is None:
        raise NotFound(
            f"{text!r} is no key of namespace {engine.ns.keys.namespace!r}, no run id and no family; the families are"
            f" {', '.join(FAMILIES)}"
        )
    explained = await _explain_key(engine, text)
    if explained is None:
        raise NotFound(f"there is no key {text} now; such a key would hold: {parsed[1].holds}")
    return [explained]


async def _explain_run(engine: Engine, run: str) -> list[Explanation]:
    """Explains every key that belongs to a run, then those that mention it."""
    ns, p = engine.ns, partition_of(run)
    keys = [(ns.keys.run(p, run), "the run itself")]
    row = await ns.read("HGETALL", ns.keys.run(p, run), p=p) if p < ns.partitions else []
    fields = hash_fields(row)
    if "spec" not in fields:
        raise NotFound(f"there is no run {run}: it never was, or it is no longer kept", run=run)
    if not await read_ledgers(ns, p, [run]):  # nobody can read it
        found = [await _explain_key(engine, key, role) for key, role in keys]
        return [explanation for explanation in found if explanation is not None]
    spec = SPEC_DECODER.decode(fields["spec"])
    async for page in store_audit.scan_keys(ns, pattern=ns.keys.blob(p, run, "*")):
        keys += [(key.decode(), "a large value of the run") for key in page]
    if "logged" in fields:
        keys.append((ns.keys.tasklog(p, run), "what its steps logged"))
    if spec.key:
        digest = hashlib.sha256(spec.key.encode()).hexdigest()[:32]
        keys.append((ns.keys.idempotency(p, digest), f"remembers idempotency key {spec.key!r}"))
    if spec.definition:
        keys += await _graph_keys(engine, p, run, fields["def"].decode())
    keys += _mentions(engine, p, run, fields, spec)
    roles: defaultdict[str, list[str]] = defaultdict(list)
    for key, role in keys:
        roles[key].append(role)
    found = [await _explain_key(engine, key, "; ".join(said)) for key, said in roles.items()]
    return [explanation for explanation in found if explanation is not None]


async def _graph_keys(engine: Engine, p: int, run: str, definition: str) -> list[tuple[str, str]]:
    """Returns the keys that a run has because it is of a graph; those of its open steps and maps are looked for."""
    keys = engine.ns.keys
    found = [
        (keys.ir(p, definition), "the definition it follows"),
        (keys.ledger(p, run), "its open steps"),
        (keys.context(p, run), "what its nodes gave"),
        (keys.arrivals(p, run), "who has come to its joins"),
    ]
    for pattern, role in (
        (keys.run(p, f"{run}/*"), "an open step"),
        (keys.map(p, run, "*"), "how far a map is"),
        (keys.items(p, run, "*"), "items of a map"),
        (keys.results(p, run, "*", 0).removesuffix("0") + "*", "results of a map"),
    ):
        async for page in store_audit.scan_keys(engine.ns, pattern=pattern):
            found += [(key.decode(), role) for key in page]
    return found


def _mentions(engine: Engine, p: int, run: str, fields: dict[str, bytes], spec: RunSpec) -> list[tuple[str, str]]:
    """Returns the shared keys that hold something of a run, and what."""
    keys, ledger = engine.ns.keys, fields["open"].decode()
    token = ledger.partition(":")[2]
    entries = b" ".join(fields.get(name, b"") for name in ("born", "more", "ended")).decode().split()
    mentions = []
    if not ledger.startswith("="):
        if token.startswith("#"):
            mentions.append((keys.line(p, token[1:].partition(" ")[0]), "it waits in this line"))
        elif token.startswith("@"):
            mentions.append((keys.timers(p), f"timer open:{run} gives it its next token"))
        elif "lone" in fields:
            step, about = parse_lone(fields["lone"])
            asked, entry = SPEC_DECODER.decode(about["spec"]), about["open"].decode().partition(":")[2]
            mentions.append(
                (keys.tasks(p, asked.queue, asked.priority), f"entry {entry} is the token of its step {step}")
            )
        elif token != "*":  # a graph run has no token of its own: its steps do
            mentions.append((keys.tasks(p, spec.queue, spec.priority), f"entry {token} is its token"))
        for gate in fields.get("gates", b"").decode().split():
            mentions.append((keys.gate(p, gate), "it holds a slot of this gate"))
        if "deadline" in fields:
            mentions.append((keys.timers(p), f"timer deadline:{run} fails it"))
    elif fields.get("status") == b"failed" and not spec.definition:
        mentions.append((keys.dlq(p), "lists it as a dead letter"))
    mentions.append((keys.log(p), f"entries {' '.join(dict.fromkeys(entries))} tell of it"))
    return mentions


async def _explain_key(engine: Engine, key: str, role: str = "") -> Explanation | None:
    parsed = engine.ns.keys.parse(key)
    assert parsed is not None, "built or parsed before"
    p, family, _ = parsed
    kind, ttl, size = await engine.ns.read_many([("TYPE", key), ("PTTL", key), ("MEMORY", "USAGE", key)], p=p)
    actual = _text(kind)
    if actual == "none":
        return None
    if actual != family.type:
        fields = [Field("type", f"should be a {family.type}: see `weft keys audit`", actual)]
    else:
        fields = await _READERS[actual](engine, p, family, key)
    return _describe(
        family, key, role=role, partition=p, ttl_ms=ttl if ttl >= 0 else None, bytes=size or 0, fields=fields
    )


def _describe(family: Family, key: str, **facts: Any) -> Explanation:
    return Explanation(
        key=key,
        family=family.name,
        template=family.template,
        type=family.type,
        holds=family.holds,
        lifetime=family.lifetime,
        owner=f"src/weft/{family.owner}.py",
        inspect=_inspect_command(family, key),
        replaces=family.replaces,
        **facts,
    )


def _inspect_command(family: Family, key: str) -> str:
    words = family.inspect.split()
    # The subcommand of XINFO and PUBSUB comes before the key.
    at = 2 if words[0] in ("XINFO", "PUBSUB") else 1
    return " ".join([*words[:at], f"'{key}'", *words[at:]])


async def _read_hash(engine: Engine, p: int, family: Family, key: str) -> list[Field]:
    reply = await engine.ns.read("HGETALL", key, p=p)
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return [
        Field(_text(name), family.fields.get(_text(name), ""), _decode(family, _text(name), raw)) for name, raw in pairs
    ]


async def _read_string(engine: Engine, p: int, family: Family, key: str) -> list[Field]:
    if family.name in ("blob", "secret"):
        return [Field("length", "bytes", await engine.ns.read("STRLEN", key, p=p))]
    return [Field("value", "", _text(await engine.ns.read("GET", key, p=p)))]


async def _read_stream(engine: Engine, p: int, family: Family, key: str) -> list[Field]:
    length, pending, first, last = await engine.ns.read_many(
        [
            ("XLEN", key),
            ("XPENDING", key, GROUP),
            ("XRANGE", key, "-", "+", "COUNT", 1),
            ("XREVRANGE", key, "+", "-", "COUNT", 1),
        ],
        p=p,
    )
    fields = [Field("length", "entries", length)]
    if isinstance(pending, list):
        holders = {_text(name): int(n) for name, n in pending[3] or ()}
        fields.append(Field("pending", "entries that are handed out, by session", holders))
    for name, reply in (("first", first), ("last", last)):
        if reply:
            entry = _text(reply[0][0])
            fields.append(Field(name, _time(int(entry.partition("-")[0])), entry))
    return fields


async def _read_zset(engine: Engine, p: int, family: Family, key: str) -> list[Field]:
    size, members = await engine.ns.read_many(
        [("ZCARD", key), ("ZRANGE", key, 0, SHOWN_MEMBERS - 1, "WITHSCORES")], p=p
    )
    if members and not isinstance(members[0], (tuple, list)):
        members = list(zip(members[::2], members[1::2], strict=True))
    # The score of a line is a place, of everything else a time.
    when = (lambda score: "place") if family.name == "line" else _time
    return [
        Field("size", "members", size),
        *(Field(_text(m), when(int(float(at))), int(float(at))) for m, at in members),
    ]


async def _read_set(engine: Engine, p: int, family: Family, key: str) -> list[Field]:
    return [Field("members", "", sorted(map(_text, await engine.ns.read("SMEMBERS", key, p=p))))]


async def _read_list(engine: Engine, p: int, family: Family, key: str) -> list[Field]:
    what = "log lines" if family.name == "tasklog" else "pebbles"
    return [Field("length", what, await engine.ns.read("LLEN", key, p=p))]


_READERS = {
    "hash": _read_hash,
    "string": _read_string,
    "stream": _read_stream,
    "zset": _read_zset,
    "set": _read_set,
    "list": _read_list,
}


def _decode(family: Family, field: str, raw: bytes) -> Any:
    """Returns a field's value as people read it; what cannot be decoded stays text."""
    try:
        match family.name, field:
            case "run", "spec":
                spec = SPEC_DECODER.decode(raw)
                shown = msgspec.to_builtins(msgspec.structs.replace(spec, input=b""))
                plain = {name: shown[key] for name, key in _names(spec) if key in shown}
                return plain if spec.blob or not spec.input else {**plain, "input": decode_plain(spec.input)}
            case "run", "result":
                value = VALUE_DECODER.decode(raw)
                return {"blob": value.blob, "size": value.size} if value.blob else decode_plain(value.inline)
            case "run", "error":
                return msgspec.to_builtins(ERROR_DECODER.decode(raw))
            case "schedule", "spec":
                schedule = SCHEDULE_DECODER.decode(raw)
                shown = msgspec.to_builtins(msgspec.structs.replace(schedule, run=RunSpec(schedule.run.name)))
                return {**shown, "run": schedule.run.name}
            case "sessions", _:
                return msgspec.to_builtins(SESSION_DECODER.decode(raw))
    except (WeftError, msgspec.MsgspecError, ValueError):
        pass
    return _text(raw)


def _names(spec: RunSpec) -> list[tuple[str, str]]:
    """Returns the long and the short name of every field of a spec."""
    return [(field.name, field.encode_name) for field in msgspec.structs.fields(spec)]


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _text(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
