"""Templates: JSON-like values whose texts may hold `${expression}`.

A text that is only `${expr}` becomes the value itself, with its type. In a longer text the value is written into it:
text as it is, null as nothing, everything else as compact JSON. `$${` stands for `${`. Keys are never templates.
Where an expression ends its lexemes decide, so braces in quoted texts and maps close nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from weft.codec import MAX_DEPTH
from weft.core.cel.faults import Unclosed, Unreadable
from weft.core.cel.lexemes import scan
from weft.core.cel.program import MAX_POINTS
from weft.core.cel.values import MAX_RESULT, Purse
from weft.core.expressions import MAX_EXPRESSION_CHARS, Fragment, check_text, invalid
from weft.errors import InvalidExpression

#: Most expressions in one template, and how many of them could take all their points.
MAX_FRAGMENTS, MAX_COSTLY = 256, 2

_Part = str | Fragment
_Fill = Callable[[Mapping[str, Any], int | Purse], Any]


class Template:
    """A JSON-like value with expressions in its texts, compiled. Immutable: changing `value` later changes nothing.

    `names`, `nodes` and `whole` are those of all its expressions. `constant` says that it has none. Raises `InvalidExpression`
    with the place of the text (`headers.Accept`) in `facts["path"]` and the offset in it.
    """

    __slots__ = ("_fill", "_fragments", "constant", "names", "nodes", "whole")

    def __init__(self, value: Any) -> None:
        self._fragments: list[tuple[str, Fragment]] = []
        self._fill = self._compile(value, "", 0)
        self.names = frozenset(name for _, fragment in self._fragments for name in fragment.names)
        self.nodes = frozenset(node for _, fragment in self._fragments for node in fragment.nodes)
        self.whole = any(fragment.whole for _, fragment in self._fragments)
        self.constant = not self._fragments

    def evaluate(self, scope: Mapping[str, Any], *, max_points: int = MAX_POINTS) -> Any:
        """Return the value with every expression filled in, as fresh plain data. Raises `ExpressionFailed`."""
        if len(self._fragments) <= MAX_COSTLY:
            return self._fill(scope, max_points)
        return self._fill(scope, Purse(MAX_COSTLY * max_points, "expressions of the template"))

    def check_names(self, known: Collection[str]) -> None:
        """Raise `InvalidExpression` if an expression reads a name that is not known."""
        for path, fragment in self._fragments:
            try:
                fragment.check_names(known)
            except InvalidExpression as error:
                raise _at_path(error, path) from None

    def _compile(self, value: Any, path: str, depth: int) -> _Fill:
        if depth > MAX_DEPTH:
            raise InvalidExpression(f"a template is nested deeper than {MAX_DEPTH} levels, or contains itself")
        if isinstance(value, str):
            try:
                return self._compile_text(value, path)
            except InvalidExpression as error:
                raise _at_path(error, path) from None
        if isinstance(value, Mapping):
            return self._compile_map(value, path, depth)
        if isinstance(value, list | tuple):
            fills = [self._compile(item, f"{path}[{place}]", depth + 1) for place, item in enumerate(value)]
            return lambda scope, max_points: [fill(scope, max_points) for fill in fills]
        if value is None or type(value) in (bool, int, float):
            return lambda scope, max_points: value
        what = f"`{path}` is" if path else "it is"
        raise InvalidExpression(
            f"a template is JSON-like, and {what} a value of type {type(value).__name__}", path=path
        )

    def _compile_map(self, value: Mapping[Any, Any], path: str, depth: int) -> _Fill:
        fills: dict[str, _Fill] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                where = f" in `{path}`" if path else ""
                raise InvalidExpression(f"the keys of a template are text, not {type(key).__name__}{where}", path=path)
            fills[key] = self._compile(item, f"{path}.{key}" if path else key, depth + 1)
        return lambda scope, max_points: {key: fill(scope, max_points) for key, fill in fills.items()}

    def _compile_text(self, text: str, path: str) -> _Fill:
        parts = split(check_text(text))
        fragments = [part for part in parts if isinstance(part, Fragment)]
        self._fragments.extend((path, fragment) for fragment in fragments)
        if len(self._fragments) > MAX_FRAGMENTS:
            raise invalid(text, f"a template has at most {MAX_FRAGMENTS} expressions; let a task make the value", 0)
        if not fragments:
            plain = "".join(str(part) for part in parts)
            return lambda scope, max_points: plain
        if len(parts) == 1:
            return fragments[0].evaluate
        return lambda scope, max_points: _write(parts, scope, max_points)


def split(text: str) -> list[_Part]:
    """Return the parts of a text: plain ones, with `$${` unescaped, and expressions. Raises `InvalidExpression`."""
    parts: list[_Part] = []
    plain, at = "", 0
    while (found := text.find("${", at)) >= 0:
        if found > at and text[found - 1] == "$":
            plain, at = plain + text[at : found - 1] + "${", found + 2
            continue
        try:
            # Cut, so that a long text without a `}` is not scanned once for every `${` in it.
            seen = text[: found + MAX_EXPRESSION_CHARS + 3]
            end = scan(seen, found + 2, braced=True)[-1].start
        except Unclosed as problem:
            why = problem.why
            if len(seen) < len(text):
                why = f"an expression may have {MAX_EXPRESSION_CHARS} characters, and within them {why}"
            raise invalid(text, f"{why} (`$${{` stands for a plain `${{`)", problem.at) from None
        except Unreadable as problem:
            raise invalid(text, f"{problem.why} (`$${{` stands for a plain `${{`)", problem.at) from None
        if plain or found > at:
            parts.append(plain + text[at:found])
        parts.append(Fragment(text, found + 2, end))
        plain, at = "", end + 1
    if plain or at < len(text) or not parts:
        parts.append(plain + text[at:])
    return parts


def _write(parts: list[_Part], scope: Mapping[str, Any], max_points: int | Purse) -> str:
    written: list[str] = []
    size = 0
    for part in parts:
        text = part if isinstance(part, str) else _text_of(part.evaluate(scope, max_points))
        size += len(text)
        if size > MAX_RESULT and isinstance(part, Fragment):
            raise part.failed("too_large", f"the text is larger than {MAX_RESULT:,} characters; let a task make it")
        written.append(text)
    return "".join(written)


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def _at_path(error: InvalidExpression, path: str) -> InvalidExpression:
    if not path:
        return error
    return InvalidExpression(f"`{path}`: {error.message}", **{**error.facts, "path": path})
