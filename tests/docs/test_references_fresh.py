"""The generated pages say what the code says."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from pages import ROOT

#: Asks commands for their help, all in one process: each start of Python takes as long as twenty answers.
ASK_ALL = """
import contextlib, io, json, sys
from weft.cli import main
told = {}
for path in sys.argv[1:]:
    sys.argv = [*path.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main()
    told[path] = said.getvalue()
print(json.dumps(told))
"""


def test_the_generated_references_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate_docs.py", "--check"], cwd=ROOT, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_key_family_and_every_script_has_its_section() -> None:
    from weft.store.keys import FAMILIES
    from weft.store.scripts import load_all

    keys = (ROOT / "docs/reference/keys.md").read_text()
    scripts = (ROOT / "docs/reference/scripts.md").read_text()
    assert [name for name in FAMILIES if f"\n### {name}\n" not in keys] == []
    assert [name for name in load_all() if f"\n## {name}\n" not in scripts] == []


def test_help_and_reference_of_the_command_line_agree() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    sections = re.findall(r"^## (weft .+?)$(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
    assert len(sections) >= 10
    told = json.loads(
        subprocess.run(
            [sys.executable, "-c", ASK_ALL, *(path for path, _ in sections)], text=True, capture_output=True, check=True
        ).stdout
    )
    for path, text in sections:
        options = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", told[path])) - {"-h", "--help"}
        written = set(re.findall(r"`(--?[a-z][\w-]*)`", text))
        assert {name for name in options if name not in text} == set(), path
        assert written <= options, path
