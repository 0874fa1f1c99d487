"""Expressions of graphs: CEL over the JSON form of values, compiled once, evaluated within a budget.

`when`, `while`, `map`, `filter` and `group_by` take them bare. Pure: no clock, no I/O, nothing of Python can be
reached. What cannot be read is refused as `InvalidExpression` when it is declared, what cannot be evaluated is
`ExpressionFailed` when it runs; both say where. The language itself is in `core/cel/`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from typing import Any

from weft.core.cel import syntax
from weft.core.cel.faults import Fault, Spent, Unreadable
from weft.core.cel.lexemes import KEYWORDS, RESERVED, scan
from weft.core.cel.program import BY_NODE, MAX_POINTS, Program, suggest
from weft.core.cel.values import KINDS, Purse, spell, to_plain
from weft.errors import ExpressionFailed, InvalidExpression, InvalidOption

#: Longest expression, in characters.
MAX_EXPRESSION_CHARS = 4096

#: An expression that is evaluated for many items at once may cost this much more for each of them, up to some seconds of work,
#: and beyond that what a short expression takes.
ITEM_POINTS, ITEMS_POINTS, SHORT_POINTS = 500, 9_000_000, 50

#: Programs kept compiled, so that an expression met again costs nothing to read.
KEPT_PROGRAMS = 4096

#: Names that expressions of graphs already use; no node may have one.
RESERVED_NAMES = frozenset({"input", "item", "index", "iteration", *BY_NODE})

#: How much of an expression a message repeats, in characters.
SHOWN_CHARS = 80

_NODE_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def purse_for(n_items: int) -> Purse:
    """Returns the points that an expression may cost which is evaluated for each of so many items."""
    return Purse(MAX_POINTS + min(ITEM_POINTS * n_items, ITEMS_POINTS + SHORT_POINTS * n_items), "items")


class Fragment:
    """An expression inside a text: `text[start:end]`. Its errors give places in the whole text."""

    __slots__ = ("end", "names", "nodes", "program", "start", "text", "whole")

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.start, self.end = text, start, end
        try:
            self.program = _compile(text[start:end])
        except Unreadable as problem:
            raise invalid(text, problem.why, start + problem.at) from None
        self.names = frozenset(self.program.names)
        self.nodes = frozenset((self.names - RESERVED_NAMES) | set(self.program.nodes))
        self.whole = self.program.whole

    def evaluate(self, scope: Mapping[str, Any], points: int | Purse) -> Any:
        """Return the value as plain data of its own. Raises `ExpressionFailed`."""
        try:
            if isinstance(points, Purse):
                return to_plain(self.program.run_from(points, scope))
            return to_plain(self.program.run(scope, points))
        except Fault as fault:
            raise self.failed(
                fault.reason, fault.why + (suggest(*fault.near) if fault.near else ""), fault.at
            ) from None
        except Spent:
            many, whose = (
                (points, "") if isinstance(points, int) else (points.all, f" for all {points.sharers} together")
            )
            if isinstance(points, Purse) and points.left > 0:
                many, whose = MAX_POINTS, ""  # one item alone took more than any evaluation may
            why = f"it costs more than {many:,} points of work{whose}; go through fewer items, or let a task do it"
            raise self.failed("too_costly", why) from None
        except RecursionError:
            raise self.failed("too_deep", "the values are nested too deep") from None

    def failed(self, reason: str, why: str, at: int = 0) -> ExpressionFailed:
        """Return the error, with the place in the whole text."""
        offset = self.start + at
        where = f"{_show(self.text)} failed at {_place(self.text, offset)}"
        return ExpressionFailed(f"{where}: {why}", reason=reason, expression=self.text, offset=offset)

    def check_names(self, known: Collection[str]) -> None:
        """Raise `InvalidExpression` for the first name, or node behind `status` and `errors`, that is not known."""
        for found, what in ((self.program.names, "name"), (self.program.nodes, "node")):
            for name, at in found.items():
                if name not in known:
                    raise invalid(self.text, f"there is no {what} `{name}` here{suggest(name, known)}", self.start + at)


class Expression:
    """A CEL expression, compiled. Immutable and safe to share; equal texts share one program.

    `text` is the expression as given, `${}` around it tolerated. `names` are the free names it reads: `fetch`, `input`,
    `status`; names that macros bind are not among them. `nodes` are the nodes it depends on: its names that are not
    reserved, and `x` of `status.x` and `errors.x`; `whole` says that it reads one of these without naming a node. Raises
    `InvalidExpression`.
    """

    __slots__ = ("_fragment", "names", "nodes", "text", "whole")

    def __init__(self, text: str) -> None:
        self.text = check_text(text)
        self._fragment = Fragment(self.text, *_inner(self.text))
        self.names, self.nodes, self.whole = self._fragment.names, self._fragment.nodes, self._fragment.whole

    def evaluate(self, scope: Mapping[str, Any], *, max_points: int | Purse = MAX_POINTS) -> Any:
        """Return the value: None, bool, int, float, str, or fresh lists and dicts of them.

        `scope` gives the names; only what the expression touches is looked at. A result that is a timestamp or a
        duration is text. Raises `ExpressionFailed`, whose `reason` is one stable word.
        """
        return self._fragment.evaluate(scope, max_points)

    def check_names(self, known: Collection[str]) -> None:
        """Raise `InvalidExpression`, with the nearest known name, if the expression reads a name that is not known."""
        self._fragment.check_names(known)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.text == other.text

    def __hash__(self) -> int:
        return hash((type(self), self.text))


class Condition(Expression):
    """An expression that is true or false. One that can never be is refused at once."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        super().__init__(text)
        if never := _never_bool(self._fragment.program.tree):
            why = f"a condition is true or false, and this is {never}; {_COMPARE}"
            raise invalid(self.text, why, self._fragment.start)

    def evaluate(self, scope: Mapping[str, Any], *, max_points: int | Purse = MAX_POINTS) -> bool:
        """Return whether it holds. Raises `ExpressionFailed`, also for a value that is neither true nor false."""
        value = self._fragment.evaluate(scope, max_points)
        if value is True or value is False:
            return value
        why = f"a condition is true or false, and this is {spell(value)}; {_COMPARE}"
        raise self._fragment.failed("not_bool", why)


