"""Loads the Lua scripts: the header of each file is its signature, and this room executes it.

    #!lua flags=allow-oom
    --- commit_steps: One sentence that says what it does.
    --- KEYS epoch the partition's epoch
    --- KEYS run[] one per item
    --- ARGV epoch:str the epoch the caller knows
    --- ARGV item{kind:str delay:int value:str}[] what to do
    --- ERRS stale_epoch epoch_missing
    --- RETURNS a status per item
    --- @include lib/fence

From that the loader emits the `local` bindings, so nobody counts an index: `epoch_key`, `run_keys_at` (the run keys
are `KEYS[run_keys_at + i]`), `n_run_keys`, `epoch`, `n_item` and a function `item(i)` that returns the fields
of the i-th record. Families and error codes are checked at import; a failing line is reported as
`commit_steps.lua:31`, not `user_script:58`.

Records of one call are mostly alike. Where some fields are marked as the record's own (`value:str*`), the others are sent
once for all records that share them, and neither the caller nor the script sees the difference: a server makes an object
of each argument, and a thousand records of fifteen fields cost it more than what they are about. A field that is the
record's own in some calls only (`refs:str?`) is sent with each record where records differ in it, and else once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path

from weft.errors import BY_CODE, ScriptError, WeftError
from weft.store.keys import FAMILIES

LUA = Path(__file__).parent / "lua"

Arg = str | bytes | int
_Picker = Callable[[Sequence[Arg]], tuple[Arg, ...]]


@dataclass(frozen=True)
class KeyParam:
    family: str
    many: bool
    why: str

    @property
    def name(self) -> str:
        return self.family.replace(".", "_")


@dataclass(frozen=True)
class ArgParam:
    name: str
    type: str
    why: str
    #: A field of a record that differs from record to record: `*` always, `?` in some calls.
    own: str = ""


@dataclass(frozen=True)
class Record:
    """The records of a call: their name and fields, and which of these are sent once for all that share them."""

    name: str
    fields: tuple[ArgParam, ...]

    @property
    def shares(self) -> bool:
        return any(field.own == "*" for field in self.fields)

    @cached_property
    def _places(self) -> tuple[list[int], list[int], list[int]]:
        """Where its own fields are, those that may be, and those that are shared."""
        found: dict[str, list[int]] = {"*": [], "?": [], "": []}
        for at, field in enumerate(self.fields):
            found[field.own].append(at)
        return found["*"], found["?"], found[""]

    @cached_property
    def _pickers(self) -> tuple[_Picker, _Picker, _Picker, _Picker]:
        own, some, shared = self._places
        return _picker(own), _picker(some + shared), _picker(own + some), _picker(shared)

    def pack(self, items: Iterable[Sequence[Arg]]) -> list[Arg]:
        """Returns the records as arguments: each whole, or the shapes, then of each what is its own and which shape."""
        if not self.shares:
            return list(chain.from_iterable(items))
        own, shared, *wide = self._pickers
        n_own = len(self._places[0])
        head: list[Arg] = []
        blanks: tuple[Arg, ...] = ()
        if some := self._places[1]:
            items = list(items)
            differ = any(item[at] != items[0][at] for at in some for item in items)
            head.append(int(differ))
            if differ:
                own, shared = wide
                blanks = ("",) * len(some)
                n_own += len(some)
        shapes: dict[tuple[Arg, ...], int] = {}
        packed: list[Arg] = []
        for item in items:
            packed += own(item)
            packed.append(shapes.setdefault(shared(item), len(shapes)))
        if len(shapes) == 1:
            del packed[n_own :: n_own + 1]  # none has to tell which
        return [*head, len(shapes), *chain.from_iterable((*blanks, *shape) for shape in shapes), *packed]

    def bindings(self, first: int) -> Iterable[str]:
        """Emits the Lua lines that read the records, whose arguments begin after `first`."""
        name, lead = self.name, self.fields[0].name
        # The same few numbers come again and again, and reading one from text costs more than finding it.
        yield "local number = setmetatable({}, {__index = function(known, text)"
        yield "local value = tonumber(text) known[text] = value return value end})"
        # The rest in a block of its own: large scripts are near the 200 locals that Lua allows.
        yield f"local n_{name}, {name}_{lead}, {name}"
        yield "do"
        if not self.shares:
            width = str(len(self.fields))
            yield f"n_{name} = (#ARGV - {first}) / {width}"
            got = [_read(field, f"at + {i}") for i, field in enumerate(self.fields, start=1)]
            here, there = f"local at = {first} + (i - 1) * {width}", ""
        else:
            own, some, shared = self._places
            n_shared = len(some) + len(shared)
            width, differ, alike = f"{name}_width", f"{name}_differ", f"{name}_alike"
            n_own = str(len(own))
            if some:
                first += 1
                yield f"local {differ} = ARGV[{first}] == '1'"
                n_own = f"({differ} and {len(own) + len(some)} or {n_own})"
            # With a single shape, records do not say which one they have.
            yield f"local {alike} = ARGV[{first + 1}] == '1'"
            yield f"local {width} = {n_own} + ({alike} and 0 or 1)"
            yield f"local {name}_at = {first + 1} + ARGV[{first + 1}] * {n_shared}"
            yield f"n_{name} = (#ARGV - {name}_at) / {width}"
            # The shapes hold what may be a record's own first, a blank where it is. What was read of one is kept.
            at_own = {place: f"at + {i}" for i, place in enumerate(own + some, start=1)}
            kept = [f"shared_{i}" for i in range(1, n_shared + 1)]
            of_shape = dict(zip(some + shared, kept, strict=True))
            got = []
            for place, field in enumerate(self.fields):
                its = _read(field, at_own[place]) if field.own else ""
                got.append(f"{differ} and {its} or {of_shape[place]}" if field.own == "?" else its or of_shape[place])
            yield f"local shape, {', '.join(kept)}"
            read = ", ".join(_read(self.fields[place], f"as + {i}") for i, place in enumerate(of_shape, start=1))
            here = f"local at = {name}_at + (i - 1) * {width}"
            there = f" local as = {first + 1} + ({alike} and 0 or number[ARGV[at + {width}]] * {n_shared})"
            there += f" if as ~= shape then shape, {', '.join(kept)} = as, {read} end"
        # The first field alone, for scripts that only need to know what kind of record it is.
        yield f"function {name}_{lead}(i) {here}{there} return {got[0]} end"
        yield f"function {name}(i) {here}{there} return {', '.join(got)} end"
        yield "end"


def _picker(places: list[int]) -> _Picker:
    if not places:
        return lambda item: ()
    if len(places) == 1:
        (place,) = places
        return lambda item: (item[place],)
    return itemgetter(*places)


def _read(field: ArgParam, at: str) -> str:
    return f"number[ARGV[{at}]]" if field.type == "int" else f"ARGV[{at}]"


#: Scripts that do for ordinary items what another does for all.
SHORT_WAYS = {"start_run": "start_runs", "commit_step": "commit_steps", "commit_bare": "commit_steps"}


@dataclass(frozen=True)
class Script:
    """One atomic operation: its signature, its assembled source and where each line came from."""

    name: str
    summary: str
    keys: tuple[KeyParam, ...]
    args: tuple[ArgParam, ...]
    record: Record | None
    errors: tuple[str, ...]
    returns: str
    flags: tuple[str, ...]
    source: str
    sha: str
    origin: tuple[str, ...]

    @property
    def call(self) -> str:
        """What it does, by the name of the script whose short way it is: for whoever counts or interrupts calls."""
        return SHORT_WAYS.get(self.name, self.name)

    def pack(
        self,
        keys: Mapping[str, str | Collection[str]],
        args: Mapping[str, Arg] | None = None,
        items: Iterable[Sequence[Arg]] = (),
    ) -> list[Arg]:
        """Returns what follows EVALSHA's sha: key count, keys, counts of the repeated families, arguments, records."""
        flat: list[Arg] = []
        counts: list[Arg] = []
        for key in self.keys:
            given = keys[key.family]
            if key.many:
                counts.append(len(given))
                flat.extend(given)
            else:
                flat.append(given)  # type: ignore[arg-type]
        packed: list[Arg] = [len(flat), *flat, *counts]
        packed.extend([args[arg.name] for arg in self.args] if args else [])
        if self.record:
            packed += self.record.pack(items)
        return packed

    def translate(self, message: str) -> WeftError:
        """Returns the error a failed call means: one of our codes, or a script error with file and line."""
        if message.startswith("WEFT "):
            code, _, detail = message[5:].partition(" ")
            return BY_CODE[code](detail or None, script=self.name)
        line = re.search(r"(?:user_script|@user_script): ?(\d+)", message)
        where = self.origin[min(int(line.group(1)), len(self.origin)) - 1] if line else f"{self.name}.lua"
        return ScriptError(f"{where}: {message}", script=self.name, where=where)


