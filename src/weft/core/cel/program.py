"""A tree to a program: one closure per node, made once, run with the names of one evaluation.

Work outside of macros happens at most once per node, so the length of the text bounds it. What grows with the data
pays: every turn of a macro for its body, and whatever touches many items or characters for those. Work that the
text alone makes certain to be too much is refused before anything runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weft.core.cel import syntax
from weft.core.cel.faults import Fault, Unreadable
from weft.core.cel.functions import FUNCTIONS, METHODS, REFUSED, Function
from weft.core.cel.lexemes import Lexeme
from weft.core.cel.operators import OPERATORS, Operator, negate
from weft.core.cel.values import CELL, KINDS, Evaluation, Purse, check_size, find, keys_of, kind_of, see, spell

#: Points of work one evaluation may cost: some tenths of a second of work, and more than any routing decision needs.
MAX_POINTS = 1_000_000

#: What a fault costs that `||` or `exists` forgets: more than a point, so that faults are no way around the budget.
FORGOTTEN = 20

#: Names under which nodes are looked up by a field: `status.fetch`.
BY_NODE = ("status", "errors")

#: Behind such a name in a scope: of all nodes, where an expression names none.
WHOLE = "*"

Closure = Callable[[Evaluation], Any]


class Program:
    """A compiled expression. `names`: the free names it reads, each with the offset of its first use.

    `nodes`: the fields it reads of `status` and `errors`; `whole`: whether it reads one of these without a field. `tree` is
    kept for checks on its form.
    """

    __slots__ = ("_run", "_size", "n_bound", "names", "nodes", "tree", "whole")

    def __init__(self, text: str, lexemes: list[Lexeme], max_points: int = MAX_POINTS) -> None:
        self.tree = syntax.parse(lexemes)
        builder = _Builder(text)
        self._run, self._size, least = builder.build(self.tree)
        if least > max_points:
            raise Unreadable(
                f"it costs at least {least:,} points of work, and {max_points:,} are the limit", self.tree.start
            )
        self.names: Mapping[str, int] = builder.names
        self.nodes: Mapping[str, int] = builder.nodes
        self.whole = builder.whole
        self.n_bound = builder.n_bound

    def run(self, scope: Mapping[str, Any], max_points: int = MAX_POINTS) -> Any:
        """Return the value of the expression. Raises `Fault`, or `Spent` when it takes more than `max_points`."""
        return self._run(Evaluation(scope, self.n_bound, max_points))

    def run_from(self, purse: Purse, scope: Mapping[str, Any]) -> Any:
        """Return the value of the expression, which others share the points with. Raises as `run`."""
        purse.left -= self._size
        given = max(0, min(purse.left, MAX_POINTS))
        evaluation = Evaluation(scope, self.n_bound, given)
        evaluation.pay(0 if purse.left >= 0 else 1)
        try:
            return self._run(evaluation)
        finally:
            purse.left -= given - max(0, evaluation.left)


def suggest(word: str, known: Any) -> str:
    """Return `; did you mean …?` for the nearest of the known words, or nothing."""
    words = [other for other, _ in zip((text for text in known if type(text) is str), range(1000), strict=False)]
    close = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean `{close[0]}`?" if close else ""


class _Builder:
    """Builds closures. Each `build` answers the closure, the nodes in it, and the least points that it takes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: dict[str, int] = {}
        self.nodes: dict[str, int] = {}
        self.whole = False
        self.slots: list[str] = []
        self.n_bound = 0

    def build(self, node: syntax.Node) -> tuple[Closure, int, int]:
        return getattr(self, f"build_{type(node).__name__.lower()}")(node)  # type: ignore[no-any-return]

    def quote(self, node: syntax.Node) -> str:
        return self.text[node.start : node.end]

    def build_literal(self, node: syntax.Literal) -> tuple[Closure, int, int]:
        value = node.value
        return (lambda evaluation: value), 1, 0

    def build_name(self, node: syntax.Name, *, by_node: bool = False) -> tuple[Closure, int, int]:
        name, at = node.name, node.start
        if name in self.slots:
            slot = len(self.slots) - 1 - self.slots[::-1].index(name)
            return (lambda evaluation: evaluation.bound[slot]), 1, 0
        if name in KINDS:
            kind = KINDS[name]
            return (lambda evaluation: kind), 1, 0
        self.names.setdefault(name, at)
        whole = name in BY_NODE and not by_node
        self.whole = self.whole or whole

        def read(evaluation: Evaluation) -> Any:
            scope = evaluation.scope
            try:
                value = scope[name + WHOLE] if whole and name + WHOLE in scope else scope[name]
            except KeyError:
                raise Fault("unknown_name", f"there is no `{name}` here", at, near=(name, evaluation.scope)) from None
            return see(value, at, evaluation)

        return read, 1, 0

    def build_select(self, node: syntax.Select) -> tuple[Closure, int, int]:
        subject, size, least = self.build_subject(node.subject, node.field, node.start)
        field, at, quoted = node.field, node.end - len(node.field), self.quote(node.subject)

        def select(evaluation: Evaluation) -> Any:
            value = subject(evaluation)
            if type(value) is dict and field in value:
                return see(value[field], at, evaluation)
            raise _no_field(value, field, quoted, at)

        return select, size + 1, least

    def build_index(self, node: syntax.Index) -> tuple[Closure, int, int]:
        named = node.key.value if isinstance(node.key, syntax.Literal) and type(node.key.value) is str else None
        subject, size, least = self.build_subject(node.subject, named, node.start)
        key, key_size, key_least = self.build(node.key)
        at, quoted = node.key.start, self.quote(node.subject)

        def index(evaluation: Evaluation) -> Any:
            return _at_index(subject(evaluation), key(evaluation), quoted, at, evaluation)

        return index, size + key_size + 1, least + key_least

    def build_subject(self, subject: syntax.Node, field: str | None, at: int) -> tuple[Closure, int, int]:
        """Builds what a field is read of; notes the node where that is `status` or `errors`."""
        if field is None or not self.is_by_node(subject):
            return self.build(subject)
        self.nodes.setdefault(field, at)
        assert isinstance(subject, syntax.Name)
        return self.build_name(subject, by_node=True)

    def is_by_node(self, subject: syntax.Node) -> bool:
        return isinstance(subject, syntax.Name) and subject.name in BY_NODE and subject.name not in self.slots

    def build_has(self, node: syntax.Has) -> tuple[Closure, int, int]:
        fields: list[str] = []
        subject: syntax.Node = node.path
        while isinstance(subject, syntax.Select):
            fields.insert(0, subject.field)
            subject = subject.subject
        root, size, least = self.build_subject(subject, fields[0], node.start)
        at, quoted = node.start, self.quote(subject)

        def has(evaluation: Evaluation) -> bool:
            value = root(evaluation)
            for field in fields:
                if value is None:
                    return False
                if type(value) is not dict:
                    raise Fault("wrong_type", f"{spell(value)} in `{quoted}` has no fields to ask for", at)
                if field not in value:
                    return False
                value = see(value[field], at, evaluation)
            return True

        return has, size + len(fields), least

    def build_listof(self, node: syntax.ListOf) -> tuple[Closure, int, int]:
        items = [self.build(item) for item in node.items]
        closures = [item[0] for item in items]

        def make(evaluation: Evaluation) -> list[Any]:
            return [closure(evaluation) for closure in closures]

        return make, 1 + sum(item[1] for item in items), sum(item[2] for item in items)

    def build_mapof(self, node: syntax.MapOf) -> tuple[Closure, int, int]:
        pairs = [(self.build(key), self.build(value)) for key, value in node.pairs]
        closures = [(key[0], value[0], pair[0].start) for (key, value), pair in zip(pairs, node.pairs, strict=True)]

        def make(evaluation: Evaluation) -> dict[str, Any]:
            made = {}
            for key, value, at in closures:
                name = key(evaluation)
                if type(name) is not str:
                    raise Fault("wrong_type", f"the keys of a map are text, not {spell(name)}; use string()", at)
                made[name] = value(evaluation)
            return made

        return make, 1 + sum(k[1] + v[1] for k, v in pairs), sum(k[2] + v[2] for k, v in pairs)

    def build_unary(self, node: syntax.Unary) -> tuple[Closure, int, int]:
        operand, size, least = self.build(node.operand)
        at, quoted = node.operand.start, self.quote(node.operand)
        if node.sign == "-":
            return (lambda evaluation: negate(operand(evaluation), at)), size + 1, least

        def invert(evaluation: Evaluation) -> bool:
            return not _truth(operand(evaluation), "!", quoted, at)

        return invert, size + 1, least

    def build_logic(self, node: syntax.Logic) -> tuple[Closure, int, int]:
        parts = [self.build(part) for part in node.parts]
        operands = [(part[0], self.quote(tree), tree.start) for part, tree in zip(parts, node.parts, strict=True)]
        sign, decides = node.sign, node.sign == "||"

        def decide(evaluation: Evaluation) -> bool:
            fault: Fault | None = None
            for operand, quoted, at in operands:
                try:
                    if _truth(operand(evaluation), sign, quoted, at) is decides:
                        return decides
                except Fault as found:
                    # CEL: whatever the order, one operand that decides makes the others irrelevant.
                    evaluation.pay(FORGOTTEN)
                    fault = fault or found
            if fault is not None:
                raise fault
            return not decides

        return decide, 1 + sum(part[1] for part in parts), parts[0][2]

    def build_chain(self, node: syntax.Chain) -> tuple[Closure, int, int]:
        first, size, least = self.build(node.first)
        rest: list[tuple[Operator, Closure, int]] = []
        for sign, tree in node.rest:
            operand, more, more_least = self.build(tree)
            size, least = size + more + 1, least + more_least
            rest.append((OPERATORS[sign], operand, tree.start))
        if len(rest) == 1:
            operator, second, at = rest[0]
            return (lambda evaluation: operator(first(evaluation), second(evaluation), at, evaluation)), size, least

        def chain(evaluation: Evaluation) -> Any:
            value = first(evaluation)
            for operator, operand, at in rest:
                value = operator(value, operand(evaluation), at, evaluation)
            return value

        return chain, size, least

    def build_choice(self, node: syntax.Choice) -> tuple[Closure, int, int]:
        condition, size, least = self.build(node.condition)
        (then, then_size, then_least), (other, other_size, other_least) = self.build(node.then), self.build(node.other)
        at, quoted = node.condition.start, self.quote(node.condition)

        def choose(evaluation: Evaluation) -> Any:
            return then(evaluation) if _truth(condition(evaluation), "?", quoted, at) else other(evaluation)

        return choose, size + then_size + other_size + 1, least + min(then_least, other_least)

    def build_call(self, node: syntax.Call) -> tuple[Closure, int, int]:
        function = _known_function(node)
        trees = (node.subject, *node.args) if node.subject else node.args
        built = [self.build(tree) for tree in trees]
        size, least = function.points + sum(part[1] for part in built), sum(part[2] for part in built)
        closures, kinds, work, at = [part[0] for part in built], function.kinds, function.call, node.start
        name, quotes = node.name, [self.quote(tree) for tree in trees]

        def call(evaluation: Evaluation) -> Any:
            values = [closure(evaluation) for closure in closures]
            for value, wanted, quoted in zip(values, kinds, quotes, strict=True):
                if wanted is not None and kind_of(value) not in wanted:
                    takes = " or ".join(kind.name for kind in wanted)
                    raise Fault("wrong_type", f"{name}() takes {takes}, and `{quoted}` is {spell(value)}", at)
            return work(*values, at, evaluation)

        return call, size, least

    def build_macro(self, node: syntax.Macro) -> tuple[Closure, int, int]:
        subject, size, least = self.build(node.subject)
        slot = len(self.slots)
        self.slots.append(node.bound)
        self.n_bound = max(self.n_bound, len(self.slots))
        bodies = [self.build(body) for body in node.args]
        self.slots.pop()
        turn = 1 + sum(body[1] for body in bodies)
        quoted = self.quote(node.subject)

        def items(evaluation: Evaluation) -> list[Any]:
            value = subject(evaluation)
            if type(value) is list:
                return value
            if type(value) is dict:
                evaluation.pay(len(value))
                return keys_of(value, node.start)
            why = f"{node.name}() goes through a list or a map, and `{quoted}` is {spell(value)}"
            raise Fault("wrong_type", why, node.start)

        def turns(evaluation: Evaluation) -> Iterator[Any]:
            bound = evaluation.bound
            for item in items(evaluation):
                evaluation.pay(turn)
                bound[slot] = seen = see(item, node.start, evaluation)
                yield seen

        loop = _Loop(turns, [body[0] for body in bodies], node, self.quote(node.args[0]))
        if isinstance(node.subject, syntax.ListOf) and node.name not in ("all", "exists"):
            least += len(node.subject.items) * (turn + bodies[0][2])
        return loop.closure(), size + turn, least


