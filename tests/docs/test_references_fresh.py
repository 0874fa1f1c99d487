"""The generated pages say what the code says."""

from __future__ import annotations

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
