"""The crash-point sweep over graph runs: a worker dies at every commit, and another one goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import graph_apps
from servers import ServerProcess
from weft import StepFailed
from weft.testing.sweep import CrashEverywhere

#: The calls in which a graph run moves.
CALLS = ["commit_nodes", "commit_straight", "commit_steps", "start_graph", "end_run"]


@pytest.fixture
def sweep(server: ServerProcess, tmp_path: Path) -> CrashEverywhere:
    return CrashEverywhere("chaos.graph_apps:app", redis_url=server.url, directory=tmp_path)


#: A sample of the boundaries in the suite, all of them under chaos: each takes some seconds.
SAMPLE = [pytest.param(1, ["commit_nodes"], id="sample"), pytest.param(10, None, id="whole", marks=pytest.mark.chaos)]


@pytest.mark.parametrize(("each", "calls"), SAMPLE)
def test_a_run_undoes_and_fails_whichever_call_its_worker_dies_at(
    sweep: CrashEverywhere, each: int, calls: list[str] | None
):
    def check(run) -> None:
        with pytest.raises(StepFailed, match="no money"):
            run.sync.result(timeout=30)
        nodes = run.sync.graph()["nodes"]
        assert [one["output"] for one in nodes["flight"]["compensation"]] == ["refunded flight"]
        undone = {one["step"]: one["output"] for one in nodes["rooms"]["compensation"]}
        assert undone == {"rooms#0": "refunded room 1", "rooms#1": "refunded room 2"}
        last = run.sync.history()[-1]
        assert (last.data["compensated"], last.data["uncompensated"]) == (3, 0)
        letters = graph_apps.app.portal.call(graph_apps.app.dlq.list())
        assert [letter.step for letter in letters if letter.run_id == run.id] == ["greet"]

    died = sweep(
        lambda: graph_apps.app.portal.call(graph_apps.trip.start()),
        check,
        calls=calls or CALLS,
        each=each,
        duplicates=each > 1,
    )
    assert len(died) >= min(each, 10)


@pytest.mark.parametrize(("each", "calls"), SAMPLE)
def test_children_tell_their_parent_whichever_call_its_worker_dies_at(
    sweep: CrashEverywhere, each: int, calls: list[str] | None
):
    def check(run) -> None:
        assert run.sync.result(timeout=30) == 14
        # A child that was started twice is still one run.
        names = [info.name for info in graph_apps.app.portal.call(graph_apps.app.runs.list())]
        assert sorted(names) == ["square"] * 3 + ["squares"]

    wanted = calls or [*CALLS, "reschedule_run", "fire_timers"]
    died = sweep(
        lambda: graph_apps.app.portal.call(graph_apps.squares.start()),
        check,
        calls=wanted,
        each=min(each, 3),
        duplicates=each > 1,
    )
    assert len(died) >= (1 if calls else 8)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(["hedge_items"], id="sample"),
        pytest.param([*CALLS, "hedge_items", "read_timers", "ZADD"], id="whole", marks=pytest.mark.chaos),
    ],
)
def test_an_item_that_is_started_twice_ends_once_whichever_call_its_worker_dies_at(
    sweep: CrashEverywhere, calls: list[str]
):
    copies = 0

    def check(run) -> None:
        nonlocal copies
        assert run.sync.result(timeout=30) == [10, 20, 30]
        ends = [event.step for event in run.sync.history() if event.type == "step_completed"]
        assert sorted(ends) == ["ask#0", "ask#1", "ask#2"]
        hedged = [event.step for event in run.sync.history() if event.type == "step_hedged"]
        assert len(hedged) == len(set(hedged))
        # None, when the look came before a worker had taken them: the next is a second later.
        copies += len(hedged)

    died = sweep(
        lambda: graph_apps.app.portal.call(graph_apps.answers.start()),
        check,
        calls=calls,
        each=2,
        duplicates=len(calls) > 1,
    )
    assert died and copies


@pytest.mark.parametrize("each", [pytest.param(1, id="sample"), pytest.param(10, id="whole", marks=pytest.mark.chaos)])
def test_a_chain_goes_on_where_it_was_whichever_call_its_worker_dies_at(sweep: CrashEverywhere, each: int):
    def check(runs) -> None:
        for run in runs:
            assert run.sync.result(timeout=30) == 4
            history = run.sync.history()
            assert [event.seq for event in history] == list(range(1, len(history) + 1))
            ends = [event.step for event in history if event.type == "step_completed"]
            assert ends == ["leg0", "leg1", "leg2", "leg3"]

    def start():
        return [graph_apps.app.portal.call(graph_apps.relay.start()) for _ in range(3)]

    died = sweep(start, check, calls=["commit_straight"], each=each, duplicates=each > 1)
    assert len(died) >= min(each, 2)
