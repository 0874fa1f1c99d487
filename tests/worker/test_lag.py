"""The lag detector: names the line that blocks the event loop."""

import asyncio
import time

from weft.worker import lease


def snore(seconds: float) -> None:
    time.sleep(seconds)  # the line a warning must name


async def test_a_step_that_blocks_the_loop_is_named_with_its_line(app, start_worker, monkeypatch, caplog):
    monkeypatch.setattr(lease, "LAG", 0.3)
    monkeypatch.setattr(lease, "TICK", 0.05)

    @app.task
    async def block() -> None:
        snore(0.8)

    await start_worker()
    await (await block.enqueue()).result(10)

    warnings = [record for record in caplog.records if "event loop is blocked" in record.getMessage()]
    assert len(warnings) == 1, "one warning per blockade, however long it lasts"
    where = warnings[0].facts["where"]
    assert __file__ in where
    assert "in snore" in where
    assert "time.sleep(seconds)" in where


async def test_a_loop_that_turns_is_not_complained_about(app, start_worker, monkeypatch, caplog):
    monkeypatch.setattr(lease, "LAG", 0.3)
    monkeypatch.setattr(lease, "TICK", 0.05)

    @app.task
    async def patient() -> None:
        await asyncio.sleep(0.5)

    @app.task
    def thread() -> None:
        time.sleep(0.5)

    await start_worker()
    for run in (await patient.enqueue(), await thread.enqueue()):
        await run.result(10)

    assert "event loop is blocked" not in caplog.text
