"""Text to lexemes: names, numbers, texts and signs of CEL, each with its place.

Also finds where an expression ends inside other text, which only the lexemes know: a brace inside a quoted text
or a map closes nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from weft.core.cel.faults import Unclosed, Unreadable

#: Words that are no names, as CEL reserves them.
KEYWORDS = frozenset({"true", "false", "null", "in"})
RESERVED = frozenset(
    "as break const continue else for function if import let loop package namespace return var void while".split()
)

#: The integers CEL has: 64 bits with a sign.
MIN_INT, MAX_INT = -(2**63), 2**63 - 1

_LEXEME = re.compile(
    r"""(?P<space>(?:[ \t\r\n\f]|//[^\n]*)+)
    |(?P<text>(?:[bB]?[rR]|[bB])?(?:'''|\"\"\"|'|\"))
    |(?P<float>(?:[0-9]+\.[0-9]+|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<int>0[xX][0-9a-fA-F]+|[0-9]+)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>&&|\|\||[=!<>]=|[-+*/%!<>?:,.()\[\]{}])""",
    re.VERBOSE,
)
_ENDS = {
    ("'", False): re.compile(r"((?:[^'\\\r\n]|\\.)*)'"),
    ('"', False): re.compile(r'((?:[^"\\\r\n]|\\.)*)"'),
    ("'''", False): re.compile(r"((?:[^\\]|\\.)*?)'''", re.DOTALL),
    ('"""', False): re.compile(r'((?:[^\\]|\\.)*?)"""', re.DOTALL),
    ("'", True): re.compile(r"([^'\r\n]*)'"),
    ('"', True): re.compile(r'([^"\r\n]*)"'),
    ("'''", True): re.compile(r"(.*?)'''", re.DOTALL),
    ('"""', True): re.compile(r'(.*?)"""', re.DOTALL),
}
_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\?\"'`])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|)"
)
_SIMPLE = dict(zip("abfnrtv\\?\"'`", "\a\b\f\n\r\t\v\\?\"'`", strict=True))
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(slots=True, frozen=True)
class Lexeme:
    """One word of an expression. `kind`: name, int, float, text, sign, end. `value`: what it stands for."""

    kind: str
    value: Any
    start: int
    end: int


def scan(text: str, at: int = 0, *, braced: bool = False) -> list[Lexeme]:
    """Return the lexemes of `text` from `at` on; the last one is of kind `end`.

    With `braced` the expression ends at the `}` that closes nothing opened inside it, and a text without one is
    `Unreadable`.
    """
    found: list[Lexeme] = []
    open_signs: list[tuple[str, int]] = []
    began = at
    while at < len(text):
        match = _LEXEME.match(text, at)
        if match is None:
            raise Unreadable(_strange(text[at]), at)
        kind = match.lastgroup or ""
        value: Any = match.group()
        end = match.end()
        if kind == "text":
            value, end = _quoted(text, match)
        elif kind in ("int", "float"):
            value = _number(text, match)
        elif kind == "sign":
            if value == "}" and braced and not open_signs:
                return [*found, Lexeme("end", "", at, at)]
            _pair(value, at, open_signs)
        if kind != "space":
            found.append(Lexeme(kind, value, at, end))
        at = end
    if open_signs:
        sign, place = open_signs[-1]
        raise Unclosed(f"`{sign}` is never closed: a `{_PAIRS[sign]}` is missing", place)
    if braced:
        raise Unclosed("`${` is never closed: a `}` is missing", max(0, began - 2))
    return [*found, Lexeme("end", "", at, at)]


def _pair(sign: str, at: int, open_signs: list[tuple[str, int]]) -> None:
    if sign in _PAIRS:
        open_signs.append((sign, at))
    elif sign in (")", "]", "}"):
        if not open_signs or _PAIRS[open_signs[-1][0]] != sign:
            expected = f", `{_PAIRS[open_signs[-1][0]]}` is expected first" if open_signs else ""
            raise Unreadable(f"`{sign}` closes nothing{expected}", at)
        open_signs.pop()


def _quoted(text: str, match: re.Match[str]) -> tuple[str, int]:
    opening = match.group()
    quote = opening.lstrip("bBrR")
    prefix = opening[: -len(quote)].lower()
    if "b" in prefix:
        raise Unreadable("bytes are text in JSON form; write it without the b", match.start())
    body = _ENDS[quote, "r" in prefix].match(text, match.end())
    if body is None:
        raise Unclosed(f"the text that begins here is never closed: a {quote} is missing", match.start())
    if prefix == "r":
        return body[1], body.end()
    return _unescape(body[1], body.start()), body.end()


def _unescape(body: str, start: int) -> str:
    def replace(match: re.Match[str]) -> str:
        simple, two, four, eight, octal = match.groups()
        if simple:
            return _SIMPLE[simple]
        code = int(octal, 8) if octal else int(two or four or eight or "-1", 16)
        if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise Unreadable(
                "this is no escape of CEL; write \\\\ for a backslash, or r'…' for a text without escapes",
                start + match.start(),
            )
        return chr(code)

    return _ESCAPE.sub(replace, body) if "\\" in body else body


def _number(text: str, match: re.Match[str]) -> int | float:
    written, after = match.group(), text[match.end() : match.end() + 1]
    if after in ("u", "U"):
        raise Unreadable(f"JSON has no unsigned integers; write {written}", match.start())
    if after and (after == "_" or after.isalnum()):
        raise Unreadable(f"`{written}{after}` is neither a number nor a name", match.start())
    if match.lastgroup == "int":
        return int(written, 16 if written[:2] in ("0x", "0X") else 10)
    number = float(written)
    if not math.isfinite(number):
        raise Unreadable("this number is too large for a double", match.start())
    return number


def _strange(char: str) -> str:
    if char in ("=", "&", "|"):
        return f"`{char}` alone means nothing; write `{char}{char}`"
    if char == "$":
        return "`$` has no place inside an expression: names are written bare, as in `fetch.size > 3`"
    return f"{char!a} has no place in an expression"
