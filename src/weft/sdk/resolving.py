"""Settles workflow runs whose code does not fit their journal, with the code at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.core.flow import Entry
from weft.engine import resolving as verbs
from weft.engine.living import load_living
from weft.engine.resolving import ACTIONS, Stored
from weft.errors import InvalidOption, NotFound

if TYPE_CHECKING:
    from weft.sdk.app import Weft
    from weft.sdk.workflow import Workflow


async def resolve(app: Weft, run: str, action: str, *, by: str = "") -> str:
    """Does what `run.resolve` says; returns the id of the run that goes on."""
    if action not in ACTIONS:
        raise InvalidOption(f"resolve takes one of {', '.join(ACTIONS)}, not {action!r}", option="action")
    engine = app.engine()
    by = by or engine.actor
    if action == "pin":
        await verbs.pin(engine, run, by=by)
        return run
    workflow = workflow_of(app, (await load_living(engine, run)).spec.name)

    def reconcile(stored: Stored) -> Mapping[int, Entry]:
        program = workflow.program(run, stored.row.spec, stored.data)
        changed = program.reconcile(stored.entries)
        program.close()
        return changed

    if action == "accept":
        await verbs.accept(engine, run, reconcile, version=workflow.version, by=by)
        return run
    return await verbs.fork(engine, run, reconcile, by=by)


def workflow_of(app: Weft, name: str) -> Workflow[Any, Any]:
    """Returns the workflow of an app by its name. Raises NotFound."""
    found = app.workflows.get(name)
    if found is None:
        known = ", ".join(sorted(app.workflows)) or "none"
        raise NotFound(f"app {app.name!r} has no workflow {name!r}; it has {known}", name=name)
    return found