class _Loop:
    """A macro: `turns` binds one item after the other, pays for it and yields it."""

    def __init__(
        self, turns: Callable[[Evaluation], Iterator[Any]], bodies: list[Closure], node: syntax.Macro, quoted: str
    ) -> None:
        self.turns, self.bodies, self.name = turns, bodies, node.name
        self.quoted, self.at = quoted, node.args[0].start

    def closure(self) -> Closure:
        if self.name in ("all", "exists"):
            return self.fold
        if self.name in ("exists_one", "existsOne"):
            return lambda evaluation: sum(1 for _ in self.kept(evaluation, self.bodies[0])) == 1
        if self.name == "filter":
            return lambda evaluation: self.checked(list(self.kept(evaluation, self.bodies[0])))
        body = self.bodies[-1]
        if len(self.bodies) == 1:
            return lambda evaluation: self.checked([body(evaluation) for _ in self.turns(evaluation)])
        return lambda evaluation: self.checked([body(evaluation) for _ in self.kept(evaluation, self.bodies[0])])

    def kept(self, evaluation: Evaluation, test: Closure) -> Iterator[Any]:
        for item in self.turns(evaluation):
            if _truth(test(evaluation), self.name, self.quoted, self.at):
                yield item

    def checked(self, collected: list[Any]) -> list[Any]:
        check_size(len(collected) * CELL, self.at)
        return collected

    def fold(self, evaluation: Evaluation) -> bool:
        """End at the first item that decides, and forget faults before it."""
        decides, body = self.name == "exists", self.bodies[0]
        fault: Fault | None = None
        for _ in self.turns(evaluation):
            try:
                if _truth(body(evaluation), self.name, self.quoted, self.at) is decides:
                    return decides
            except Fault as found:
                evaluation.pay(FORGOTTEN)
                fault = fault or found
        if fault is not None:
            raise fault
        return not decides


