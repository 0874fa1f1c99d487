"""Says how a workflow's code does not fit its journal: what was expected, what was found, and where in the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.flow import Entry
from weft.errors import NonDeterminism
from weft.sdk.commands import spell
from weft.sdk.flowloop import place_of

if TYPE_CHECKING:
    from weft.sdk.program import Program

#: Commands that a report of a mismatch names.
SHOWN = 5


def diverged(program: Program, entry: Entry) -> NonDeterminism:
    """Returns the report of an entry that the code did not ask for."""
    # The journal does not tell a child from a call.
    kinds = {"fired": "timer", "opened": "call or child", "ended": "call or child", "retrying": "attempt of"}
    expected = spell(kinds.get(entry.type, "step"), entry.key)
    return _report(program, f"entry {program.entries} is\n  - {expected}, {entry.type}", expected)


def waited_otherwise(program: Program, key: str) -> NonDeterminism:
    """Returns the report of a timer or signal that the run waits for and its code does not."""
    expected = spell("receive" if key.startswith("$signal:") else "timer", key)
    return _report(program, f"behind entry {program.entries} it waited for\n  - {expected}", expected)


def _report(program: Program, was: str, expected: str) -> NonDeterminism:
    asked = [
        f"{command.spelled} ({command.place})" if command.place else command.spelled
        for command in program.commands.values()
    ][:SHOWN]
    found = _ended(program) if program.done else ", ".join(asked) or "nothing"
    place = "" if program.main is None or program.done else place_of(program.main)
    where = f" (at {place})" if place else ""
    return NonDeterminism(
        f"the code of workflow {program.name} does not fit its journal: {was}\n"
        f"and the code waits for\n"
        f"  + {found}{where}\n"
        "Go on with the code it had (pin), keep what fits in a run of its own (fork), or go on with this code (accept):"
        f" weft runs resolve {program.run} pin|fork|accept",
        run=program.run,
        entry=program.entries,
        expected=expected,
        found=found,
        place=place,
    )


def _ended(program: Program) -> str:
    assert program.main is not None
    error = None if program.main.cancelled() else program.main.exception()
    return "it has ended" if error is None else f"it has failed with {type(error).__name__}: {error}"
