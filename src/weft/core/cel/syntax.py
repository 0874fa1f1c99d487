"""Lexemes to a tree. Nesting and height are capped here, so that no text can exhaust the stack later."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from weft.core.cel.faults import Unreadable
from weft.core.cel.lexemes import KEYWORDS, MAX_INT, RESERVED, Lexeme

#: Brackets, calls and `?:` inside each other, at most.
MAX_NESTING = 32

#: Height of the tree, at most: what evaluation needs of the stack.
MAX_HEIGHT = 100

#: Macros (`all`, `map`, …) inside the body of each other, at most: each level multiplies the work.
MAX_MACROS = 4

#: Macros with the numbers of arguments they take; the first argument is the name they bind.
MACROS = {"all": (2,), "exists": (2,), "exists_one": (2,), "existsOne": (2,), "map": (2, 3), "filter": (2,)}

_LEVELS = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"))
_LEVEL_OF = {sign: level for level, signs in enumerate(_LEVELS) for sign in signs}


class Node(Struct, frozen=True):
    """A part of an expression: its place in the text and how high the tree below it is."""

    start: int
    end: int
    height: int


class Literal(Node, frozen=True):
    value: Any


class Name(Node, frozen=True):
    name: str


class Select(Node, frozen=True):
    subject: Node
    field: str


class Index(Node, frozen=True):
    subject: Node
    key: Node


class Call(Node, frozen=True):
    name: str
    subject: Node | None
    args: tuple[Node, ...]


class Macro(Node, frozen=True):
    name: str
    subject: Node
    bound: str
    args: tuple[Node, ...]


class Has(Node, frozen=True):
    path: Select


class ListOf(Node, frozen=True):
    items: tuple[Node, ...]


class MapOf(Node, frozen=True):
    pairs: tuple[tuple[Node, Node], ...]


class Unary(Node, frozen=True):
    sign: str
    operand: Node


class Logic(Node, frozen=True):
    """Operands joined by `&&` or by `||`, however many."""

    sign: str
    parts: tuple[Node, ...]


class Chain(Node, frozen=True):
    """Operators of one level, left to right: a long sum is a long list, not a high tree."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


class Choice(Node, frozen=True):
    condition: Node
    then: Node
    other: Node


def parse(lexemes: list[Lexeme]) -> Node:
    """Return the tree of an expression. Raises `Unreadable` with the place."""
    parser = _Parser(lexemes)
    if parser.here.kind == "end":
        raise Unreadable("the expression is empty", parser.here.start)
    tree = parser.expression()
    if parser.here.kind != "end":
        raise parser.unexpected("the end or an operator")
    return tree


