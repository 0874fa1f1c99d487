"""Versions of a workflow's code: how one is told from another, and which of them an app has."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from types import CodeType
from typing import Any

from weft.errors import InvalidOption
from weft.ids import check_name

#: What `version=` of a start says to have the run follow the code that starts it.
PIN = "pin"
#: Characters of a version that was made from the code.
DIGITS = 10


def version_of(fn: Any) -> str:
    """Returns a version made from a function's code: the same whatever its comments, layout, place and decorators are.

    What it calls is not looked at: give the workflow a version of its own where that matters.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
        text = _spelled(tree)
    except (OSError, TypeError, SyntaxError, AttributeError):  # typed at a prompt, or made by code
        code = getattr(getattr(fn, "func", fn), "__code__", None)
        text = repr(fn) if code is None else repr(_shape(code))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def check_version(version: Any) -> str:
    """Returns the version that a definition gives its code."""
    if version == PIN:
        raise InvalidOption(
            "version='pin' belongs to a start, as in .options(version='pin').start(…): a workflow's own version is a"
            " name of your choice, such as version='2'",
            option="version",
        )
    return check_name(version, what="version")


def _spelled(tree: ast.Module) -> str:
    function: Any = tree.body[0]
    function.decorator_list = []
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        function.body = body[1:] or [ast.Pass()]  # what it says about itself
    return ast.unparse(function)


def _shape(code: CodeType) -> tuple[Any, ...]:
    consts = tuple(_shape(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts)
    return code.co_code, consts, code.co_names, code.co_varnames
