"""What a patch asks to be decided, on a plan that was read before it: nothing is guessed, the commit will be refused."""

import hashlib

from weft import Weft
from weft.core.effects import Last
from weft.core.published import Published
from weft.core.routing import Bundle, Job, Router
from weft.core.scope import Scope
from weft.sdk.publishing import steps_of


def test_a_node_that_the_plan_does_not_know_reaches_nothing():
    app = Weft("shop")
    graph = app.graph("g")
    graph.transform("a", 1)
    graph.transform("b", 2, after="a")
    steps, _ = steps_of(graph, graph.plan.spec.nodes)
    router = Router(Published(Bundle(graph.spec, steps), hashlib.sha256(b"x").hexdigest()), Scope())

    router.go([Job("reach", "b", (), "added+"), Job("reach", "added", (), "a+"), Job("enter", "added", ())])

    assert router.close("$patch2>") == [Last()] and not router.failed
