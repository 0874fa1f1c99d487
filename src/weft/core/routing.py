"""What follows in a graph run: from the end of a node to the effects of its commit. Pure: no I/O, no clock.

A router walks from what has just ended as far as it can without a worker: conditions, branches, loops, transforms and gathers
are decided on the way; tasks and waits are opened; joins are told who has come. Whatever is too much for one commit is
handed to a step that goes on from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from weft.clock import parse_duration_ms
from weft.codec import encode_stored
from weft.core.cel.values import spell
from weft.core.effects import (
    PAUSE,
    ROUTE,
    Arrive,
    Effect,
    Finish,
    Last,
    Letter,
    Mark,
    Open,
    Scatter,
    route_spec,
)
from weft.core.expressions import purse_for
from weft.core.failing import bound_values, exhausted, fail_effects, goes_on, letter_spec, record_of
from weft.core.gates import gate_name
from weft.core.graph.compile import NodePlan, Plan
from weft.core.memo import memo_of
from weft.core.model import ROUTES, ErrorRecord, Limit, RunSpec, Value
from weft.core.published import Bundle, Job, Published, StepBase
from weft.core.requests import HTTP_FIELDS, secrets_in
from weft.core.scope import Iterations, Scope
from weft.core.waits import waiting_spec
from weft.errors import InvalidArguments, WeftError

#: Effects of one commit; the rest goes on in a step of its own.
MAX_EFFECTS = 256
#: The task name of a step that makes an HTTP request.
HTTP = "$http"

_pack = msgspec.msgpack.Encoder().encode


def step_name(id: str, iterations: Iterations) -> str:
    """Returns the name of a step: the node, and the iterations of the loops around it unless all are the first."""
    return f"{id}~{'.'.join(map(str, iterations))}" if any(iterations) else id


def parse_step(plan: Plan, step: str) -> tuple[str, Iterations]:
    """Returns node and iterations of a step's name."""
    name = step.partition("#")[0].partition("+")[0].rstrip("?=!@^")
    id, _, numbers = name.partition("~")
    depth = len(plan.node(id).loops) if id in plan else 0
    return id, tuple(map(int, numbers.split("."))) if numbers else (0,) * depth


