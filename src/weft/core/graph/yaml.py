"""Reads YAML into plain dicts and lists, with the line and column of everything. Nothing is constructed by tag.

Only the parser of PyYAML is used, event by event: no recursion, and every bound is checked before memory is spent. Scalars
mean what they mean in YAML 1.2: `no` and `on` are texts, `010` is ten. Duplicate keys and tags are problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from weft.core.graph.model import MAX_BYTES, MAX_DEPTH
from weft.core.graph.problems import Path, Place, Places, Problems, show

#: Values in one document, aliases written out: what keeps a few hundred bytes from becoming gigabytes.
MAX_VALUES = 250_000
#: Documents in one file.
MAX_DOCUMENTS = 100
#: Digits of the longest number that is read as one; Python takes quadratic time to read more.
MAX_DIGITS = 400

#: The parser written in C where there is one: many times as fast, which large graphs need.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}


@dataclass(frozen=True)
class Document:
    """One document of a file: its value, where everything in it is, and what was wrong with it as YAML."""

    value: Any
    problems: Problems


_NOTHING: dict[str | int, Any] = {}


class _Located:
    """A value with the event that began it; its parts by key or index, and where the keys are."""

    __slots__ = ("event", "keys", "parts", "plain", "size")

    parts: dict[str | int, _Located]
    keys: dict[str | int, Any]

    def __init__(self, plain: Any, event: Any) -> None:
        self.plain, self.event = plain, event
        #: Counts it and everything inside, aliases written out.
        self.size = 1
        # Most values are scalars, and share one dict that stays empty.
        self.parts, self.keys = ({}, {}) if isinstance(plain, (dict, list)) else (_NOTHING, _NOTHING)


class _Where(Places):
    """Where the values of one document are. Worked out when it is asked for: most values never are."""

    def __init__(self, root: _Located, lines: list[str]) -> None:
        self._root, self._lines = root, lines

    def value(self, path: Path) -> Place | None:
        found = self._at(path)
        return None if found is None else _place(found.event.start_mark, self._lead(found.event))

    def key(self, path: Path) -> Place | None:
        around = self._at(path[:-1]) if path else None
        mark = around.keys.get(path[-1]) if around else None
        return None if mark is None else _place(mark)

    def _at(self, path: Path) -> _Located | None:
        found: _Located | None = self._root
        for step in path:
            if found is None or (step == 0 and found.parts is _NOTHING):
                return found  # a single value stands for a list of one
            found = found.parts.get(step)
        return found

    def _lead(self, event: Any) -> int | None:
        """Returns the quote before a text that stands in the file as it is: on one line, without escapes."""
        start = event.start_mark
        if not isinstance(event, yaml.ScalarEvent) or event.style in ("|", ">") or start.line >= len(self._lines):
            return None
        lead = 1 if event.style else 0
        begin = start.column + lead
        return lead if self._lines[start.line][begin : begin + len(event.value)] == event.value else None


class _Unreadable(Exception):
    """The rest of the file makes no sense."""

    def __init__(self, code: str, message: str, place: Place) -> None:
        super().__init__(message)
        self.code, self.message, self.place = code, message, place


def read_yaml(text: str) -> list[Document]:
    """Returns the documents of a file. One that cannot be read ends the list, with the problem that ended it."""
    if len(text) > MAX_BYTES or len(text.encode(errors="replace")) > MAX_BYTES:
        return [_refused("too_large", f"the file has more than {MAX_BYTES:,} bytes", Place(1, 1))]
    documents: list[Document] = []
    try:
        for document in _documents(text):
            if len(documents) == MAX_DOCUMENTS:
                raise _Unreadable("too_large", f"the file has more than {MAX_DOCUMENTS} documents", Place(1, 1))
            documents.append(document)
    except _Unreadable as error:
        documents.append(_refused(error.code, error.message, error.place))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        begun = f"(begun in line {error.context_mark.line + 1})" if error.context_mark else ""
        said = " ".join(part for part in (error.context, begun, error.problem) if part)
        documents.append(_refused("bad_yaml", f"this is not YAML: {said}", _place(mark) if mark else Place(1, 1)))
    except (yaml.YAMLError, ValueError) as error:
        said = str(error).splitlines()[0]
        documents.append(_refused("bad_yaml", f"this is not YAML: {said}", Place(1, 1)))
    return documents or [_refused("not_a_graph", "the file holds no graph", Place(1, 1))]


def _documents(text: str) -> Iterator[Document]:
    lines = text.splitlines()
    composer = None
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.DocumentStartEvent):
            composer = _Composer()
        elif isinstance(event, yaml.DocumentEndEvent):
            assert composer is not None and composer.root is not None
            # `---` alone, before the first graph or after the last, is no graph.
            if composer.root.plain is not None or composer.problems.found:
                composer.problems.places = _Where(composer.root, lines)
                yield Document(composer.root.plain, composer.problems)
        elif composer is not None:
            composer.take(event)


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not come yet."""

    located: _Located
    anchor: str | None
    #: The key whose value comes next; None when a key comes next.
    key: str | int | None = None
    merged: list[_Located] = field(default_factory=list)


