"""Reports files and functions that have grown large; exits 1 only over the hard limits.

Python over 500 lines, a test over 600 or a Lua script over 150 fail. Python over 300 lines and functions over 50 are
listed, so that growth is seen before it hurts.
"""

# ruff: noqa: T201

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "bench", "examples", "scripts")

#: Lines a Python file, a test file or a Lua script may have at most.
MAX_PYTHON, MAX_TEST, MAX_LUA = 500, 600, 150
#: Lines from which a Python file or a function is listed.
NOTED_PYTHON, NOTED_FUNCTION = 300, 50


def main() -> int:
    """Prints what is large; returns the exit code."""
    files = sorted(path for folder in FOLDERS for path in our_files(ROOT / folder))
    too_large, large = [], []
    for path in files:
        name, lines = path.relative_to(ROOT).as_posix(), len(path.read_text().splitlines())
        limit = limit_of(name)
        if lines > limit:
            too_large.append(f"{lines:5} lines  {name} (at most {limit})")
        elif path.suffix == ".py" and lines > NOTED_PYTHON:
            large.append(f"{lines:5} lines  {name}")
        if path.suffix == ".py":
            large.extend(
                f"{length:5} lines  {name}:{line} {function}" for function, line, length in long_functions(path)
            )
    show("large", large)
    show("TOO LARGE: split it by noun", too_large)
    print(f"{len(files)} files measured, {len(too_large)} over the limit")
    return 1 if too_large else 0


def our_files(folder: Path) -> Iterator[Path]:
    """Yields Python and Lua files; hidden folders hold what others wrote."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") or part == "node_modules" for part in path.relative_to(ROOT).parts)
        if path.suffix in (".py", ".lua") and not hidden:
            yield path


def limit_of(name: str) -> int:
    """How many lines a file may have."""
    if name.endswith(".lua"):
        return MAX_LUA
    return MAX_TEST if name.startswith("tests/") else MAX_PYTHON


def long_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yields name, line and length of every function over the noted length."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > NOTED_FUNCTION:
                yield node.name, node.lineno, length


def show(title: str, lines: list[str]) -> None:
    if lines:
        print(title, *sorted(lines, reverse=True), sep="\n  ")


if __name__ == "__main__":
    sys.exit(main())
