"""Counting runs while they are archived."""

from __future__ import annotations

import pytest

from weft import StepFailed
from weft.engine import listing

pytestmark = pytest.mark.leaves("history")


async def test_a_run_that_ends_and_is_archived_between_two_questions_breaks_no_count(
    app, start_worker, archive, monkeypatch
):
    @app.task
    async def bad() -> None:
        raise ValueError("no")

    run, honest = await bad.enqueue(), listing.count_cold

    async def count_and_go_on(*args):
        counted = await honest(*args)
        await start_worker()
        with pytest.raises(StepFailed):
            await run.result(20)
        await archive()
        return counted

    monkeypatch.setattr(listing, "count_cold", count_and_go_on)
    assert await app.runs.count() == {"queued": 1}
    monkeypatch.undo()
    assert await app.runs.count() == {"failed": 1}
