"""What tests of pages share: what browsers and programs ask for, and what a browser would send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from html.parser import HTMLParser

from weft import Approval

PAGE = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
JSON = {"accept": "application/json"}

Ask = Callable[..., Awaitable[Approval]]
PageOf = Callable[..., Awaitable[str]]


def fields(text: str) -> dict[str, str]:
    """Returns what a browser would send with a page's form, untouched."""
    found: dict[str, str] = {}
    inside: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            name = given.get("name") or ""
            if tag == "input" and (given.get("type") != "checkbox" or "checked" in given):
                found[name] = given.get("value") or ""
            elif tag in ("textarea", "select"):
                found[name] = ""
                inside.append(name)
            elif tag == "option" and inside and "selected" in given:
                found[inside[-1]] = given.get("value") or ""

        def handle_endtag(self, tag: str) -> None:
            if tag in ("textarea", "select"):
                name = inside.pop()
                found[name] = found[name].removeprefix("\n")

        def handle_data(self, data: str) -> None:
            if inside and not self.cdata_elem and self.get_starttag_text().startswith("<textarea"):  # type: ignore[union-attr]
                found[inside[-1]] += data

    Reader().feed(text)
    return found
