"""A second opinion: executes a definition in memory, node by node, from the table of the specification alone.

It shares nothing with the engine but the evaluation of expressions, and is made differently on purpose: no tokens, no
effects, no arrivals. Nodes are visited in topological order; the body of a loop is a region that is visited again and
again. What depends on who is faster (which items of a map were not waited for) is a `Loose` value, which several outputs
match.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weft.core.expressions import Condition, Expression
from weft.core.templates import Template
from weft.errors import ExpressionFailed


class Failure(Exception):
    """A task that fails: type and message as users see them."""

    def __init__(self, type: str, message: str = "") -> None:
        super().__init__(message)
        self.type, self.message = type, message


class Discarded(Exception):
    """A task that says it is not needed."""


#: A task's behaviour: gets its arguments and the attempt (from 1), gives a value or raises Failure.
Behaviour = Callable[[dict[str, Any], int], Any]


@dataclass(frozen=True)
class Loose:
    """The output of a map that did not wait for all: each item's value or null, and at least `need` values."""

    values: tuple[Any, ...]
    need: int


@dataclass(frozen=True)
class Decided:
    """The output of an approval, of which only the decision is known beforehand."""

    decision: str


@dataclass
class Visit:
    """What one visit of a node came to."""

    status: str
    output: Any = None
    error: Any = None


@dataclass
class Reference:
    """What a run must come to."""

    status: str = "completed"
    result: Any = None
    #: Types of the errors of which one fails the run.
    failures: list[str] = field(default_factory=list)
    #: Node -> what it came to, visit by visit; the last one stands at the end of a completed run.
    visits: defaultdict[str, list[Visit]] = field(default_factory=lambda: defaultdict(list))
    #: Steps that end with a worker, each exactly once: `node`, `node~1`, `node#0`.
    steps: list[str] = field(default_factory=list)
    #: Nodes behind what failed the run: how far they came depends on who was faster.
    unknown: set[str] = field(default_factory=set)


def execute(
    definition: dict[str, Any],
    input: Any,
    tasks: dict[str, Behaviour],
    children: dict[str, dict[str, Any]] | None = None,
) -> Reference:
    """Returns what a run of a valid definition must come to; `children` are the graphs within it."""
    return _Run(definition, input, tasks, children or {}).run()


class _Fatal(Exception):
    """A node failed whose failure is the run's."""


