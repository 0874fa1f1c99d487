"""What follows the end of one step for itself: a dead letter, and for an item of a map the failure of its run."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from weft.codec import encode_plain
from weft.core.effects import UNDOES, Effect, Letter, step_of
from weft.core.failing import fail_effects, item_fails_run, item_failure, letter_spec
from weft.core.graph.compile import NodePlan
from weft.core.model import ERROR_DECODER, Outcome, RunSpec, Value
from weft.core.published import Published
from weft.core.routing import parse_step
from weft.engine.steps import keep_failed_ms


def hedges(published: Published, step: str) -> bool:
    """Tells whether a step is an item of a map, or a copy of one, that another may end too."""
    return "#" in step and published.plan.node(parse_step(published.plan, step)[0]).spec.hedge is not None


def letter_of(node: NodePlan, step: str, spec: RunSpec, error: bytes, attempt: int = 1) -> list[Effect]:
    """A step that has failed becomes a dead letter where its node says so."""
    if node.on_error != "dead_letter":
        return []
    spec = letter_spec(spec)
    return [Letter(step, spec, error, keep_failed_ms(spec), attempt)]


def discarded(outcome: Outcome) -> Outcome:
    """What a step comes to that discarded itself: skipped, which is no failure. A compensation had nothing to undo.

    All others are what they are, also one that somebody else has ended.
    """
    if outcome.kind != "cancelled" or outcome.token.closed:
        return outcome
    if step_of(outcome.token.run).endswith(UNDOES):
        return replace(outcome, kind="completed", value=msgspec.msgpack.encode(Value(encode_plain(None))))
    reason = ERROR_DECODER.decode(outcome.value).message
    return replace(outcome, kind="skipped", value=reason.encode(errors="replace"))


def after_item(published: Published, node: NodePlan, kind: str, value: bytes, step: str) -> list[Effect]:
    """What follows an item of a map."""
    if kind in ("completed", "skipped") or not item_fails_run(node):
        return []
    return fail_effects(published, item_failure(value, step))
