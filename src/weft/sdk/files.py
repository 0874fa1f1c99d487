"""Reads graph files: YAML (JSON is YAML too), one graph per document."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from weft.core.graph.arguments import FindShape
from weft.core.graph.model import MAX_BYTES
from weft.core.graph.problems import Problem
from weft.core.graph.validate import Checked, More, check_text, invalid
from weft.errors import DefinitionError, NotFound
from weft.sdk.graph import Graph

if TYPE_CHECKING:
    from weft.sdk.app import Weft


def check_file(
    path: str | PathLike[str], find_shape: FindShape | None = None, more: More | None = None
) -> list[Checked]:
    """Checks every graph of a file. Raises NotFound when there is none to read."""
    try:
        with Path(path).open("rb") as file:
            # Read one byte more than the limit: a file that is too large is noticed without reading all of it.
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotFound(f"the graph file {str(path)!r} cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        if len(data) <= MAX_BYTES:
            return [Checked(None, [Problem("bad_yaml", "the file is not UTF-8 text", line=line, column=1)])]
        text = data.decode("utf-8-sig", errors="replace")
    return check_text(text, find_shape, more)


def load_graphs(app: Weft, path: str | PathLike[str]) -> list[Graph]:
    """Returns the graphs of a file. Raises InvalidGraph with all problems of all of them."""
    checked = check_file(path, app.find_shape)
    problems = [problem for one in checked for problem in one.problems]
    if problems:
        raise invalid("", problems, file=str(path))
    for one in checked:
        if one.valid().name in app.graphs:
            raise DefinitionError(f"{str(path)!r}: app {app.name!r} already has a graph {one.valid().name!r}")
    return [Graph.of(app, one.valid()) for one in checked]
