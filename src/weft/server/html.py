"""HTML that is safe by how it is made: every text is escaped, unless it was made here. No scripts, no templates."""

from __future__ import annotations

import html
import re

#: Characters that would change how others are shown (control and bidirectional ones), or are not seen at all.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
#: Elements that have no end tag.
_VOID = frozenset({"input", "meta", "br", "link"})


class Html(str):
    """A text that is HTML already."""

    __slots__ = ()


Inside = str | int | None


def element(name: str, /, *inside: Inside, **attributes: str | int | bool | None) -> Html:
    """Makes an element. Texts inside and values of attributes are escaped; attributes that are None or False are left out.

    Names of attributes are ours: `class_` is `class`, `aria_describedby` is `aria-describedby`.
    """
    told = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{told}>")
    return Html(f"<{name}{told}>{join(*inside)}</{name}>")


def join(*parts: Inside) -> Html:
    """Puts parts one behind the other; None is nothing."""
    return Html("".join(part if isinstance(part, Html) else show(part) for part in parts if part is not None))


def show(value: str | int) -> Html:
    """Returns a text of unknown origin as HTML: what would not be seen as it is, is spelled out."""
    return Html(html.escape(_HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", str(value))))


def keep(value: str) -> Html:
    """Returns a text for a field, where it is to come back as it went: escaped, and nothing spelled out."""
    return Html(html.escape(value))
