"""Random valid graphs, made of blocks: each construct is a block that follows one node and ends in one node.

Blocks nest (what is left of the wish list may go inside of a loop, a branch or a diamond), so constructs meet in every way.
What comes out does not depend on who is faster, except where the reference says so.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

#: Everything a graph can be made of, and every policy it can have.
CONSTRUCTS = (
    "task transform wait when branch diamond join_any join_n loop carry exhausted map filter batch_items map_failures"
    " empty_map first quorum any gather group_by continue retries large errors cache dead_letter discard unsignalled"
    " undecided subgraph submap"
).split()
#: Blocks that hold others.
CONTAINERS = {"branch", "diamond", "join_any", "join_n", "loop", "exhausted", "carry"}
#: Characters of a value that does not stand inline.
LARGE = 9_000


class Graph:
    """A definition, the input of its run, and what it is made of."""

    def __init__(self, seed: int, *, n: int = 15, fatal: bool | None = None, inner: str = "") -> None:
        """`inner`: the name of a graph that is within another, and has none within itself."""
        self.rng = random.Random(seed)
        #: Graphs within this one, by name.
        self.children: dict[str, dict[str, Any]] = {}
        self.name = inner or f"g{seed}"
        self.nodes: dict[str, dict[str, Any]] = {}
        self.used: set[str] = set()
        self.input = {
            "n": self.rng.randrange(6),
            "items": [self.rng.randrange(5) for _ in range(self.rng.randrange(6))],
        }
        self._numbers = itertools.count(1)
        #: Nodes with a number that whatever comes next may read.
        self.visible: list[str] = []
        self.depth = 0
        wants = self.rng.sample([one for one in CONSTRUCTS if not (inner and one.startswith("sub"))], n)
        last = self._sequence(wants, None)
        if fatal if fatal is not None else self.rng.random() < 0.15:
            self._doom()
        self.definition: dict[str, Any] = {"name": self.name, "nodes": self.nodes}
        if self.rng.random() < 0.5:
            self.used.add("output")
            self.definition["output"] = {"last": f"${{{last}}}", "n": "${input.n}"}

    # --- blocks -----------------------------------------------------------------------------------

    def _sequence(self, wants: list[str], pred: str | None) -> str:
        wants = list(wants)
        last = pred
        while wants or last == pred:
            want = wants.pop() if wants else "task"
            inside: list[str] = []
            if want in CONTAINERS and self.depth < 3:
                inside = wants[: self.rng.randint(0, min(4, len(wants)))]
                wants = wants[len(inside) :]
            self.used.add(want)
            self.depth += 1
            last = getattr(self, f"_{want}")(last, inside)
            self.depth -= 1
        assert last is not None
        return last

    def _add(self, type: str, after: Iterable[str | None], id: str = "", *, number: bool = False, **fields: Any) -> str:
        id = id or f"{type[0]}{next(self._numbers)}"
        self.nodes[id] = {"type": type, "after": [one for one in after if one], **fields}
        if not self.nodes[id]["after"]:
            del self.nodes[id]["after"]
        if number:
            self.visible.append(id)
        return id

    def _call(self, after: Iterable[str | None], gives: Any = None, *, number: bool = True, **fields: Any) -> str:
        with_ = {"gives": gives if gives is not None else f"${{{self._number()}}}", **fields.pop("arguments", {})}
        return self._add("task", after, number=number, call="act", **{"with": with_}, **fields)

    def _number(self) -> str:
        """Returns an expression for a number, whatever became of the node it names."""
        if not self.visible or self.rng.random() < 0.2:
            return self.rng.choice(["input.n", "iteration", "7", "size(input.items)"])
        id = self.rng.choice(self.visible[-4:])
        return f"{id} == null ? -1 : {id} + 1"

    def _condition(self) -> str:
        if not self.visible or self.rng.random() < 0.3:
            return self.rng.choice(["input.n > 2", "iteration % 2 == 0", "true", "false", "size(input.items) > 1"])
        id = self.rng.choice(self.visible[-4:])
        return self.rng.choice(
            [
                f"({id} == null ? 0 : {id}) % 2 == 0",
                f"status.{id} == 'completed'",
                f"errors.{id} == null",
                f"{id} != null",
            ]
        )

    def _task(self, pred: str | None, inside: list[str]) -> str:
        return self._call([pred])

    def _transform(self, pred: str | None, inside: list[str] = []) -> str:  # noqa: B006
        return self._add("transform", [pred], number=True, value=f"${{{self._number()}}}")

    def _wait(self, pred: str | None, inside: list[str]) -> str:
        return self._add("wait", [pred], duration=self.rng.choice(["1ms", "10ms"]))

    def _when(self, pred: str | None, inside: list[str]) -> str:
        """A node that may be skipped, and a way around it."""
        first = pred or self._transform(None)
        make = self.rng.choice(["task", "transform"])
        fields: dict[str, Any] = {"when": self._condition()}
        one = (
            self._call([first], **fields)
            if make == "task"
            else self._add("transform", [first], number=True, value=f"${{{self._number()}}}", **fields)
        )
        behind = self._call([one])  # skipped with it
        return self._transform_of([first, behind])

    def _transform_of(self, after: list[str]) -> str:
        return self._add("transform", after, number=True, value=f"${{{self._number()}}}")

    def _branch(self, pred: str | None, inside: list[str]) -> str:
        branch = self._add("branch", [pred or self._transform(None)])
        conditions = [self._condition() for _ in range(self.rng.randint(1, 2))]
        arms = self._arms(branch, inside, len(conditions) + 1)
        heads = [arm[0] for arm in arms]
        self.nodes[branch]["cases"] = [{"when": when, "to": to} for when, to in zip(conditions, heads[1:], strict=True)]
        self.nodes[branch]["default"] = heads[0]
        return self._join([arm[1] for arm in arms])

    def _arms(self, pred: str | None, inside: list[str], n: int) -> list[tuple[str, str]]:
        """Makes branches side by side; what is in one is not seen by the others."""
        found, seen, left = [], list(self.visible), list(inside)
        made = []
        for i in range(n):
            self.visible = list(seen)
            head = self._call([pred]) if self.rng.random() < 0.5 else self._transform(pred)
            take = left if i == n - 1 else left[: self.rng.randint(0, len(left))]
            left = left[len(take) :]
            found.append((head, self._sequence(take, head) if take else head))
            made += self.visible[len(seen) :]
        self.visible = seen + made
        return found

    def _join(self, after: list[str], **fields: Any) -> str:
        kind = self.rng.choice(["task", "transform", "gather"])
        if kind == "gather":
            return self._add("gather", after, **fields)
        if kind == "task":
            return self._call(after, **fields)
        return self._add("transform", after, number=True, value=f"${{{self._number()}}}", **fields)

    def _diamond(self, pred: str | None, inside: list[str]) -> str:
        return self._join([end for _, end in self._arms(pred, inside, self.rng.randint(2, 4))])

    def _early(self, pred: str | None, inside: list[str], join: Any, n: int) -> str:
        """A join that does not wait for all, then one that does: so the rest does not depend on who was faster."""
        seen = list(self.visible)
        ends = [end for _, end in self._arms(pred, inside, n)]
        made, self.visible = self.visible[len(seen) :], seen
        early = self._call(ends, join=join)
        self.visible += made
        return self._transform_of([early, *ends])

    def _join_any(self, pred: str | None, inside: list[str]) -> str:
        return self._early(pred, inside, "any", self.rng.randint(2, 4))

    def _join_n(self, pred: str | None, inside: list[str]) -> str:
        return self._early(pred, inside, 2, self.rng.randint(3, 4))

    def _loop(self, pred: str | None, inside: list[str], **fields: Any) -> str:
        turns = self.rng.randint(1, 3)
        return self._looped(pred, inside, **{"while": f"iteration < {turns - 1}", "max_iterations": 5, **fields})

    def _looped(self, pred: str | None, inside: list[str], carry: bool = False, **fields: Any) -> str:
        head = self._transform(pred) if self.rng.random() < 0.5 else self._call([pred])
        tail = self._sequence(inside, head) if inside else self._call([head])
        if carry:
            # A number that grows from one iteration to the next.
            tail = self._call([tail], f"${{{head} + 1}}")
            own = {"type": "transform", "value": f"${{{tail} == null ? 0 : {tail}}}"}
            after = self.nodes[head].get("after")
            self.nodes[head] = {**own, **({"after": after} if after else {})}
        return self._add("loop", [tail], id=f"l{next(self._numbers)}", to=head, **fields)

    def _carry(self, pred: str | None, inside: list[str]) -> str:
        return self._loop(pred, inside, carry=True)

    def _exhausted(self, pred: str | None, inside: list[str]) -> str:
        most = self.rng.randint(1, 3)
        return self._loop(pred, inside, **{"while": "true", "max_iterations": most, "on_exhausted": "continue"})

    def _items(self) -> str:
        return self.rng.choice(["input.items", "[1, 2, 3]", "[5, 6, 7, 8, 9].map(x, x * 2)", "[input.n, 1]"])

    def _mapped(self, pred: str | None, gives: str = "${item + index}", **fields: Any) -> str:
        fields.setdefault("map", self._items())
        if self.rng.random() < 0.5:
            fields["max_parallel"] = self.rng.randint(1, 3)
        one = self._call([pred], gives, number=False, **fields)
        # Downstream only its size is read: which items were waited for depends on who was faster.
        return self._add("transform", [one], number=True, value=f"${{{one} == null ? -1 : size({one})}}")

    def _map(self, pred: str | None, inside: list[str]) -> str:
        return self._mapped(pred)

    def _filter(self, pred: str | None, inside: list[str]) -> str:
        return self._mapped(pred, filter="item % 2 == 1 || index == 0")

    def _batch_items(self, pred: str | None, inside: list[str]) -> str:
        return self._mapped(pred, "${item}", batch_items=self.rng.randint(1, 3))

    def _empty_map(self, pred: str | None, inside: list[str]) -> str:
        return self._mapped(pred, map="[]")

    def _map_failures(self, pred: str | None, inside: list[str]) -> str:
        which = {"fails": f"${{index == {self.rng.randrange(2)} ? 9 : 0}}"}
        return self._mapped(
            pred, arguments=which, on_error="continue", retries=self.rng.randrange(2), retry_delay="1ms"
        )

    def _policy(self, pred: str | None, rule: str) -> str:
        fields: dict[str, Any] = {"gather": rule, "on_error": "continue"}
        if self.rng.random() < 0.5:
            fields["arguments"] = {"fails": "${index % 2 == 0 ? 9 : 0}"}
        return self._mapped(pred, **fields)

    def _first(self, pred: str | None, inside: list[str]) -> str:
        return self._policy(pred, f"first({self.rng.randint(1, 3)})")

    def _quorum(self, pred: str | None, inside: list[str]) -> str:
        return self._policy(pred, self.rng.choice(["quorum(0.5)", "quorum(0.8)"]))

    def _any(self, pred: str | None, inside: list[str]) -> str:
        return self._policy(pred, "any")

    def _gather(self, pred: str | None, inside: list[str]) -> str:
        return self._add("gather", [end for _, end in self._arms(pred, inside, self.rng.randint(1, 3))])

    def _group_by(self, pred: str | None, inside: list[str]) -> str:
        one = self._call([pred], "${item * 2 + index}", number=False, map=self._items())
        key = self.rng.choice(["string(item % 3)", "item % 2", "item > 4"])
        return self._add("gather", [one], group_by=key)

    def _continue(self, pred: str | None, inside: list[str]) -> str:
        return self._call([pred], arguments={"fails": 9}, on_error="continue")

    def _errors(self, pred: str | None, inside: list[str]) -> str:
        """Reads what failed, of one node and of the items of a map, also a step later."""
        one = self._continue(pred, [])
        many = self._call([one], "${item}", number=False, map="[4, 5, 6]", on_error="continue",
                          arguments={"fails": "${index == 1 ? 9 : 0}"})  # fmt: skip
        between = self._call([many])
        told = {"one": f"${{errors.{one}}}", "many": f"${{errors.{many}}}", "none": f"${{errors.{between}}}"}
        return self._add("transform", [between], value=told)

    def _retries(self, pred: str | None, inside: list[str]) -> str:
        return self._call([pred], arguments={"fails": 2}, retries=2, retry_delay="1ms", jitter=False)

    def _cache(self, pred: str | None, inside: list[str]) -> str:
        return self._call([pred], cache="1h")

    def _dead_letter(self, pred: str | None, inside: list[str]) -> str:
        return self._call([pred], arguments={"fails": 9}, on_error="dead_letter")

    def _discard(self, pred: str | None, inside: list[str]) -> str:
        """A task that says it is not needed, what is skipped with it, and a way around both."""
        first = pred or self._transform(None)
        behind = self._call([self._call([first], arguments={"discards": True})])
        return self._transform_of([first, behind])

    def _unsignalled(self, pred: str | None, inside: list[str]) -> str:
        """A wait for a signal that does not come."""
        rule = self.rng.choice([{"on_timeout": "continue"}, {"on_timeout": "fail", "on_error": "continue"}])
        one = self._add("wait", [pred], signal="never", timeout="20ms", **rule)
        return self._add("transform", [one], number=True, value=f"${{status.{one} == 'failed' ? -1 : 1}}")

    def _undecided(self, pred: str | None, inside: list[str]) -> str:
        """An approval that nobody decides."""
        rule = self.rng.choice([{"on_timeout": word} for word in ("approve", "continue")] + [{"on_error": "continue"}])
        one = self._add("approval", [pred], approvers=["ann"], timeout="20ms", **rule)
        return self._add("transform", [one], number=True, value=f"${{{one} == null ? -1 : size({one}.decision)}}")

    def _within(self, pred: str | None, **fields: Any) -> str:
        name = f"{self.name}_{len(self.children)}"
        child = Graph(self.rng.randrange(10**9), n=self.rng.randint(1, 3), fatal=False, inner=name)
        self.children[name] = child.definition
        return self._add("subgraph", [pred], graph=name, **fields)

    def _subgraph(self, pred: str | None, inside: list[str]) -> str:
        one = self._within(pred, **{"with": {"n": f"${{{self._number()}}}", "items": [3, 1]}})
        return self._add("transform", [one], number=True, value=f"${{{one} == null ? -1 : 1}}")

    def _submap(self, pred: str | None, inside: list[str]) -> str:
        fields = {"with": {"n": "${item}", "items": "${[index]}"}, "max_parallel": self.rng.randint(1, 3)}
        one = self._within(pred, map=self._items(), **fields)
        return self._add("transform", [one], number=True, value=f"${{{one} == null ? -1 : size({one})}}")

    def _large(self, pred: str | None, inside: list[str]) -> str:
        text = self.rng.choice("xyz") * LARGE
        if self.rng.random() < 0.3:
            one = self._call([pred], text, number=False, map="[1, 2]")
        else:
            one = self._call([pred], text, number=False)
        copy = self._add("transform", [one], value=f"${{{one}}}")
        return self._add("transform", [copy], number=True, value=f"${{{copy} == null ? -1 : size({copy})}}")

    def _doom(self) -> None:
        """Makes one task fail the run."""
        tasks = [id for id, node in self.nodes.items() if node["type"] == "task" and "on_error" not in node]
        if tasks:
            self.used.add("fatal")
            node = self.nodes[self.rng.choice(tasks)]
            node["with"]["fails"] = 9


def table(graphs: Iterable[Graph]) -> Counter[tuple[str, str]]:
    """Counts in how many graphs each pair of constructs meets."""
    found: Counter[tuple[str, str]] = Counter()
    for graph in graphs:
        found.update(itertools.combinations_with_replacement(sorted(graph.used), 2))
    return found


def show(counts: Counter[tuple[str, str]]) -> str:
    """Draws the table."""
    names = sorted({name for pair in counts for name in pair})
    lines = [" " * 14 + " ".join(f"{name[:5]:>5}" for name in names)]
    for one in names:
        row = [counts[min(one, other), max(one, other)] for other in names]
        lines.append(f"{one:<14}" + " ".join(f"{n:>5}" for n in row))
    return "\n".join(lines)