class _Parser:
    def __init__(self, lexemes: list[Lexeme]) -> None:
        self.lexemes, self.at, self.nesting, self.macros = lexemes, 0, 0, 0

    @property
    def here(self) -> Lexeme:
        return self.lexemes[self.at]

    def take(self) -> Lexeme:
        lexeme = self.lexemes[self.at]
        self.at += 1
        return lexeme

    def sees(self, *signs: str) -> bool:
        return self.here.kind == "sign" and self.here.value in signs

    def accept(self, sign: str) -> bool:
        if self.sees(sign):
            self.at += 1
            return True
        return False

    def expect(self, sign: str) -> Lexeme:
        if not self.sees(sign):
            raise self.unexpected(f"`{sign}`")
        return self.take()

    def unexpected(self, wanted: str) -> Unreadable:
        lexeme = self.here
        if lexeme.kind == "end":
            return Unreadable(f"the expression ends where {wanted} is expected", lexeme.start)
        shown = f"`{lexeme.value}`" if lexeme.kind in ("sign", "name") else f"this {lexeme.kind}"
        return Unreadable(f"{shown} stands where {wanted} is expected", lexeme.start)

    def made(self, cls: type[Any], start: int, children: tuple[Node, ...], *fields: Any) -> Any:
        height = 1 + max((child.height for child in children), default=0)
        if height > MAX_HEIGHT:
            raise Unreadable(f"the expression is nested more than {MAX_HEIGHT} levels high; split it up", start)
        return cls(start, self.lexemes[self.at - 1].end, height, *fields)

    def expression(self) -> Node:
        start = self.here.start
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise Unreadable(f"the expression is nested more than {MAX_NESTING} levels deep; split it up", start)
        node = self.binary(0)
        if self.accept("?"):
            then = self.binary(0)
            if self.sees("?"):
                raise Unreadable("put the inner `?:` in parentheses", self.here.start)
            self.expect(":")
            other = self.expression()
            node = self.made(Choice, start, (node, then, other), node, then, other)
        self.nesting -= 1
        return node

    def binary(self, level: int) -> Node:
        """Parse operands joined by operators of `level` and above."""
        start = self.here.start
        node = self.unary()
        while (found := self.operator_level()) >= level:
            rest: list[tuple[str, Node]] = []
            while self.operator_level() == found:
                sign = self.take().value
                rest.append((sign, self.binary(found + 1)))
            operands = (node, *(operand for _, operand in rest))
            if found < 2:
                node = self.made(Logic, start, operands, _LEVELS[found][0], operands)
            else:
                node = self.made(Chain, start, operands, node, tuple(rest))
        return node

    def operator_level(self) -> int:
        lexeme = self.here
        if lexeme.kind == "sign" or (lexeme.kind == "name" and lexeme.value == "in"):
            return _LEVEL_OF.get(lexeme.value, -1)
        return -1

    def unary(self) -> Node:
        start, signs = self.here.start, 0
        sign = self.here.value if self.sees("!", "-") else ""
        while sign and self.sees(sign):
            self.take()
            signs += 1
        if self.sees("!", "-"):
            raise self.unexpected("a value")
        if sign == "-" and self.here.kind in ("int", "float"):
            # With its sign, for the smallest integer has no positive twin.
            number = self.take()
            return self.postfix(self.literal(number, start, (-1) ** signs))
        node = self.postfix(self.primary())
        if not signs:
            return node
        # An even number of signs still asks for a boolean or a number, so two are left of them.
        for _ in range(2 - signs % 2):
            node = self.made(Unary, start, (node,), sign, node)
        return node

    def literal(self, lexeme: Lexeme, start: int, factor: int = 1) -> Node:
        value = lexeme.value * factor if factor != 1 else lexeme.value
        if lexeme.kind == "int" and not -MAX_INT - 1 <= value <= MAX_INT:
            raise Unreadable("this integer is beyond 64 bits; write it as a text or a double", start)
        return self.made(Literal, start, (), value)  # type: ignore[no-any-return]

    def primary(self) -> Node:
        lexeme = self.here
        start = lexeme.start
        if lexeme.kind in ("int", "float", "text"):
            return self.literal(self.take(), start)
        if lexeme.kind == "name":
            return self.named(self.take())
        if self.accept("("):
            node = self.expression()
            # With its parentheses, so that a message that quotes it quotes all of it.
            return replace(node, start=start, end=self.expect(")").end)
        if self.accept("["):
            items = tuple(self.listed("]"))
            return self.made(ListOf, start, items, items)  # type: ignore[no-any-return]
        if self.accept("{"):
            return self.map_of(start)
        raise self.unexpected("a value")

    def named(self, lexeme: Lexeme) -> Node:
        name = lexeme.value
        if name in ("true", "false", "null"):
            value = None if name == "null" else name == "true"
            return self.made(Literal, lexeme.start, (), value)  # type: ignore[no-any-return]
        if name in KEYWORDS or name in RESERVED:
            raise Unreadable(f"`{name}` is a reserved word of CEL and names nothing", lexeme.start)
        if not self.accept("("):
            return self.made(Name, lexeme.start, (), name)  # type: ignore[no-any-return]
        args = tuple(self.listed(")", trailing=False))
        if name != "has":
            return self.made(Call, lexeme.start, args, name, None, args)  # type: ignore[no-any-return]
        if len(args) != 1 or not isinstance(args[0], Select):
            raise Unreadable("has() asks for a field, as in `has(fetch.body)`", lexeme.start)
        return self.made(Has, lexeme.start, args, args[0])  # type: ignore[no-any-return]

    def listed(self, closing: str, *, trailing: bool = True) -> list[Node]:
        items: list[Node] = []
        while not self.sees(closing) or (items and not trailing):
            items.append(self.expression())
            if not self.accept(","):
                break
        self.expect(closing)
        return items

    def map_of(self, start: int) -> Node:
        pairs: list[tuple[Node, Node]] = []
        while not self.sees("}"):
            key = self.expression()
            if isinstance(key, Literal) and type(key.value) is not str:
                raise Unreadable("the keys of a map are text, as in JSON; put it in quotes", key.start)
            self.expect(":")
            pairs.append((key, self.expression()))
            if not self.accept(","):
                break
        self.expect("}")
        return self.made(MapOf, start, tuple(node for pair in pairs for node in pair), tuple(pairs))  # type: ignore[no-any-return]

    def postfix(self, node: Node) -> Node:
        start = node.start
        while self.sees(".", "["):
            if self.accept("["):
                key = self.expression()
                self.expect("]")
                node = self.made(Index, start, (node, key), node, key)
                continue
            self.take()
            lexeme = self.here
            if lexeme.kind != "name":
                raise self.unexpected("the name of a field")
            if lexeme.value in KEYWORDS:
                raise Unreadable(f"`{lexeme.value}` is a word of CEL; write ['{lexeme.value}']", lexeme.start)
            self.take()
            if not self.accept("("):
                node = self.made(Select, start, (node,), node, lexeme.value)
            elif lexeme.value in MACROS:
                node = self.macro(node, lexeme)
            else:
                args = tuple(self.listed(")", trailing=False))
                node = self.made(Call, start, (node, *args), lexeme.value, node, args)
        return node

    def macro(self, subject: Node, lexeme: Lexeme) -> Node:
        self.macros += 1
        if self.macros > MAX_MACROS:
            raise Unreadable(
                f"more than {MAX_MACROS} of {', '.join(MACROS)} inside each other; every level multiplies the work",
                lexeme.start,
            )
        args = tuple(self.listed(")", trailing=False))
        self.macros -= 1
        if len(args) not in MACROS[lexeme.value]:
            raise Unreadable(
                f"{lexeme.value}() takes a name and an expression, as in `fetch.pages.{lexeme.value}(page, page.size > 3)`",
                lexeme.start,
            )
        bound = args[0]
        if not isinstance(bound, Name):
            raise Unreadable(f"{lexeme.value}() needs a plain name for the item first, as in `page`", bound.start)
        return self.made(Macro, subject.start, (subject, *args), lexeme.value, subject, bound.name, args[1:])  # type: ignore[no-any-return]
