"""Texts of unknown origin, made fit for a terminal. Imports nothing heavy: every command needs it."""

from __future__ import annotations

import re

#: Characters that a terminal obeys instead of showing them; lines and tabs are wanted.
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Returns a text of unknown origin for a terminal: what would command it (colours, titles, the cursor) is spelled out."""
    return _COMMANDS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