def _known_function(node: syntax.Call) -> Function:
    table = FUNCTIONS if node.subject is None else METHODS
    function = table.get(node.name)
    if function is None:
        if node.name in REFUSED:
            raise Unreadable(f"{node.name}() is not part of expressions: {REFUSED[node.name]}", node.start)
        if node.subject is None and (node.name in METHODS or node.name in syntax.MACROS):
            raise Unreadable(f"{node.name}() is written after what it is about: `x.{node.name}(…)`", node.start)
        if node.subject is not None and node.name in FUNCTIONS:
            raise Unreadable(f"{node.name}() is written before what it is about: `{node.name}(x)`", node.start)
        known = [*table, "has"] if node.subject is None else [*table, *syntax.MACROS]
        raise Unreadable(f"there is no function `{node.name}`{suggest(node.name, known)}", node.start)
    wanted, given = len(function.kinds), len(node.args) + (node.subject is not None)
    if wanted != given:
        less = wanted - (node.subject is not None)
        raise Unreadable(
            f"{node.name}() takes {less} argument{'' if less == 1 else 's'}, not {len(node.args)}", node.start
        )
    return function


def _truth(value: Any, sign: str, quoted: str, at: int) -> bool:
    if value is True or value is False:
        return value
    raise Fault("wrong_type", f"`{sign}` needs true or false, and `{quoted}` is {spell(value)}", at)


