"""Counting runs while they are archived."""

from __future__ import annotations

import pytest

from weft import StepFailed
from weft.archive.reader import Reader
from weft.engine import listing

pytestmark = pytest.mark.leaves("history")


async def test_what_is_archived_while_it_is_counted_counts_once(app, archive, monkeypatch):
    @app.task
    async def bad() -> None:
        raise ValueError("no")

    async def go_on():
        async with app.worker():
            for run in runs:
                with pytest.raises(StepFailed):
                    await run.result(20)
        await archive()

    runs = [await bad.enqueue()]
    await go_on()
    runs.append(await bad.enqueue())
    honest, counted = listing.count_cold, Reader._doubts

    async def go_on_before(*args, **options):
        await go_on()
        return await honest(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(listing, "count_cold", go_on_before)
        assert await app.runs.count() == {"failed": 1, "queued": 1}
    assert await app.runs.count() == {"failed": 2}

    async def go_on_between(*args):
        await go_on()
        async for page in counted(*args):
            yield page

    runs.append(await bad.enqueue())
    with monkeypatch.context() as patched:
        patched.setattr(Reader, "_doubts", go_on_between)
        assert await app.runs.count() == {"failed": 2, "queued": 1}
    assert await app.runs.count() == {"failed": 3}
