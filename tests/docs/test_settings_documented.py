"""Every setting the code reads is documented, and every setting the documentation names exists."""

from __future__ import annotations

import re

from pages import PAGES, ROOT

from weft.settings import SETTINGS

_NAME = re.compile(r"\bWEFT_[A-Z][A-Z_]*[A-Z]\b")

#: Read by the tests only.
OF_TESTS = {"WEFT_TEST_PARTITIONS", "WEFT_TEST_OFFLINE", "WEFT_TEST_SERVER"}


def documented() -> set[str]:
    pages = (ROOT / "docs/reference/settings.md", ROOT / "docs/reference/cli.md")
    return {name for page in pages if page.exists() for name in _NAME.findall(page.read_text())}


def test_every_declared_setting_is_in_the_reference() -> None:
    assert set(SETTINGS) - documented() == set()


def test_every_setting_the_code_reads_is_documented() -> None:
    # What weft.testing reads is set by tests for the processes they are about to kill; nobody types it.
    files = [path for path in (ROOT / "src/weft").rglob("*.py") if path.parent.name != "testing"]
    used = {name for path in files for name in _NAME.findall(path.read_text())}
    assert used - documented() == set()


def test_the_documentation_names_no_setting_that_is_not_there() -> None:
    named = {name: page for page in PAGES for name in _NAME.findall((ROOT / page).read_text())}
    real = set(SETTINGS) | OF_TESTS | documented()
    assert {name: page for name, page in named.items() if name not in real} == {}
