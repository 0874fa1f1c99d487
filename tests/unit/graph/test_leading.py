"""Which nodes a run passes one by one from its beginning: there its step is presumed to stand alone."""

import hashlib

from weft import Graph, Weft
from weft.core.published import Published
from weft.core.routing import Bundle
from weft.sdk.publishing import steps_of


def leading(graph: Graph) -> set[str]:
    steps, _ = steps_of(graph, graph.plan.spec.nodes)
    return set(Published(Bundle(graph.spec, steps), hashlib.sha256(b"x").hexdigest()).leading)


def test_all_of_a_chain_lead_until_something_is_to_be_decided():
    app = Weft("shop")

    @app.task
    async def job() -> int:
        return 1

    @app.task(concurrency=2)
    async def few() -> int:
        return 1

    def graph(*tasks, **last):
        made = app.graph(f"g{len(app.graphs)}")
        for i, task in enumerate(tasks):
            made.task(f"s{i}", task, after=[f"s{i - 1}"] if i else [], **(last if i == len(tasks) - 1 else {}))
        return made

    assert leading(graph(job, job, job)) == {"s0", "s1", "s2"}
    assert leading(graph(job, few, job)) == {"s0"}
    assert leading(graph(few)) == set()
    assert leading(graph(job, job, when="s0 > 0")) == {"s0"}
    assert leading(graph(job, map="input.xs")) == set()

    forked = graph(job, job)
    forked.task("other", job, after=["s0"])
    assert leading(forked) == {"s0"}
    two = graph(job, job)
    two.task("other", job)
    assert leading(two) == set()
