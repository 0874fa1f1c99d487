"""Undoes what a failing graph run has done: one compensation after the other, the newest first, then the run fails.

What is left to undo stands in a list of the run, so a worker that dies changes nothing: whoever goes on finds it there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from weft.codec import encode_stored
from weft.core.cel.program import BY_NODE
from weft.core.effects import UNDO, UNDOES, Effect, Fail, Mark, Open, Undone, route_spec, step_id, step_of
from weft.core.failing import bound_values, record_of
from weft.core.model import ERROR_DECODER, Outcome, RunSpec
from weft.core.routing import Published, parse_step
from weft.engine import memos
from weft.engine.closing import end_steps, open_ids
from weft.errors import NotFound, WeftError
from weft.store.graphs import read_context, read_whole_context
from weft.store.undoing import read_failing, read_undoable

if TYPE_CHECKING:
    from weft.engine.graphs import Follower

#: Compensations that cannot even begin, passed over in one commit.
MAX_PASSED = 100
#: Failed compensations that the run's error names.
MAX_NAMED = 20

_pack = msgspec.msgpack.Encoder().encode


async def begin(follower: Follower, published: Published, run: str, input: Any) -> list[Effect]:
    """Ends what is still open, so that nothing more is done, and opens the first compensation."""
    async for ids in open_ids(follower.ns, follower.p, run):
        await end_steps(follower.ns, follower.p, [id for id in ids if id != step_id(run, UNDO)], by="undo")
    return await following(follower, published, run, input)


async def following(
    follower: Follower, published: Published, run: str, input: Any, *, outcome: Outcome | None = None
) -> list[Effect]:
    """Opens the next compensation, behind the one that has just ended if one has; the run fails when none is left."""
    done = 0 if outcome is None else 1
    marks: list[Mark] = []
    ahead: list[Effect] = []
    while not ahead:
        left = await read_undoable(follower.ns, follower.p, run, done + 1)
        if len(left) <= done:
            now = [] if outcome is None else [Mark(step_of(outcome.token.run), "", outcome.kind, outcome.value)]
            ahead = [await _failure(follower, run, now + marks)]
            break
        step, value = left[done]
        if done > MAX_PASSED:
            ahead = [Open(UNDO, route_spec(published.address))]
            break
        if await _is_undone(follower, run, step, outcome):
            done += 1
            continue
        try:
            await memos.take_back(follower, published, run, step, input)
            ahead = [Open(step + UNDOES, await _spec(follower, published, run, step, value, input))]
        except WeftError as error:
            if error.retryable:
                raise
            marks.append(Mark(step + UNDOES, step + UNDOES, "failed", _pack(record_of(error))))
            done += 1
    return [*([Undone(done)] if done else []), *marks, *ahead]


async def _is_undone(follower: Follower, run: str, step: str, outcome: Outcome | None) -> bool:
    """Tells whether a step was undone already: one that a retry of its run has run twice is undone once."""
    name = step + UNDOES
    if outcome is not None and step_of(outcome.token.run) == name:
        return True
    return bool(await read_context(follower.ns, follower.p, run, [name]))


async def _spec(follower: Follower, published: Published, run: str, step: str, value: bytes, input: Any) -> RunSpec:
    """Returns what a compensation is asked: its task with `compensate.with`, as things stand now."""
    id, iterations = parse_step(published.plan, step)
    node, base = published.plan.node(id), published.steps[id + UNDOES]
    template = node.template("compensate.with")
    names = {text[1:] for text in base.bound.values() if text[0] == "="} | (set(template.nodes) if template else set())
    if not names.isdisjoint(BY_NODE) or (template is not None and template.whole):
        names |= published.plan.spec.nodes.keys()
    tags = {**base.spec.tags, **(await follower.known(run)).tags}
    scope = await follower.scope(published.plan, run, {name for name in names if name in published.plan}, input, {})
    extra: dict[str, Any] = {}
    if "#" in step:
        extra = {"index": int(step.partition("#")[2])}
        extra["item"] = await follower.item(run, step.partition("#")[0], extra["index"])
    scope.values[id], scope.status[id] = await follower.value(run, value), "completed"
    view = scope.view(published.plan, iterations, **extra)
    arguments = dict(template.evaluate(view)) if template is not None else {}
    arguments |= bound_values(f"the compensation of node {id}", base, view, input)
    data = encode_stored(arguments, what=f"the arguments of the compensation of node {id}")
    return msgspec.structs.replace(base.spec, input=data, limits=base.limits, definition=published.address, tags=tags)


async def _failure(follower: Follower, run: str, marks: list[Mark]) -> Fail:
    """Returns the end of the run: its own error, and how many compensations there were."""
    packed = await read_failing(follower.ns, follower.p, run)
    if packed is None:
        raise NotFound(f"run {run} is not failing", run=run)
    given = await read_whole_context(follower.ns, follower.p, run)
    undone = {name: (one.status, one.value) for name, one in given.items() if name.endswith(UNDOES)}
    undone |= {mark.node: (mark.status, mark.value) for mark in marks}
    wrong = {name: value for name, (status, value) in undone.items() if status == "failed"}
    record = ERROR_DECODER.decode(packed)
    for name, value in list(wrong.items())[:MAX_NAMED]:
        error = ERROR_DECODER.decode(value)
        text = f"{name.removesuffix(UNDOES)} could not be undone: {error.type}: {error.message}"
        record.causes = [*record.causes, {"type": "CompensationFailed", "message": text}]
    return Fail(_pack(record), f"compensated={len(undone) - len(wrong)},uncompensated={len(wrong)}")
