"""Patches of runs, as users make them: operations become a definition that is checked as a whole and stored.

Nodes that a patch does not touch keep what their tasks looked like when the run was started; for those it adds or changes,
the app must have the task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.core.acts import BY_STEP
from weft.core.effects import UNDOES
from weft.core.graph.model import RESERVED_NAMES, GraphSpec, to_document
from weft.core.graph.validate import check_document
from weft.core.patch import apply_operations, check_operations, difference
from weft.core.routing import Bundle, StepBase
from weft.engine import patches
from weft.engine.graphs import bundle_bytes
from weft.engine.pauses import checked_reason
from weft.errors import Conflict, DefinitionError, InvalidOption
from weft.sdk.current import CURRENT
from weft.sdk.publishing import steps_of

if TYPE_CHECKING:
    from weft.sdk.app import Weft

#: Characters of an author's name.
MAX_AUTHOR = 200


async def patch_run(
    app: Weft,
    run: str,
    operations: Sequence[Mapping[str, Any]],
    *,
    author: str = "",
    reason: str = "",
    dry_run: bool = False,
    revision: int | None = None,
) -> dict[str, Any]:
    """Changes the definition that a run follows; returns what that changes."""
    engine, step = app.engine(), _step_here()
    author, reason = _checked(author) or _author(step) or engine.actor, checked_reason(reason)
    if revision is not None and (isinstance(revision, bool) or not isinstance(revision, int)):
        raise InvalidOption(f"revision is a whole number, not {revision!r}", option="revision")
    asked = check_operations(operations)
    current = await patches.read_current(engine, run, revision=revision)
    document = apply_operations(current.document, asked)
    spec = check_document(document, app.find_shape).valid()
    bundle, children = _bundle(app, spec, current.bundle)
    wanted = patches.Patch(bundle_bytes(bundle), author, reason, asked, step=step, children=children)
    return await patches.patch(engine, current, wanted, by=engine.actor, dry_run=dry_run)


async def undo_patch(
    app: Weft, run: str, *, author: str = "", reason: str = "", dry_run: bool = False
) -> dict[str, Any]:
    """Goes back to the definition before the last patch, by a patch."""
    engine, step = app.engine(), _step_here()
    author, reason = _checked(author) or _author(step) or engine.actor, checked_reason(reason)
    current = await patches.read_current(engine, run)
    if not current.before:
        raise Conflict(f"run {run} was never patched: there is nothing to undo", run=run)
    before = await patches.read_bundle(engine, run, current.before)
    asked = difference(current.document, to_document(before.graph))
    wanted = patches.Patch(bundle_bytes(before), author, reason, asked, step=step, undoes=current.revision)
    return await patches.patch(engine, current, wanted, by=engine.actor, dry_run=dry_run)


def _step_here() -> str:
    """Returns the step whose code is running here, `<run>/<step>`; nothing outside of steps."""
    make = CURRENT.get(None)
    here = make() if make is not None else None
    return "" if here is None else f"{here.run_id}/{here.step}"


def _author(step: str) -> str:
    return step and f"{BY_STEP}{step}"[:MAX_AUTHOR]


def _bundle(app: Weft, spec: GraphSpec, old: Bundle) -> tuple[Bundle, dict[str, bytes]]:
    """Returns a new definition with what its tasks look like: as stored where a node is as it was, else as the app has them.

    With it, by digest, what new subgraphs follow.
    """
    from weft.sdk.graph import Graph

    kept = {id for id, node in spec.nodes.items() if old.graph.nodes.get(id) == node}
    fresh, children = steps_of(Graph.of(app, spec), [id for id in spec.nodes if id not in kept])
    steps: dict[str, StepBase] = {id: base for id, base in old.steps.items() if id.removesuffix(UNDOES) in kept}
    for id, base in steps.items():
        for name, source in base.bound.items():
            if source[0] == "=" and source[1:] not in spec.nodes and source[1:] not in RESERVED_NAMES:
                raise DefinitionError(
                    f"node {id} takes its parameter {name} from node {source[1:]}, which the patch removes"
                )
    return Bundle(spec, steps | fresh), children


def _checked(author: str) -> str:
    if not isinstance(author, str) or len(author) > MAX_AUTHOR:
        raise InvalidOption(f"author is a text of at most {MAX_AUTHOR} characters, not {author!r:.80}", option="author")
    return author.encode("utf-8", "replace").decode()
