"""What of its journal a workflow run that failed or was cancelled keeps when it is tried again. Pure.

What the code does with it says whether that is enough: see `sdk/retrying.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.core.flow import Entry
from weft.core.model import ERROR_DECODER, ErrorRecord

#: Entries that come from others, whatever the code does.
_FROM_OTHERS = frozenset({"signal", "update", "begin"})
#: Entries that tell of a step, call, child or timer.
_OF_STEPS = frozenset({"completed", "failed", "retrying", "opened", "ended", "fired", "kept"})


def culprit_of(entries: Sequence[Entry], error: ErrorRecord) -> str:
    """Returns the key of the step, call or child whose failure is that of its run; empty: the code raised its own."""
    for entry in reversed(entries):
        if is_failure(entry):
            record = ERROR_DECODER.decode(entry.payload)
            if (record.type, record.message, record.traceback) == (error.type, error.message, error.traceback):
                return entry.key
    return ""


def is_failure(entry: Entry) -> bool:
    """Tells whether a step, call or child failed by an entry."""
    return entry.type == "failed" or (entry.type == "ended" and entry.more != "completed")


def began(entries: Sequence[Entry]) -> list[str]:
    """Returns the keys of all that a run has begun, in order."""
    return list(dict.fromkeys(entry.key for entry in entries if entry.type in _OF_STEPS))


def kept_places(entries: Sequence[Entry], again: Collection[str], from_step: str) -> list[int]:
    """Returns the places of the entries that stay.

    What is to be tried again goes, and that the run was cancelled; with `from_step` also all that came from then on, but for
    signals and updates. Calls and children that had not ended begin anew.
    """
    cut = next((i for i, entry in enumerate(entries) if from_step and entry.key == from_step), len(entries))
    places = [
        i
        for i, entry in enumerate(entries)
        if (i < cut or entry.type in _FROM_OTHERS)
        and entry.type != "cancel"
        and not (entry.type in _OF_STEPS and entry.key in again)
    ]
    ended = {entries[i].key for i in places if _ends(entries[i])}
    return [i for i in places if entries[i].key in ended or not _opens(entries[i])]


def _ends(entry: Entry) -> bool:
    if entry.type == "kept":
        return not entry.more.startswith("opened")
    return entry.type in ("ended", "completed", "failed")


def _opens(entry: Entry) -> bool:
    return entry.type == "opened" or (entry.type == "kept" and entry.more.startswith("opened"))