@cache
def load(name: str) -> Script:
    """Reads, checks and assembles one script."""
    return _assemble(name, (LUA / f"{name}.lua").read_text())


def load_all() -> dict[str, Script]:
    """Returns every script by name; importing them all is how `make check` proves their headers."""
    return {path.stem: load(path.stem) for path in sorted(LUA.glob("*.lua"))}


def _assemble(name: str, text: str) -> Script:
    lines = text.splitlines()
    if not lines[0].startswith("#!lua"):
        raise ScriptError(f"{name}.lua:1: must begin with #!lua", script=name)
    header = _Header(name)
    out: list[tuple[str, str]] = [(lines[0], f"{name}.lua:1")]
    body: list[tuple[str, str]] = []
    for number, line in enumerate(lines[1:], start=2):
        where = f"{name}.lua:{number}"
        if line.startswith("--- @include "):
            body.extend(_include(line.removeprefix("--- @include ").strip(), where))
        elif line.startswith("--- "):
            header.read(line[4:], where)
        elif line.strip() and not line.lstrip().startswith("--"):
            body.append((line, where))
    out.extend((line, f"{name}.lua:1") for line in header.bindings("\n".join(line for line, _ in body)))
    out.extend(body)
    source = "\n".join(line for line, _ in out)
    flags = tuple(lines[0].partition("flags=")[2].split(",")) if "flags=" in lines[0] else ()
    return Script(
        name=name,
        summary=header.summary,
        keys=tuple(header.keys),
        args=tuple(header.args),
        record=header.record,
        errors=tuple(header.errors),
        returns=header.returns,
        flags=flags,
        source=source,
        sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(),
        origin=tuple(where for _, where in out),
    )