def check_node_id(text: str) -> str:
    """Return `text` if a node can have it as its id, which expressions read as a name; raise `InvalidOption` if not."""
    if not isinstance(text, str) or not _NODE_ID.fullmatch(text):
        raise InvalidOption(
            f"node id: {_show(text)} is not one; use 1 to 64 of A-Z a-z 0-9 _, not beginning with a digit", option="id"
        )
    taken = "a word of CEL" if text in KEYWORDS | RESERVED | set(KINDS) else ""
    taken = taken or ("a name that expressions already use" if text in RESERVED_NAMES else "")
    if taken:
        raise InvalidOption(f"node id: `{text}` is {taken}; choose another, such as `{text}_step`", option="id")
    return text


def check_text(text: str) -> str:
    """Return `text` if it can hold an expression; raise `InvalidExpression` if it is no text, or too long."""
    if not isinstance(text, str):
        raise InvalidExpression(f"an expression is a text, not a value of type {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise invalid(text, "a lone surrogate is not valid text", error.start) from None
    return text


def invalid(text: str, why: str, offset: int) -> InvalidExpression:
    """Return the error about a text, with the place."""
    return InvalidExpression(
        f"{_show(text)} cannot be read at {_place(text, offset)}: {why}",
        expression=text[:MAX_EXPRESSION_CHARS],
        offset=offset,
    )


@functools.lru_cache(maxsize=KEPT_PROGRAMS)
def _compile(text: str) -> Program:
    if len(text) > MAX_EXPRESSION_CHARS:
        why = f"it has {len(text):,} characters, and {MAX_EXPRESSION_CHARS:,} are the limit; let a task decide"
        raise Unreadable(why, 0)
    return Program(text, scan(text))


def _inner(text: str) -> tuple[int, int]:
    """Return where the bare expression begins and ends in a text that may have `${}` around it."""
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    if not text.startswith("${", start):
        return start, max(start, end)
    try:
        closing = scan(text[: start + MAX_EXPRESSION_CHARS + 3], start + 2, braced=True)[-1].start
    except Unreadable as problem:
        raise invalid(text, problem.why, problem.at) from None
    if closing + 1 != end:
        raise invalid(text, "only one `${}` may stand around a whole expression; write names bare", closing + 1)
    return start + 2, closing


_COMPARE = "compare it with something, as in `size(fetch.pages) > 0` or `fetch.title != ''`"
_ARITHMETIC = frozenset("+-*/%")


def _never_bool(tree: syntax.Node) -> str:
    if isinstance(tree, syntax.ListOf | syntax.MapOf):
        return "a list" if isinstance(tree, syntax.ListOf) else "a map"
    if isinstance(tree, syntax.Literal) and type(tree.value) is not bool:
        return spell(tree.value)
    if isinstance(tree, syntax.Macro) and tree.name in ("map", "filter"):
        return "a list"
    if isinstance(tree, syntax.Call) and tree.name == "size":
        return "an int"
    if isinstance(tree, syntax.Chain) and tree.rest[-1][0] in _ARITHMETIC:
        return "the result of arithmetic"
    return ""


def _place(text: str, offset: int) -> str:
    line = text.count("\n", 0, offset)
    column = offset - text.rfind("\n", 0, offset)
    return f"line {line + 1}, column {column}" if line else f"column {column}"


def _show(text: object) -> str:
    if not isinstance(text, str):
        return f"a value of type {type(text).__name__}"
    shown = ascii(text) if not text.isprintable() else f"`{text}`"
    return shown if len(shown) <= SHOWN_CHARS else f"{shown[:SHOWN_CHARS]}…"
