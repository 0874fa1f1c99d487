"""The generated pages say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys

from pages import ROOT


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
    for path, text in sections:
        told = subprocess.run(
            [sys.executable, "-m", *path.split(), "--help"], text=True, capture_output=True, check=True
        )
        options = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", told.stdout)) - {"-h", "--help"}
        written = set(re.findall(r"`(--?[a-z][\w-]*)`", text))
        assert {name for name in options if name not in text} == set(), path
        assert written <= options, path
