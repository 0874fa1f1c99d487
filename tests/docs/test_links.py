"""Links between pages, and from pages to files, lead somewhere."""

from __future__ import annotations

import re
from xml.dom import minidom

import pytest
from pages import PAGES, ROOT, anchors_of, prose_of

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    broken = []
    for link in _LINK.findall(prose_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors_of(target.relative_to(ROOT).as_posix())):
            broken.append(link)
    assert not broken, f"{page}: {broken}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, ahead = set(), ["README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached or not page.endswith(".md"):
            continue
        reached.add(page)
        for link in _LINK.findall(prose_of(page)):
            target = ((ROOT / page).parent / link.partition("#")[0]).resolve()
            if "://" not in link and target.is_file() and target.is_relative_to(ROOT):
                ahead.append(target.relative_to(ROOT).as_posix())
    assert sorted(set(PAGES) - reached) == []


def test_the_picture_is_drawn_for_light_and_dark() -> None:
    text = (ROOT / "docs/picture.svg").read_text()
    minidom.parseString(text)
    assert "prefers-color-scheme: dark" in text
    assert "<title" in text and "<desc" in text
