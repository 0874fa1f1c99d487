"""What a worker says of its workflows when it starts, and which queues `weft dev` serves for them."""

from __future__ import annotations

from weft import Context, Weft
from weft.cli.banner import queues_of, workflow_facts


def test_workflows_and_their_queues_are_known():
    app = Weft("shop")
    assert workflow_facts(app) == []

    @app.workflow(queue="slow", aliases=["buy"])
    async def order(ctx: Context) -> None: ...

    assert workflow_facts(app) == [("workflows", "order")]
    assert queues_of(app) == {"slow": {"order"}}
