"""How single values of a definition are read: each kind returns the value as it is kept, or notes a problem.

A reader that refuses a value returns None, which is what a definition holds that does not say anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from weft.clock import parse_duration_ms, parse_rate
from weft.core.graph.model import MAX_DEPTH, MAX_NODES
from weft.core.graph.problems import Path, Problems, show, similar
from weft.errors import InvalidOption
from weft.ids import check_name

Read = Callable[[Any, Path, Problems], Any]

_UNFIT = re.compile("[\0\ud800-\udfff]")
_SCALARS = (str, int, float, bool, type(None))


class GatherRule(NamedTuple):
    """When a map is done: `all`, `any`, `first` k, `quorum` of a share, or at a `deadline`."""

    kind: str
    k: int = 0
    share: float = 0.0
    ms: int = 0

    def needed(self, n: int) -> int:
        """Returns how many of n items must complete; 0: all are waited for."""
        if self.kind == "quorum":
            return math.ceil(round(self.share * n, 9))  # 0.07 * 100 is a little more than 7
        return {"any": 1, "first": min(self.k, n)}.get(self.kind, 0)


def text(value: Any, path: Path, problems: Problems) -> Any:
    """A text that is not empty."""
    if isinstance(value, str) and value.strip() and _fits(value):
        return value
    hint = f': write it in quotes, as "{value}"' if isinstance(value, (int, float)) else ""
    problems.add("bad_value", f"{path[-1]} must be a text, not {show(value)}{hint}", path)
    return None


def name(value: Any, path: Path, problems: Problems) -> Any:
    """The name of a task, queue, graph or agent: it is looked up, so nothing is filled in."""
    try:
        return check_name(value, what=str(path[-1]))
    except InvalidOption as error:
        problems.add("bad_value", error.message, path)
        return None


def condition(value: Any, path: Path, problems: Problems) -> Any:
    """A CEL expression. Whether it is one is told later, with everything else that is wrong with it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return text(value, path, problems)


def template(value: Any, path: Path, problems: Problems) -> Any:
    """Any JSON value; texts inside it may hold `${…}`."""
    return value if plain(value, path, problems) else None


def mapping(value: Any, path: Path, problems: Problems) -> Any:
    """A mapping whose values are templates."""
    if not isinstance(value, dict):
        problems.add("bad_value", f"{path[-1]} must be a mapping of names and values, not {show(value)}", path)
        return None
    return template(value, path, problems)


def plain(value: Any, path: Path, problems: Problems) -> bool:
    """Tells whether a value is plain JSON, not too deep; walks it without recursion."""
    line: list[tuple[Any, Path]] = [(value, path)]
    while line:
        item, at = line.pop()
        if len(at) - len(path) > MAX_DEPTH:
            problems.add("too_deep", f"{path[-1]} is nested more than {MAX_DEPTH} levels", path)
            return False
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str) or not _fits(key):
                    problems.add("bad_value", f"a key must be a text, not {show(key)}", at)
                    return False
            line.extend((part, (*at, key)) for key, part in item.items())
        elif isinstance(item, (list, tuple)):
            line.extend((part, (*at, i)) for i, part in enumerate(item))
        elif not isinstance(item, _SCALARS) or not _fits(item):
            problems.add("bad_value", f"{show(item)} is not a value that JSON carries", at)
            return False
    return True


def _fits(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, str):
        # Lone surrogates have no bytes, and NUL is refused by the databases it would end up in.
        return _UNFIT.search(value) is None
    return True


def flag(value: Any, path: Path, problems: Problems) -> Any:
    if isinstance(value, bool):
        return value
    problems.add("bad_value", f"{path[-1]} must be true or false, not {show(value)}", path)
    return None


def whole(low: int, high: int) -> Read:
    """A whole number within bounds."""

    def read(value: Any, path: Path, problems: Problems) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        problems.add("bad_value", f"{path[-1]} must be a whole number from {low} to {high:,}, not {show(value)}", path)
        return None

    return read


def whole_or_template(low: int, high: int) -> Read:
    number = whole(low, high)

    def read(value: Any, path: Path, problems: Problems) -> Any:
        return (
            text(value, path, problems) if isinstance(value, str) and "${" in value else number(value, path, problems)
        )

    return read


def choice(*words: str) -> Read:
    """One of a few words."""

    def read(value: Any, path: Path, problems: Problems) -> Any:
        if isinstance(value, str) and value in words:
            return value
        hint = similar(value, words) or f"; there are {', '.join(words)}"
        problems.add("bad_value", f"{path[-1]} cannot be {show(value)}{hint}", path)
        return None

    return read


def duration(value: Any, path: Path, problems: Problems) -> Any:
    """A length of time above zero."""
    try:
        parse_duration_ms(value, what=str(path[-1]), allow_zero=False)
    except InvalidOption as error:
        problems.add("bad_duration", error.message, path)
        return None
    return value


def delay(value: Any, path: Path, problems: Problems) -> Any:
    """A length of time that may be zero."""
    return value if value == 0 and not isinstance(value, bool) else duration(value, path, problems)


def duration_or_template(value: Any, path: Path, problems: Problems) -> Any:
    return text(value, path, problems) if isinstance(value, str) and "${" in value else duration(value, path, problems)


def rate(value: Any, path: Path, problems: Problems) -> Any:
    try:
        parse_rate(value, what=str(path[-1]))
    except InvalidOption as error:
        problems.add("bad_rate", error.message, path)
        return None
    return value