def _no_field(value: Any, field: str, quoted: str, at: int) -> Fault:
    if type(value) is dict:
        why = f"`{quoted}` has no field `{field}`; ask with `has({quoted}.{field})` first if it may be missing"
        return Fault("missing_field", why, at, near=(field, value))
    if value is None:
        why = f"`{quoted}` is null, so it has no field `{field}`; a node that was skipped or failed is null: ask with "
        return Fault("missing_field", f"{why}`has({quoted}.{field})` first", at)
    return Fault("wrong_type", f"`{quoted}` is {spell(value)}, so it has no field `{field}`", at)


def _at_index(value: Any, key: Any, quoted: str, at: int, evaluation: Evaluation) -> Any:
    if type(value) is dict:
        if type(key) not in (str, int):
            raise Fault("wrong_type", f"the keys of a map are text, not {spell(key)}", at)
        found, item = find(value, key)
        if not found:
            raise Fault("missing_field", f"`{quoted}` has no such key; ask with `key in {quoted}` first", at)
        return see(item, at, evaluation)
    if type(value) is not list:
        raise Fault("wrong_type", f"`{quoted}` is {spell(value)}; only lists and maps have items", at)
    # A double that is whole, for JSON does not tell 1.0 from 1.
    if type(key) is float and key.is_integer():
        key = int(key)
    if type(key) is not int:
        raise Fault("wrong_type", f"the items of a list are counted, and the index is {spell(key)}", at)
    if not 0 <= key < len(value):
        raise Fault("missing_item", f"`{quoted}` has {len(value)} items, counted from 0; compare with size() first", at)
    return see(value[key], at, evaluation)