class _Run:
    def __init__(
        self,
        definition: dict[str, Any],
        input: Any,
        tasks: dict[str, Behaviour],
        children: dict[str, dict[str, Any]],
    ) -> None:
        self.definition, self.input, self.tasks, self.children = definition, input, tasks, children
        self.nodes: dict[str, dict[str, Any]] = definition["nodes"]
        self.reference = Reference()
        self.before: dict[str, list[str]] = {id: list(node.get("after") or []) for id, node in self.nodes.items()}
        for id, node in self.nodes.items():
            for target in self._targets(node):
                if id not in self.before[target]:
                    self.before[target].append(id)
        self.order = self._ordered()
        self.bodies = {id: self._body(id) for id, node in self.nodes.items() if node["type"] == "loop"}
        self.values: dict[str, Any] = {}
        self.status: dict[str, str] = {}
        self.errors: dict[str, Any] = {}
        self.unknown = self.reference.unknown
        self.again = False

    def run(self) -> Reference:
        self._visit(set(self.nodes), (), active=())
        reference = self.reference
        if reference.failures:
            reference.status = "failed"
            return reference
        output = self.definition.get("output")
        behind = {other for others in self.before.values() for other in others}
        terminals = [id for id in self.nodes if id not in behind]
        try:
            if output is not None:
                reference.result = self._fill(output, ())
            elif len(terminals) == 1:
                reference.result = self.values.get(terminals[0])
            else:
                reference.result = {id: self.values.get(id) for id in terminals}
        except ExpressionFailed:
            reference.status, reference.failures = "failed", ["ExpressionFailed"]
        return reference

    # --- order ------------------------------------------------------------------------------------

    @staticmethod
    def _targets(node: dict[str, Any]) -> list[str]:
        return [*(case["to"] for case in node["cases"]), node["default"]] if node["type"] == "branch" else []

    def _ordered(self) -> list[str]:
        found: list[str] = []
        while len(found) < len(self.nodes):
            found += [id for id in self.nodes if id not in found and all(other in found for other in self.before[id])]
        return found

    def _up(self, id: str) -> set[str]:
        found, line = {id}, [id]
        while line:
            for other in self.before[line.pop()]:
                if other not in found:
                    found.add(other)
                    line.append(other)
        return found

    def _body(self, loop: str) -> set[str]:
        to = self.nodes[loop]["to"]
        return {id for id in self._up(loop) if to in self._up(id)}

    # --- regions ----------------------------------------------------------------------------------

    def _visit(self, region: set[str], iterations: tuple[int, ...], active: tuple[str, ...], entered: str = "") -> None:
        """Visits the nodes of a region in order; `entered` begins without asking whether an edge reaches it."""
        done: set[str] = set()
        for id in self.order:
            if id not in region or id in done:
                continue
            loops = [
                loop
                for loop, body in self.bodies.items()
                if loop not in active and self.nodes[loop]["to"] == id and body <= region
            ]
            if not loops:
                self._node(id, region, iterations, forced=id == entered)
                continue
            outer = max(loops, key=lambda loop: len(self.bodies[loop]))
            self._loop(outer, iterations, active, forced=id == entered)
            done |= self.bodies[outer]

    def _loop(self, loop: str, iterations: tuple[int, ...], active: tuple[str, ...], forced: bool) -> None:
        body, to, n = self.bodies[loop], self.nodes[loop]["to"], 0
        while True:
            self.again = False
            self._visit(body, (*iterations, n), (*active, loop), entered=to if n or forced else "")
            if not self.again:
                return
            n += 1

    # --- nodes ------------------------------------------------------------------------------------

    def _node(self, id: str, region: set[str], iterations: tuple[int, ...], forced: bool) -> None:
        later = any(iterations)
        before = [other for other in self.before[id] if not (later and iterations[-1] and other not in region)]
        if any(other in self.unknown for other in self.before[id]):
            # Behind what failed the run: it may begin only where a join does not wait for that.
            self.unknown.add(id)
            return
        if not forced and before and not self._reached(id, before):
            self._end(id, Visit("skipped"))
            return
        try:
            self._enter(id, self.nodes[id], iterations)
        except _Fatal:
            self.unknown.add(id)

    def _reached(self, id: str, before: list[str]) -> bool:
        active = 0
        for other in before:
            chosen = self.values.get(other) if self.nodes[other]["type"] == "branch" else id
            is_target = id in self._targets(self.nodes[other])
            active += self.status[other] != "skipped" and (not is_target or chosen == id)
        join = self.nodes[id].get("join", "all")
        return active >= (join if isinstance(join, int) else 1)

    def _enter(self, id: str, node: dict[str, Any], iterations: tuple[int, ...]) -> None:
        try:
            if "when" in node and not self._holds(node["when"], iterations):
                self._end(id, Visit("skipped"))
                return
            match node["type"]:
                case "transform":
                    value = self._fill(node["value"], iterations)
                case "gather":
                    value = self._gather(id, node, iterations)
                case "branch":
                    cases = (case["to"] for case in node["cases"] if self._holds(case["when"], iterations))
                    value = next(cases, node["default"])
                case "loop":
                    again = self._holds(node["while"], iterations)
                    value = iterations[-1] + 1
                    if again and value < node["max_iterations"]:
                        self.again = True
                        return
                    if again and node.get("on_exhausted", "fail") == "fail":
                        raise Failure("LoopExhausted")
                case "wait":
                    self._step(id, iterations)
                    if "signal" in node and node.get("on_timeout", "fail") == "fail":
                        raise Failure("TimeoutError")
                    value = None
                case "approval":
                    self._step(id, iterations)
                    rule = node.get("on_timeout", "fail")
                    if rule == "fail":
                        raise Failure("TimeoutError")
                    value = Decided({"approve": "approved", "continue": "timed_out"}[rule])
                case "task" | "subgraph" if "map" in node:
                    value = self._map(id, node, iterations)
                case _:
                    value = self._call(id, node, iterations)
        except (Failure, ExpressionFailed) as error:
            self._fail(id, node, error)
            return
        except Discarded:
            self.reference.steps.pop()  # it is told as skipped
            self._end(id, Visit("skipped"))
            return
        self._end(id, Visit("completed", value, self.errors.get(id) if "map" in node else None))

    def _fail(self, id: str, node: dict[str, Any], error: Exception) -> None:
        type = error.type if isinstance(error, Failure) else "ExpressionFailed"
        told = {"type": type, "message": str(error)}
        self._end(id, Visit("failed", error=told))
        if node.get("on_error", "fail") not in ("continue", "dead_letter"):
            self.reference.failures.append(type)
            raise _Fatal

    def _end(self, id: str, visit: Visit) -> None:
        self.reference.visits[id].append(visit)
        self.status[id], self.values[id], self.errors[id] = visit.status, visit.output, visit.error

    # --- work -------------------------------------------------------------------------------------

    def _step(self, id: str, iterations: tuple[int, ...], index: int | None = None) -> None:
        name = id + ("~" + ".".join(map(str, iterations)) if any(iterations) else "")
        self.reference.steps.append(name if index is None else f"{name}#{index}")

    def _call(self, id: str, node: dict[str, Any], iterations: tuple[int, ...], **item: Any) -> Any:
        arguments = self._fill(node.get("with") or {}, iterations, **item)
        self._step(id, iterations, item.get("index"))
        if node["type"] == "subgraph":
            child = execute(self.children[node["graph"]], arguments, self.tasks, self.children)
            if child.failures:
                raise Failure(child.failures[0])
            return child.result
        for attempt in range(1, node.get("retries", 0) + 2):
            try:
                return self.tasks[node["call"]](arguments, attempt)
            except Failure as error:
                last = error
        raise last

    def _map(self, id: str, node: dict[str, Any], iterations: tuple[int, ...]) -> Any:
        items = self._evaluate(node["map"], iterations)
        if isinstance(items, dict):
            items = [{"key": key, "value": value} for key, value in items.items()]
        if "filter" in node:
            items = [x for i, x in enumerate(items) if self._holds(node["filter"], iterations, item=x, index=i)]
        if size := node.get("batch_items"):
            items = [items[at : at + size] for at in range(0, len(items), size)]
        self.errors.pop(id, None)
        if not items:
            return []
        values: list[Any] = []
        failed: list[dict[str, Any]] = []
        for index, item in enumerate(items):
            try:
                values.append(self._call(id, node, iterations, item=item, index=index))
            except (Failure, ExpressionFailed) as error:
                values.append(None)
                type = error.type if isinstance(error, Failure) else "ExpressionFailed"
                failed.append({"index": index, "type": type, "message": str(error)})
        need = self._needed(node.get("gather", "all"), len(items))
        if need is not None:
            if len(items) - len(failed) < need:
                raise Failure("GatherFailed")
            return Loose(tuple(values), need)
        if failed and node.get("on_error", "fail") != "continue":
            raise Failure(failed[0]["type"])
        if failed:
            self.errors[id] = failed
        return values

    @staticmethod
    def _needed(rule: str, n: int) -> int | None:
        """Returns how many values a map needs; None: all items must have ended."""
        match re.fullmatch(r"(\w+)(?:\((.*)\))?", rule).groups():  # type: ignore[union-attr]
            case "any", _:
                return 1
            case "first", k:
                return min(int(k), n)
            case "quorum", share:
                return math.ceil(round(n * float(share), 9))
        return None

    def _gather(self, id: str, node: dict[str, Any], iterations: tuple[int, ...]) -> Any:
        outputs = [self.values[other] for other in self.before[id] if self.status[other] == "completed"]
        if "group_by" not in node:
            return outputs[0] if len(self.before[id]) == 1 and outputs else outputs
        groups: dict[str, list[Any]] = {}
        flat = [x for output in outputs for x in (output if isinstance(output, list) else [output])]
        for index, item in enumerate(flat):
            if item is not None:
                key = self._evaluate(node["group_by"], iterations, item=item, index=index)
                groups.setdefault(key if isinstance(key, str) else str(key).lower(), []).append(item)
        return groups

    # --- expressions ------------------------------------------------------------------------------

    def _scope(self, iterations: tuple[int, ...], item: dict[str, Any]) -> dict[str, Any]:
        nothing = dict.fromkeys(self.nodes)
        seen = {id: _seen(value) for id, value in self.values.items()}
        return {
            **nothing,
            **seen,
            "input": self.input,
            "status": {**nothing, **self.status},
            "errors": {**nothing, **self.errors},
            "iteration": iterations[-1] if iterations else 0,
            **item,
        }

    def _holds(self, text: str, iterations: tuple[int, ...], **item: Any) -> bool:
        return Condition(text).evaluate(self._scope(iterations, item))

    def _evaluate(self, text: str, iterations: tuple[int, ...], **item: Any) -> Any:
        return Expression(text).evaluate(self._scope(iterations, item))

    def _fill(self, value: Any, iterations: tuple[int, ...], **item: Any) -> Any:
        whole = re.fullmatch(r"\$\{(\w+)\}", value) if isinstance(value, str) else None
        if whole and isinstance(self.values.get(whole[1]), Loose):
            return self.values[whole[1]]
        return Template(value).evaluate(self._scope(iterations, item))


def _seen(value: Any) -> Any:
    """Returns an output as expressions see it."""
    if isinstance(value, Loose):
        return [None] * len(value.values)
    return {"decision": value.decision} if isinstance(value, Decided) else value


def matches(expected: Any, actual: Any) -> bool:
    """Tells whether a value is what the reference expects, or one of what it allows."""
    if isinstance(expected, Decided):
        return isinstance(actual, dict) and actual.get("decision") == expected.decision
    if isinstance(expected, Loose):
        if not isinstance(actual, list) or len(actual) != len(expected.values):
            return False
        pairs = list(zip(expected.values, actual, strict=True))
        return (
            all(b is None or matches(a, b) for a, b in pairs) and sum(b is not None for _, b in pairs) >= expected.need
        )
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(matches(expected[key], actual[key]) for key in expected)
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(matches, expected, actual))
    return type(expected) is type(actual) and bool(expected == actual)