def _include(path: str, where: str) -> list[tuple[str, str]]:
    file = LUA / f"{path}.lua"
    if not file.is_file():
        raise ScriptError(f"{where}: no such include: {path}")
    found: list[tuple[str, str]] = []
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        here = f"{path}.lua:{number}"
        # A whole script may be included too: its shebang and header are its own, the includer declares them anew.
        if path.startswith("lib/") and line.startswith("--- @include "):
            found += _include(line.removeprefix("--- @include ").strip(), here)
        elif line.strip() and not line.lstrip().startswith("--") and not line.startswith("#!"):
            found.append((line, here))
    return found


class _Header:
    """Collects the signature lines of one file and checks each as it comes."""

    def __init__(self, name: str) -> None:
        self.name, self.summary, self.returns = name, "", ""
        self.keys: list[KeyParam] = []
        self.args: list[ArgParam] = []
        self.errors: list[str] = []
        self.record: Record | None = None

    def read(self, line: str, where: str) -> None:
        word, _, rest = line.partition(" ")
        first, _, why = rest.partition(" ")
        if word == f"{self.name}:":
            self.summary = rest
        elif word == "KEYS":
            self._key(first, why, where)
        elif word == "ARGV":
            self._arg(rest, where)
        elif word == "ERRS":
            unknown = [code for code in rest.split() if code not in BY_CODE]
            if unknown:
                raise ScriptError(f"{where}: unknown error codes {unknown}", script=self.name)
            self.errors.extend(rest.split())
        elif word == "RETURNS":
            self.returns = rest
        else:
            raise ScriptError(f"{where}: cannot read header line {line!r}", script=self.name)

    def _key(self, family: str, why: str, where: str) -> None:
        name = family.removesuffix("[]")
        if name not in FAMILIES:
            raise ScriptError(f"{where}: unknown key family {name!r}", script=self.name)
        self.keys.append(KeyParam(name, family.endswith("[]"), why))

    def _arg(self, rest: str, where: str) -> None:
        record = re.match(r"(\w+)\{([^}]*)\}\[\] ?(.*)", rest)
        if record:
            fields = tuple(
                ArgParam(name, kind.rstrip("*?"), "", own=kind[3:])
                for name, _, kind in (field.partition(":") for field in record.group(2).split())
            )
            self.record = Record(record.group(1), fields)
            return
        plain = re.match(r"(\w+):(str|int) ?(.*)", rest)
        if not plain or self.record:
            raise ScriptError(f"{where}: cannot read argument {rest!r}", script=self.name)
        name, kind, why = plain.groups()
        self.args.append(ArgParam(name, kind, why))

    def bindings(self, body: str) -> Iterable[str]:
        """Emits the `local` lines that the body needs. Counts of repeated families are the first arguments."""
        # Locals are twice as quick as globals, and a commit looks at its arguments some twenty times per item.
        yield "local KEYS, ARGV, call, pcall = KEYS, ARGV, redis.call, redis.pcall"
        offset, counts, last = 0, 0, ""
        for key in self.keys:
            if key.many:
                # Where a family begins: behind the one before it. How many there are is asked by few.
                yield f"local {key.name}_keys_at = " + (f"{last}_keys_at + ARGV[{counts}]" if last else str(offset))
                counts, last = counts + 1, key.name
                if re.search(rf"\bn_{key.name}_keys\b", body):
                    yield f"local n_{key.name}_keys = tonumber(ARGV[{counts}])"
            else:
                offset += 1
                yield f"local {key.name}_key = KEYS[{offset}]"
                if last:
                    raise ScriptError(f"{self.name}.lua: a single key stands after a repeated family", script=self.name)
        for index, arg in enumerate(self.args, start=counts + 1):
            yield f"local {arg.name} = " + (f"tonumber(ARGV[{index}])" if arg.type == "int" else f"ARGV[{index}]")
        if self.record:
            yield from self.record.bindings(counts + len(self.args))
