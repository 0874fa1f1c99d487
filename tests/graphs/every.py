"""One graph that uses every construct there is, and what it must come to: a table of its own, without a word of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphs.comparing import declare_graph
from weft import Weft
from weft.sdk.graph import Graph

#: Characters of a value that does not stand inline.
LARGE = "x" * 9_000


def act(after: str = "", gives: Any = 1, *, arguments: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A node that gives a value, or fails as often as `fails` says."""
    before = {"after": after.split()} if after else {}
    return {"type": "task", "call": "act", "with": {"gives": gives, **(arguments or {})}, **before, **fields}


def fails(after: str = "", **fields: Any) -> dict[str, Any]:
    return act(after, arguments={"fails": 9}, **fields)


def transform(after: str, value: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "transform", "after": after.split(), "value": value, **fields}


#: A child that maps: within a map of its parent, that is a nested map.
PAIRS = {"name": "pairs", "nodes": {"sums": act(gives="${item + input.n}", map="[10, 20]")}}

#: A child that fails, and undoes what it did before it does.
TRIP = {
    "name": "trip",
    "nodes": {
        "flight": act(gives="flight", compensate={"call": "act", "with": {"gives": "no ${flight}"}}),
        "rooms": act(
            "flight", "${item}", map="[1, 2]", max_parallel=1,
            compensate={"call": "act", "with": {"gives": "no room ${item}"}},
        ),
        "pay": fails("rooms", on_error="compensate"),
    },
}  # fmt: skip

NODES: dict[str, Any] = {
    # entry, with retries of its own; joins: all, any, n
    "entry": act(gives="${input.n}", arguments={"fails": 1}, retries=2, retry_delay="1ms"),
    "nap": {"type": "wait", "after": ["entry"], "duration": "20ms"},
    "left": act("entry", 1),
    "right": act("entry", 2),
    "both": transform("left right", "${left + right}"),
    "early": act("left right", 7, join="any"),
    "two": act("left right nap", 8, join=2),
    # when, branch with default, and what is skipped with them
    "odd": act("both", 5, when="both % 2 == 1"),
    "even": act("both", 5, when="both % 2 == 0"),
    "behind": act("even", 5),
    "route": {"type": "branch", "after": ["both"], "cases": [{"when": "both > 100", "to": "high"}], "default": "low"},
    "high": act("route", 0),
    "low": act("route", 6),
    "met": act("high low", "${low}"),
    # a loop that breaks, with a step that is executed once and kept; one that is exhausted
    "body": act("met", "${iteration}"),
    "same": act("body", "kept", cache="1h"),
    "again": {"type": "loop", "after": ["same"], "to": "body", "while": "body < 2", "max_iterations": 9},
    "turn": transform("again", "${iteration}"),
    "spin": {
        "type": "loop", "after": ["turn"], "to": "turn", "while": "true", "max_iterations": 3, "on_exhausted": "continue",
    },
    # maps: filter and max_parallel, empty, batches and groups, failed items, kept items, a limit by key
    "each": act("odd", "${item * 10}", map="input.items", filter="item > 1", max_parallel=1),
    "none": act("odd", 1, map="[]"),
    "batches": act("none", "${item}", map="[1, 2, 3, 4, 5]", batch_items=2),
    "groups": {"type": "gather", "after": ["batches"], "group_by": "size(item)"},
    "some": act("odd", "${item}", map="[1, 2, 3]", arguments={"fails": "${index == 1 ? 9 : 0}"}, on_error="continue"),
    "who": transform("some", "${errors.some[0].index}"),
    "memo": act("odd", "${item}", map="[4, 4, 5]", max_parallel=1, cache="1h"),
    "keyed": act("odd", "${item}", map="[1, 2, 3, 4]", concurrency_key="${string(item % 2)}", concurrency_per_key=1),
    # policies of gathering; which items they come with depends on who is faster
    "p_any": act("each", "${item}", map="[1, 2, 3]", gather="any"),
    "p_first": act("each", "${item}", map="[1, 2, 3]", gather="first(2)"),
    "p_quorum": act("each", "${item}", map="[1, 2, 3]", gather="quorum(50%)"),
    "p_deadline": {
        "type": "task", "call": "slow", "after": ["each"], "map": "[1, 2, 3]", "gather": "deadline(250ms)",
        "with": {"n": "${item}", "ms": "${index == 1 ? 60000 : 1}"}, "timeout": "2m",
    },
    "sizes": transform(
        "p_any p_first p_quorum p_deadline", "${[size(p_any), size(p_first), size(p_quorum), size(p_deadline)]}"
    ),
    # failures: gone on from, told of, kept as a letter
    "bad": fails("entry", on_error="continue"),
    "lost": fails("entry", on_error="dead_letter", retries=1, retry_delay="1ms"),
    "told": transform("bad lost", "${[errors.bad.type, errors.lost.type, status.lost]}"),
    # graphs within: a nested map, and one that undoes what it did
    "pairs": {"type": "subgraph", "graph": "pairs", "after": ["entry"], "map": "[1, 2]", "with": {"n": "${item}"}},
    "trip": {"type": "subgraph", "graph": "trip", "after": ["entry"], "with": {}, "on_error": "continue"},
    # the outside: a request, a signal, people
    "page": {"type": "http", "after": ["entry"], "url": "${input.site}", "retries": 3, "retry_delay": "10ms"},
    "read": transform("page", "${page.body.page}"),
    "go": {"type": "wait", "after": ["entry"], "signal": "go"},
    "review": {"type": "approval", "after": ["go"], "approvers": ["ann"], "show": "${go}"},
    "said": transform("review", "${review.decision}"),
    # large values, by reference
    "large": act("entry", LARGE),
    "copy": transform("large", "${large}"),
    "length": transform("copy", "${size(copy)}"),
}  # fmt: skip

