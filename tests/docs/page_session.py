"""Runs the Python blocks of one page in order, as a reader would type them into `python -m asyncio`.

Called by test_snippets with a JSON file: `[{"page", "line", "text"}, …]`. A comment `#> text` says what the block prints;
when a block has such comments they must be all that it prints.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import sys
import types
from pathlib import Path


async def run(blocks: list[dict[str, str]]) -> None:
    # What is typed into a prompt belongs to `__main__`; classes look their module up there.
    page = sys.modules["__main__"] = types.ModuleType("__main__")
    for block in blocks:
        # Padded, so that a traceback names the line of the page.
        source = "\n" * (int(block["line"]) - 1) + block["text"]
        code = compile(source, block["page"], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            done = eval(code, vars(page))
            if inspect.isawaitable(done):
                await done
        told = [line.strip()[2:].strip() for line in block["text"].splitlines() if line.strip().startswith("#>")]
        got = [line.strip() for line in printed.getvalue().splitlines()]
        if told and told != got:
            raise AssertionError(f"{block['page']}:{block['line']}: the page says it prints {told}, it printed {got}")


if __name__ == "__main__":
    sys.path.insert(0, "")  # as in an interpreter that was started there
    asyncio.run(run(json.loads(Path(sys.argv[1]).read_text())))