def several(one: Read, *, empty: bool = False) -> Read:
    """A list; a single value counts as a list of one."""

    def read(value: Any, path: Path, problems: Problems) -> Any:
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        if not items and not empty:
            problems.add("bad_value", f"{path[-1]} is an empty list: leave it out or name something", path)
            return None
        kept = [
            one(item, (*path, i) if isinstance(value, (list, tuple)) else path, problems)
            for i, item in enumerate(items)
        ]
        return [item for item in kept if item is not None]

    return read


def node_name(value: Any, path: Path, problems: Problems) -> Any:
    """The id of another node; whether it exists is told later."""
    if isinstance(value, str) and value and _fits(value):
        return value
    problems.add("bad_value", f"a node is named by a text, not {show(value)}", path)
    return None


def join(value: Any, path: Path, problems: Problems) -> Any:
    if value in ("all", "any") or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_NODES):
        return value
    problems.add("bad_value", f"join must be all, any or a whole number from 1, not {show(value)}", path)
    return None


_GATHER = re.compile(r"(all|any)|(first|quorum|deadline)\(\s*([^()]*?)\s*\)")


def parse_gather(value: str) -> GatherRule:
    """Returns when a map is done; raises ValueError with a sentence for what says nothing."""
    match = _GATHER.fullmatch(value.strip())
    if match is None:
        raise ValueError("gather must be all, any, first(k), quorum(p) or deadline(t), such as first(3) or quorum(80%)")
    word, given = match[2], match[3]
    if match[1]:
        return GatherRule(match[1])
    if word == "deadline":
        return GatherRule(word, ms=parse_duration_ms(given, what="deadline", allow_zero=False))
    if word == "first":
        if not re.fullmatch(r"[1-9][0-9]{0,8}", given):
            raise ValueError(f"first({given[:SHOWN]}): k must be a whole number from 1")
        return GatherRule(word, k=int(given))
    number = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)(%?)", given)
    share = 0.0 if number is None else float(number[1]) / (100 if number[2] else 1)
    if not 0 < share <= 1:
        raise ValueError(f"quorum({given[:SHOWN]}): p must be a share above 0 and up to 1, such as 0.8 or 80%")
    return GatherRule(word, share=share)


#: How much of a refused rule a message repeats, in characters.
SHOWN = 20


def gather(value: Any, path: Path, problems: Problems) -> Any:
    try:
        if not isinstance(value, str):
            raise ValueError(f"gather must be all, any, first(k), quorum(p) or deadline(t), not {show(value)}")
        parse_gather(value)
    except (ValueError, InvalidOption) as error:
        problems.add("bad_gather", str(error), path)
        return None
    return value


def url(value: Any, path: Path, problems: Problems) -> Any:
    found = text(value, path, problems)
    if found and not found.startswith(("http://", "https://", "${")):
        problems.add("bad_url", f"url must begin with http:// or https://, not {show(found)}", path)
        return None
    return found


def statuses(value: Any, path: Path, problems: Problems) -> Any:
    """Statuses of HTTP: one such as 200, a class such as 2xx, or a span such as 200-204."""
    if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
        return value
    match = re.fullmatch(r"[1-5]xx|([1-5][0-9]{2})(?:-([1-5][0-9]{2}))?", value) if isinstance(value, str) else None
    if match and (match[1] or "") <= (match[2] or match[1] or ""):
        return value
    field = next(part for part in reversed(path) if isinstance(part, str))
    problems.add("bad_value", f"{field} takes statuses such as 200, 2xx or 200-204, not {show(value)}", path)
    return None


def body(value: Any, path: Path, problems: Problems) -> Any:
    """What a request carries: a text, `{secret: NAME}`, or `{base64: …}` for bytes."""
    if not isinstance(value, dict):
        return text(value, path, problems)
    if value.keys() != {"base64"} and not {"secret"} <= value.keys() <= {"secret", "prefix"}:
        problems.add("bad_value", f"body must be a text, {{secret: NAME}} or {{base64: …}}, not {show(value)}", path)
        return None
    return {key: kept for key, part in value.items() if (kept := text(part, (*path, key), problems)) is not None}


def flag_or_text(value: Any, path: Path, problems: Problems) -> Any:
    return value if isinstance(value, bool) else text(value, path, problems)


def parts(required: Sequence[str], table: dict[str, Read], short: str = "") -> Read:
    """A mapping with fields of its own; `short` names the one that a value without a mapping stands for."""

    def read(value: Any, path: Path, problems: Problems) -> Any:
        place = f"{path[-2]}[{path[-1]}]" if isinstance(path[-1], int) else path[-1]
        if not isinstance(value, dict):
            if short:
                kept = table[short](value, path, problems)
                return None if kept is None else {short: kept}
            problems.add("bad_value", f"{place} must be a mapping with {', '.join(table)}, not {show(value)}", path)
            return None
        kept = {}
        for field, item in value.items():
            if field not in table:
                hint = similar(field, table) or f"; there are {', '.join(table)}"
                problems.add(
                    "unknown_field", f"there is no field {show(field)} here{hint}", (*path, field), at_key=True
                )
            elif (found := table[field](item, (*path, field), problems)) is not None:
                kept[field] = found
        for field in required:
            if field not in value or value[field] is None:
                problems.add("missing_field", f"{place} needs {field}", path)
        return kept if all(field in kept for field in required) else None

    return read


def stated_cases(value: Any, path: Path, problems: Problems) -> Any:
    """The cases of a branch: a list of `{when, to}`."""
    if not isinstance(value, (list, tuple)) or not value:
        said = "an empty one" if value in ([], ()) else show(value)
        problems.add("bad_value", f"cases must be a list of {{when, to}}, not {said}", path)
        return None
    read = parts(("when", "to"), {"when": condition, "to": node_name})
    return [case for i, item in enumerate(value) if (case := read(item, (*path, i), problems)) is not None]
