"""watch_runs: registers a channel with runs and says at once which have ended; both in one step, so nothing is missed."""

import pytest
from partition import ERROR, RESULT, completed, failed

from weft.store.runs import watch_runs

NOWHERE = "0000000000000000000000"


@pytest.mark.leaves("open runs")
async def test_an_open_run_notes_the_channel_once(part, ns, p):
    (run,) = await part.start()

    for _ in range(3):
        assert await watch_runs(ns, p, [run], "t:inbox:c-1") == [("", b"")]

    assert part.run(run)["watch"] == "t:inbox:c-1"


@pytest.mark.leaves("open runs")
async def test_channels_stand_next_to_each_other_and_a_prefix_of_one_is_another(part, ns, p):
    (run,) = await part.start()

    for channel in ("t:inbox:c-1", "~t:inbox:c-1", "t:inbox:c", "t:inbox:c-1"):
        await watch_runs(ns, p, [run], channel)

    assert part.run(run)["watch"].split() == ["t:inbox:c-1", "~t:inbox:c-1", "t:inbox:c"]


async def test_a_finished_run_answers_with_its_value_and_notes_nothing(part, ns, p):
    await part.start(2)
    one, two = await part.claim()
    await part.commit(completed(one), failed(two))
    before = part.snapshot()

    reply = await watch_runs(ns, p, [one.run, two.run], "t:inbox:c-1")

    assert reply == [("completed", RESULT), ("failed", ERROR)]
    assert part.snapshot() == before


@pytest.mark.leaves("open runs")
async def test_an_unknown_run_is_gone_and_creates_nothing(part, ns, p):
    (run,) = await part.start()

    assert await watch_runs(ns, p, [f"r{p}-{NOWHERE}", run], "t:inbox:c-1") == [("gone", b""), ("", b"")]

    assert part.run(f"r{p}-{NOWHERE}") == {}


@pytest.mark.leaves("open runs")
async def test_the_list_of_watchers_stays_small(part, ns, p):
    (run,) = await part.start()

    for n in range(200):
        await watch_runs(ns, p, [run], f"t:inbox:c-{n:040d}")

    assert len(part.run(run)["watch"]) < 4_200


@pytest.mark.leaves("open runs")
async def test_it_refuses_other_epochs(part, ns, p, refuses_other_epochs):
    (run,) = await part.start()
    await refuses_other_epochs(lambda: watch_runs(ns, p, [run], "t:inbox:c-1"))