class _Composer:
    """Puts the events of one document together."""

    def __init__(self) -> None:
        self.root: _Located | None = None
        self.problems = Problems()
        self._stack: list[_Open] = []
        self._anchors: dict[str, _Located] = {}
        self._n_values = 0

    def take(self, event: Any) -> None:
        """Takes the next event."""
        if isinstance(event, yaml.ScalarEvent):
            self._take_scalar(event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._open(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._close()
        elif isinstance(event, yaml.AliasEvent):
            found = self._anchors.get(event.anchor or "")
            if found is None:
                raise _Unreadable("bad_yaml", f"there is no anchor &{event.anchor} before", _place(event.start_mark))
            if self._awaits_key():
                raise _Unreadable("bad_yaml", "an alias cannot be a key", _place(event.start_mark))
            self._put(found, count=found.size)

    def _take_scalar(self, event: Any) -> None:
        if self._stack and self._stack[-1].key is None:
            self._take_key(event.value, event.start_mark)
            return
        if event.tag:
            self._refuse_tag(event)
        located = _Located(event.value if event.style else _resolve(event.value), event)
        if event.anchor:
            self._anchors[event.anchor] = located
        self._put(located)

    def _take_key(self, key: str, mark: Any) -> None:
        around = self._stack[-1]
        if key in around.located.keys and key != "<<":
            path = (*self._path(), key)
            first = around.located.keys[key].line + 1
            what = f"node {show(key)}" if path[:-1] == ("nodes",) else show(key)
            code = "duplicate_node" if path[:-1] == ("nodes",) else "duplicate_key"
            self.problems.add_at(code, f"{what} is there twice; the first is in line {first}", path, _place(mark))
        else:
            around.located.keys[key] = mark
        around.key = key

    def _open(self, event: Any) -> None:
        if self._awaits_key():
            said = "a key must be a text; braces and `${…}` at the beginning need quotes"
            raise _Unreadable("bad_yaml", said, _place(event.start_mark))
        if len(self._stack) > MAX_DEPTH:
            said = f"values are nested more than {MAX_DEPTH} levels"
            raise _Unreadable("too_deep", said, _place(event.start_mark))
        self._refuse_tag(event)
        mapping = isinstance(event, yaml.MappingStartEvent)
        located = _Located({} if mapping else [], event)
        self._stack.append(_Open(located, event.anchor, None if mapping else 0))

    def _close(self) -> None:
        done = self._stack.pop()
        n_merged = 0
        for other in done.merged:
            for key, part in other.parts.items():
                if key not in done.located.parts:
                    _add(done.located, key, part)
                    done.located.keys.setdefault(key, other.keys[key])
                    n_merged += part.size
        if done.anchor:
            # Only now: an alias inside its own anchor would never end.
            self._anchors[done.anchor] = done.located
        self._put(done.located, count=1 + n_merged)

    def _put(self, located: _Located, count: int = 1) -> None:
        """Puts a value where it belongs; `count` is what it adds to the size of the document."""
        self._n_values += count
        if self._n_values > MAX_VALUES:
            said = f"there are more than {MAX_VALUES:,} values, aliases written out"
            raise _Unreadable("too_large", said, _place(located.event.start_mark))
        if not self._stack:
            self.root = located
            return
        around = self._stack[-1]
        key = around.key
        assert key is not None
        if key == "<<" and isinstance(around.located.plain, dict):
            around.key = None
            around.located.keys.pop("<<", None)
            around.merged.extend(_mergeable(located))
            return
        if key not in around.located.parts:
            _add(around.located, key, located)
        around.key = key + 1 if isinstance(key, int) else None

    def _awaits_key(self) -> bool:
        return bool(self._stack) and self._stack[-1].key is None

    def _path(self) -> Path:
        return tuple(one.key for one in self._stack if one.key is not None)

    def _refuse_tag(self, event: Any) -> None:
        if event.tag and event.tag != "!":
            message = f"the tag {show(event.tag)} is not taken: values are plain, and quotes make a text of anything"
            self.problems.add_at("bad_yaml", message, self._path(), _place(event.start_mark))


def _add(located: _Located, key: str | int, part: _Located) -> None:
    located.parts[key] = part
    located.size += part.size
    if isinstance(located.plain, dict):
        located.plain[key] = part.plain
    else:
        located.plain.append(part.plain)


def _mergeable(located: _Located) -> list[_Located]:
    """Returns what `<<:` merges: a mapping, or a list of them, the first before the others."""
    found = [located] if isinstance(located.plain, dict) else list(located.parts.values())
    if not found or not all(isinstance(one.plain, dict) for one in found):
        raise _Unreadable("bad_yaml", "<< merges a mapping or a list of mappings", _place(located.event.start_mark))
    return found


def _resolve(text: str) -> Any:
    """Returns what a scalar without quotes means."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > MAX_DIGITS or not (text[0].isdigit() or text[0] in "+-."):
        return text
    if _INT.fullmatch(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan")) if _FLOAT.fullmatch(text) else text


def _place(mark: Any, lead: int | None = None) -> Place:
    return Place(mark.line + 1, mark.column + 1, lead)


def _refused(code: str, message: str, place: Place) -> Document:
    problems = Problems()
    problems.add_at(code, message, (), place)
    return Document(None, problems)