EVERY = {
    "name": "every",
    "input": {
        "type": "object",
        "required": ["n", "items", "site"],
        "properties": {"n": {"type": "integer"}, "items": {"type": "array"}, "site": {"type": "string"}},
    },
    "nodes": NODES,
    "output": {
        name: f"${{{name}}}"
        for name in "both early two met again spin each groups who memo sizes told pairs read said length".split()
    },
}

RESULT = {
    "both": 3, "early": 7, "two": 8, "met": 6, "again": 3, "spin": 3, "each": [30, 20], "who": 1, "memo": [4, 4, 5],
    "groups": {"1": [[5]], "2": [[1, 2], [3, 4]]}, "sizes": [3, 3, 3, 3], "told": ["ValueError", "ValueError", "failed"],
    "pairs": [[11, 21], [12, 22]], "read": 17, "said": "approved", "length": 9_000,
}  # fmt: skip


def some_of(*values: Any, least: int) -> Callable[[Any], bool]:
    """What a map gives that does not wait for all: items by index or null, some of them at least."""

    def fits(got: Any) -> bool:
        there = [one for one in got if one is not None]
        return len(there) >= least and all(one in (None, want) for one, want in zip(got, values, strict=True))

    return fits


#: Node -> status and output; a function where several are right.
NODES_COME_TO: dict[str, tuple[str, Any]] = {
    "entry": ("completed", 3), "nap": ("completed", None), "left": ("completed", 1), "right": ("completed", 2),
    "both": ("completed", 3), "early": ("completed", 7), "two": ("completed", 8), "odd": ("completed", 5),
    "even": ("skipped", None), "behind": ("skipped", None), "route": ("completed", "low"), "high": ("skipped", None),
    "low": ("completed", 6), "met": ("completed", 6), "body": ("completed", 2), "same": ("completed", "kept"),
    "again": ("completed", 3), "turn": ("completed", 2), "spin": ("completed", 3), "each": ("completed", [30, 20]),
    "none": ("completed", []), "batches": ("completed", [[1, 2], [3, 4], [5]]),
    "groups": ("completed", RESULT["groups"]), "some": ("completed", [1, None, 3]), "who": ("completed", 1),
    "memo": ("completed", [4, 4, 5]), "keyed": ("completed", [1, 2, 3, 4]),
    "p_any": ("completed", some_of(1, 2, 3, least=1)), "p_first": ("completed", some_of(1, 2, 3, least=2)),
    "p_quorum": ("completed", some_of(1, 2, 3, least=2)), "p_deadline": ("completed", some_of(2, None, 4, least=0)),
    "sizes": ("completed", [3, 3, 3, 3]), "bad": ("failed", None), "lost": ("failed", None),
    "told": ("completed", RESULT["told"]), "pairs": ("completed", [[11, 21], [12, 22]]), "trip": ("failed", None),
    "page": ("completed", lambda got: got["status"] == 200), "read": ("completed", 17), "go": ("completed", {"by": "bo"}),
    "review": ("completed", lambda got: got["by"] == "ann"), "said": ("completed", "approved"),
    "large": ("completed", LARGE), "copy": ("completed", LARGE), "length": ("completed", 9_000),
}  # fmt: skip

#: Steps that end by a worker's commit, each once; of the maps that do not wait for all, only those that must.
MAYBE = ("p_any#", "p_first#", "p_quorum#", "p_deadline#")
STEPS = {
    *"entry nap left right early two odd low met body body~1 body~2 same bad lost trip page go review large".split(),
    *(
        f"{map}#{i}"
        for map, n in {"each": 2, "batches": 3, "some": 3, "keyed": 4, "pairs": 2}.items()
        for i in range(n)
    ),
    *("memo#0", "memo#2"),
}
#: Steps whose output was kept from one like them.
KEPT = {"same~1", "same~2", "memo#1"}


def declare_every(app: Weft) -> Graph:
    """Declares the graph and its children on an app that has the tasks `act` and `slow`."""
    for child in (PAIRS, TRIP):
        if child["name"] not in app.graphs:
            app.graphs[child["name"]] = declare_graph(app, child)
    return declare_graph(app, EVERY)
