"""An app whose graphs wait for signals and people, to be killed at every boundary."""

from __future__ import annotations

from weft import Weft

app = Weft("approvals")

#: Everything that may happen to an approval without people: it opens, reminds, escalates, and is decided by its timeout.
silent = app.graph("silent", output="${[review.decision, first, last]}")
silent.wait("first", signal="go", timeout="100ms", on_timeout="continue")
silent.approval(
    "review",
    after="first",
    approvers=["anna"],
    reminders=["50ms"],
    escalate={"after": "80ms", "to": ["boss"]},
    timeout="150ms",
    on_timeout="approve",
)
silent.transform("last", "done", after="review")

asked = app.graph("asked", output="${review}")
asked.approval("review", on_reject="continue")
