"""What runs anew when a run is retried, or forked, from a step: that step, everything behind it, and what never ended. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft.core.graph.compile import Plan
from weft.core.patch import Ended, jobs_for
from weft.core.routing import Job
from weft.core.scope import Iterations
from weft.errors import Conflict, NotFound


@dataclass(frozen=True, slots=True)
class Redo:
    """What is kept of a run, what runs anew, and where that begins."""

    kept: dict[str, Ended]
    #: Nodes that run (again), each behind those it follows.
    again: tuple[str, ...]
    #: Those of them that begin at once, whoever else may still come to them.
    roots: tuple[str, ...]
    jobs: list[Job]
    #: Those of them that have ended in an earlier iteration only: what they gave then can still be read in this one.
    earlier: frozenset[str]
    #: Those of them in an iteration that goes on whose outcome is of that iteration: it has replaced the one before it.
    replaced: dict[str, Iterations]


def plan_redo(plan: Plan, ended: Mapping[str, Ended], from_step: str | None) -> Redo:
    """Returns what a retry does. Besides `from_step`, what failed for good runs anew, and what was cut off or never reached.

    Raises NotFound for a node that is not there, Conflict for one that never began.
    """
    newest, known = _newest(plan, ended), ended
    left = outrun(plan, ended)
    ended = {id: end for id, end in ended.items() if id not in left}
    failed = {id for id, end in ended.items() if end.status == "failed" and plan.node(id).on_error == "fail"}
    seeds = failed | ({from_step} if from_step is not None else set())
    if from_step is not None:
        _check(plan, {id for id in ended if id not in failed}, ended, from_step)
    anew = behind(plan, seeds)
    kept = {id: end for id, end in ended.items() if id not in anew}
    again = tuple(id for id in plan.order if id not in kept)
    # What was entered once is entered again, in the iteration in which it was; a skipped node must be reached to know why.
    entered = [id for id in plan.order if id in seeds and id in ended and ended[id].status != "skipped"]
    roots = tuple(id for id in entered if not any(id in behind(plan, {other}) for other in seeds if other != id))
    jobs = [Job("enter", id, ended[id].iterations) for id in roots]
    jobs += jobs_for(plan, [id for id in again if id not in roots], kept)
    depths, earlier, replaced = _depths(plan, again, roots), set[str](), dict[str, Iterations]()
    for id in again:
        if id in known and _is_outrun(newest, plan.node(id).loops[: depths[id]], known[id].iterations):
            earlier.add(id)
        elif id in known and any(here := known[id].iterations[: depths[id]]):
            replaced[id] = here
    return Redo(kept, again, roots, jobs, frozenset(earlier), replaced)


def outrun(plan: Plan, ended: Mapping[str, Ended]) -> frozenset[str]:
    """Returns the nodes whose loop has begun another iteration since they ended: in that one they have not ended.

    A loop is entered at one node only, so an iteration that has come anywhere shows in the nodes of its body.
    """
    newest = _newest(plan, ended)
    return frozenset(id for id, end in ended.items() if _is_outrun(newest, plan.node(id).loops, end.iterations))


def _is_outrun(newest: Mapping[tuple[str, ...], Iterations], loops: tuple[str, ...], place: Iterations) -> bool:
    return any(place[:depth] < newest[loops[:depth]] for depth in range(1, len(loops) + 1))


def _newest(plan: Plan, ended: Mapping[str, Ended]) -> dict[tuple[str, ...], Iterations]:
    """Returns the newest iteration of each loop within the loops around it, as far as nodes have ended in it."""
    newest: dict[tuple[str, ...], Iterations] = {}
    for id, end in ended.items():
        loops = plan.node(id).loops
        for depth in range(1, len(loops) + 1):
            newest[loops[:depth]] = max(newest.get(loops[:depth], ()), end.iterations[:depth])
    return newest


def _depths(plan: Plan, again: Sequence[str], roots: Collection[str]) -> dict[str, int]:
    """Returns of how many loops around each node the iteration goes on; those within begin anew, by a node before them."""
    depths: dict[str, int] = {}
    for id in again:  # each behind those it follows
        node = plan.node(id)
        depths[id] = len(node.loops)
        for before in () if id in roots else node.predecessors:
            if before in depths:
                shared = shared_loops(node.loops, plan.node(before).loops)
                depths[id] = min(depths[id], shared, depths[before])
    return depths


def shared_loops(one: Sequence[str], other: Sequence[str]) -> int:
    """Returns how many loops, from the outermost on, two nodes are in together."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def behind(plan: Plan, seeds: Iterable[str]) -> set[str]:
    """Returns nodes and all that follow them."""
    found, line = set(seeds), list(seeds)
    while line:
        for other in plan.node(line.pop()).successors:
            if other not in found:
                found.add(other)
                line.append(other)
    return found


def _check(plan: Plan, passed: Collection[str], ended: Mapping[str, Ended], id: str) -> None:
    if id not in plan:
        raise NotFound(
            f"graph {plan.spec.name} has no node {id!r}: it has {', '.join(list(plan.spec.nodes)[:20])}", node=id
        )
    missing = [other for other in plan.node(id).predecessors if other not in passed]
    if id not in ended and missing:
        raise Conflict(
            f"node {id} never began: {', '.join(missing[:5])} did not get that far. Name an earlier step",
            node=id,
        )