class Router:
    """Decides what follows, from one end on."""

    def __init__(self, published: Published, scope: Scope) -> None:
        self.published, self.plan, self.scope = published, published.plan, scope
        self.effects: list[Effect] = []
        self.todo: deque[Job] = deque()
        #: Maps that begin: step, items, most at once, how many are needed.
        self.maps: list[tuple[str, list[Any]]] = []
        self.failed = False
        #: Steps whose output was looked for among those that are kept.
        self.asked: set[str] = set()
        #: Outputs by memo that the commit itself keeps.
        self.kept: Mapping[str, bytes] = {}

    # --- what begins it ---------------------------------------------------------------------------

    def begin(self) -> None:
        """The run begins."""
        self.go(Job("enter", id, (0,) * len(self.plan.node(id).loops)) for id in self.plan.entries)

    def ended(self, id: str, iterations: Iterations, mark: str = "+") -> None:
        """A node has ended with a worker's help."""
        self.go([Job("ended", id, iterations, mark)])

    def decide(self, id: str, iterations: Iterations, arrivals: Mapping[str, str]) -> None:
        """A join has all it waited for."""
        join = self.plan.node(id).spec.join
        wanted = join if isinstance(join, int) else 1
        skipped = sum(mark != "-" for mark in arrivals.values()) < wanted
        self.go([Job("skip" if skipped else "enter", id, iterations)])

    def go(self, jobs: Iterable[Job]) -> None:
        """Does what is to be done, as far as one commit may go."""
        self.todo.extend(jobs)
        while self.todo and not self.failed and len(self.effects) < MAX_EFFECTS:
            job = self.todo.popleft()
            if job.id not in self.plan or (job.what == "reach" and job.mark[:-1] not in self.plan):
                continue  # a patch has removed it, or has added it since the plan was read: then this is decided anew
            try:
                match job.what:
                    case "reach":
                        self._reach(self.plan.node(job.mark[:-1]), job.id, job.iterations, job.mark[-1])
                    case "enter":
                        self._enter(self.plan.node(job.id), job.iterations)
                    case "skip":
                        self._mark(job.id, job.iterations, "skipped")
                        self._behind(self.plan.node(job.id), job.iterations, "-")
                    case _:
                        self._behind(self.plan.node(job.id), job.iterations, job.mark)
            except WeftError as error:
                self.fail_node(job.id, job.iterations, record_of(error))

    def rest(self, origin: str) -> None:
        """Hands what is left to a step that goes on with it."""
        if self.todo and not self.failed:
            left = [(job.what, job.id, job.iterations, job.mark) for job in self.todo]
            spec = msgspec.structs.replace(route_spec(self.published.address), input=_pack(left))
            self.effects.append(Open(f"{origin}>", spec))

    # --- nodes ------------------------------------------------------------------------------------

    def _enter(self, node: NodePlan, iterations: Iterations) -> None:
        view = self.scope.view(self.plan, iterations, node.id)
        if node.when is not None and not node.when.evaluate(view):
            self.todo.append(Job("skip", node.id, iterations))
            return
        match node.type:
            case "transform":
                template = node.template("value")
                self._complete(node, iterations, None if template is None else template.evaluate(view))
            case "gather":
                self._complete(node, iterations, self._gathered(node, iterations))
            case "branch":
                self._branch(node, iterations, view)
            case "loop":
                self._loop(node, iterations, view)
            case "wait" | "approval" if node.spec.duration is None:
                self.effects.append(Open(step_name(node.id, iterations), waiting_spec(node, view, self.plan.address)))
            case "wait":
                self._wait(node, iterations, view)
            case _ if node.is_map:
                self._scatter(node, iterations, view)
            case _:
                self.effects.append(self.open_of(step_name(node.id, iterations), node, view))

    def _complete(self, node: NodePlan, iterations: Iterations, value: Any) -> None:
        self._mark(node.id, iterations, "completed", value)
        self.todo.append(Job("ended", node.id, iterations))

    def _mark(self, id: str, iterations: Iterations, status: str, value: Any = None) -> None:
        self.note(id, status, value)
        packed = _pack(Value(encode_stored(value))) if status == "completed" else b""
        self.effects.append(Mark(id, step_name(id, iterations), status, packed))

    def note(self, id: str, status: str, value: Any = None, error: Any = None) -> None:
        """Notes what a node came to, in place of what it was in the iteration before."""
        for place, thing in ((self.scope.values, value), (self.scope.errors, error)):
            place.pop(id, None)
            if thing is not None:
                place[id] = thing
        self.scope.status[id] = status

    def fail_node(self, id: str, iterations: Iterations, record: ErrorRecord) -> None:
        """A node failed for good: the run does, or goes on without its output."""
        packed, step = _pack(record), step_name(id, iterations)
        self.effects.append(Mark(id, step, "failed", packed))
        node = self.plan.node(id)
        if node.on_error == "dead_letter" and not node.is_map:  # it failed before it began
            self.effects.append(Letter(step, letter_spec(self.published.steps[id].spec), packed))
        self.note_failure(id, iterations, record)

    def note_failure(self, id: str, iterations: Iterations, record: ErrorRecord) -> None:
        """Goes on behind a node whose failure is told already."""
        node = self.plan.node(id)
        if not goes_on(node):
            self.failed = True
            self.effects += fail_effects(self.published, _pack(record))
            return
        self.note(id, "failed", error={"type": record.type, "message": record.message})
        self.todo.append(Job("ended", id, iterations, "!"))

    def _branch(self, node: NodePlan, iterations: Iterations, view: Mapping[str, Any]) -> None:
        chosen = next((to for condition, to in node.cases if condition.evaluate(view)), node.spec.default)
        self._mark(node.id, iterations, "completed", chosen)
        for other in node.successors:
            self._reach(node, other, iterations, "-" if other in node.targets and other != chosen else "+")

    def _loop(self, node: NodePlan, iterations: Iterations, view: Mapping[str, Any]) -> None:
        assert node.loop is not None and node.while_ is not None
        again = node.while_.evaluate(view)
        done = iterations[-1] + 1
        if again and done < (node.spec.max_iterations or 1):
            # The steps of the next iteration have names of their own, so nothing of this one is in their way.
            self.todo.append(Job("enter", node.loop.to, self._of(node, node.loop.to, (*iterations[:-1], done))))
            return
        if again and (node.spec.on_exhausted or "fail") == "fail":
            self.fail_node(node.id, iterations, exhausted(node))
            return
        self._complete(node, iterations, done)

    def _wait(self, node: NodePlan, iterations: Iterations, view: Mapping[str, Any]) -> None:
        template = node.template("duration")
        duration: Any = node.spec.duration if template is None else template.evaluate(view)
        wait_ms = parse_duration_ms(duration, what=f"duration of node {node.id}")
        spec = RunSpec(PAUSE, queue=ROUTES, definition=self.published.address)
        self.effects.append(Open(step_name(node.id, iterations), spec, str(wait_ms)))

    def _scatter(self, node: NodePlan, iterations: Iterations, view: Mapping[str, Any]) -> None:
        assert node.map is not None
        found = node.map.evaluate(view)
        if isinstance(found, dict):
            found = [{"key": key, "value": value} for key, value in found.items()]
        if not isinstance(found, list):
            raise InvalidArguments(
                f"node {node.id}: map {node.spec.map!r} gave {spell(found)}, not a list: name a list"
            )
        if node.filter is not None:
            keep, purse = node.filter, purse_for(len(found))
            found = [
                item
                for i, item in enumerate(found)
                if keep.evaluate(self.scope.view(self.plan, iterations, node.id, item=item, index=i), max_points=purse)
            ]
        if node.spec.batch_items:
            size = node.spec.batch_items
            found = [found[at : at + size] for at in range(0, len(found), size)]
        if not found:
            self._complete(node, iterations, [])
            return
        self.maps.append((step_name(node.id, iterations), found))

    def _gathered(self, node: NodePlan, iterations: Iterations) -> Any:
        """Puts the outputs of the predecessors together; with `group_by`, into groups by a key."""
        before = [other for other in node.predecessors if self.scope.status.get(other) == "completed"]
        outputs = [self.scope.values.get(other) for other in before]
        if node.group_by is None:
            return outputs[0] if len(node.predecessors) == 1 and outputs else outputs
        items = [item for output in outputs for item in (output if isinstance(output, list) else [output])]
        groups: dict[str, list[Any]] = {}
        purse = purse_for(len(items))
        for i, item in enumerate(items):
            if item is None:
                continue  # an item that failed, or was not waited for
            view = self.scope.view(self.plan, iterations, node.id, item=item, index=i)
            key = node.group_by.evaluate(view, max_points=purse)
            groups.setdefault(key if isinstance(key, str) else encode_key(key), []).append(item)
        return groups

    # --- edges ------------------------------------------------------------------------------------

    def _behind(self, node: NodePlan, iterations: Iterations, mark: str) -> None:
        for other in node.successors:
            # A branch that was skipped, or failed, has chosen nothing.
            self._reach(node, other, iterations, "-" if node.targets and other in node.targets else mark)

    def _reach(self, node: NodePlan, other: str, iterations: Iterations, mark: str) -> None:
        there = self._of(node, other, iterations)
        ahead = self.plan.node(other)
        inside = self._preds(ahead, there)
        if len(inside) == 1:
            self.todo.append(Job("skip" if mark == "-" else "enter", other, there))
            return
        need = 0 if ahead.spec.join in (None, "all") else min(ahead.need, len(inside))
        self.effects.append(Arrive(step_name(other, there), node.id + mark, len(inside), need))

    def _preds(self, node: NodePlan, iterations: Iterations) -> Sequence[str]:
        """Predecessors that arrive in this iteration: what is outside of a loop came with its first one."""
        if not node.loops or not any(iterations):
            return node.predecessors
        for depth, loop in enumerate(node.loops):
            if iterations[depth]:
                body = self.plan.loops[loop].body
                return [other for other in node.predecessors if other in body]
        return node.predecessors

    def _of(self, node: NodePlan, other: str, iterations: Iterations) -> Iterations:
        """Returns the iterations of another node: a loop that is left is dropped, one that is entered begins with 0."""
        loops = self.plan.node(other).loops
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(node.loops, loops, strict=False)))
        return (*iterations[:shared], *((0,) * (len(loops) - shared)))

    # --- steps ------------------------------------------------------------------------------------

    def open_of(self, step: str, node: NodePlan, view: Mapping[str, Any]) -> Open:
        """Opens a step of a node."""
        asked = self.published.asked(node, self.scope.tags)
        if asked is None:
            return Open(step, self.spec_of(node, view))
        base = self.published.steps[node.id]
        return asked.open(
            step, encode_stored(self._arguments(node, base, view), what=f"the arguments of node {node.id}")
        )

    def spec_of(self, node: NodePlan, view: Mapping[str, Any]) -> RunSpec:
        """Returns what a step of a node is asked: its task with resolved arguments, under the node's options."""
        base = self.published.steps[node.id]
        limits, fair = self._limits(node, base, view)
        spec = msgspec.structs.replace(
            base.spec,
            input=encode_stored(self._arguments(node, base, view), what=f"the arguments of node {node.id}"),
            limits=limits,
            fair=fair,
            definition=self.published.address,
            tags={**base.spec.tags, **self.scope.tags},
        )
        if node.spec.cache is None:
            return spec
        template = node.template("cache.key")
        key = None if template is None else template.evaluate(view)
        return msgspec.structs.replace(spec, memo=memo_of(self.plan.spec.name, node, spec, key))

    def _arguments(self, node: NodePlan, base: StepBase, view: Mapping[str, Any]) -> dict[str, Any]:
        if node.type == "http":
            fields = {name: template.evaluate(view) for name in HTTP_FIELDS if (template := node.template(name))}
            if node.spec.timeout is not None:
                fields["timeout"] = node.spec.timeout
            return {"fields": fields, "secrets": secrets_in(node)}
        found: dict[str, Any] = {}
        template = node.template("with")
        if node.type == "subgraph":
            given = {} if template is None else template.evaluate(view)
            timeout_ms = node.duration_ms("timeout") or 0
            return {"graph": node.spec.graph, "definition": base.child, "input": given, "timeout_ms": timeout_ms}
        if template is not None:
            found.update(template.evaluate(view))
        return found | bound_values(f"node {node.id}", base, view, self.scope.input)

    def _limits(self, node: NodePlan, base: StepBase, view: Mapping[str, Any]) -> tuple[list[Limit], str]:
        spec, own = node.spec, f"{self.plan.spec.name}.{node.id}"
        found = list(base.limits)
        fair = ""
        if spec.concurrency_key is not None:
            fair = self._key(node, "concurrency_key", view)
            if fair and spec.concurrency_per_key:
                found.insert(0, Limit(gate_name("key", own, fair), spec.concurrency_per_key))
        if spec.concurrency:
            found.append(Limit(gate_name("task", own), spec.concurrency))
        if node.rate is not None:
            key = self._key(node, "rate_key", view) if spec.rate_key is not None else ""
            gate = gate_name("rate", own, key) if key else gate_name("rate", own)
            cost = node.template("rate_cost").evaluate(view) if isinstance(spec.rate_cost, str) else spec.rate_cost or 1  # type: ignore[union-attr]
            if not isinstance(cost, int) or isinstance(cost, bool) or not 0 < cost <= node.rate[0]:
                raise InvalidArguments(f"node {node.id}: rate_cost gave {cost!r}; it must be from 1 to {node.rate[0]}")
            if key or spec.rate_key is None:  # without a key there is no limit
                found.append(Limit(gate, *node.rate, cost))
        return found, fair

    def _key(self, node: NodePlan, option: str, view: Mapping[str, Any]) -> str:
        template = node.template(option)
        key = None if template is None else template.evaluate(view)
        if key is None:
            return ""
        if isinstance(key, bool) or not isinstance(key, (str, int)) or not 0 < len(str(key)) <= 512:
            raise InvalidArguments(f"node {node.id}: {option} gave {key!r}: a key is a text or a whole number, or null")
        return str(key)

    # --- the end ----------------------------------------------------------------------------------

    @property
    def may_end(self) -> bool:
        """Whether nothing is to come so far: should nothing else be open, the run ends here."""
        more = self.failed or self.todo or self.maps or any(isinstance(one, (Open, Scatter)) for one in self.effects)
        return not more

    def close(self, origin: str, result: bytes | None = None) -> list[Effect]:
        """Returns all effects; the last of them tells how the run ends, should nothing be open."""
        self.rest(origin)
        opens = any(isinstance(effect, (Open, Scatter)) for effect in self.effects)
        if not self.failed and not opens:
            self.effects.append(Last() if result is None else Finish(result, self.published.plain))
        return self.effects


def result_names(plan: Plan) -> frozenset[str]:
    """Returns the nodes that a run's result is made of."""
    result = plan.result
    if result.output is not None:
        return frozenset(plan.spec.nodes if result.output.whole else (n for n in result.output.nodes if n in plan))
    return frozenset([result.node] if result.node else result.nodes)


def result_of(plan: Plan, scope: Scope) -> Any:
    """Returns what a run returns that has nothing left to do."""
    result = plan.result
    if result.output is not None:
        return result.output.evaluate(scope.view(plan, ()))
    if result.node is not None:
        return scope.values.get(result.node)
    return {name: scope.values.get(name) for name in result.nodes}


def encode_key(key: Any) -> str:
    """Returns a group's name for a key that is not a text, the way JSON writes it."""
    return msgspec.json.encode(key).decode()


__all__ = ["HTTP", "ROUTE", "Bundle", "Finish", "Iterations", "Job", "Published", "Router", "Scope", "StepBase"]
