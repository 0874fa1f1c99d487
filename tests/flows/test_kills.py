"""Workers die at the boundaries of a workflow's life; another one goes on, and nothing that was committed is done again."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import flow_app
import pytest

from servers import ServerProcess
from weft import RunCancelled, StepFailed
from weft.testing.crash import CRASH_AT, STOP_AT
from weft.testing.sweep import CrashEverywhere

#: The calls in which a workflow run moves.
CALLS = ["commit_flows", "commit_told", "claim_steps", "fire_timers", "mail_run", "start_runs"]
#: A sample of the boundaries in the suite, all of them under chaos: each takes some seconds.
SAMPLE = [
    pytest.param(1, ["commit_flows"], id="sample"),
    pytest.param(20, CALLS, id="whole", marks=pytest.mark.chaos),
]

EFFECTS = ["charge/0/0", "pack/0/0", "charge/1/0", "ship/0/0"]


class Sweep(CrashEverywhere):
    """Remembers where the worker is to die, and what it did outside."""

    point = ""
    stands = False

    def __init__(self, server: ServerProcess, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__("flow_app:app", redis_url=server.url, directory=directory)
        self._directory, self._patch, self._case_number = directory, monkeypatch, 0

    def _case(self, start: Any, check: Any, env: dict[str, str], patience: float) -> bool:
        self.point = env.get(CRASH_AT, "")
        self.stands = STOP_AT in env
        self._case_number += 1
        self.effects = self._directory / f"effects-{self._case_number}"
        self._patch.setenv(flow_app.EFFECTS, str(self.effects))
        return super()._case(start, check, env, patience)

    def check_effects(self, expected: list[str]) -> None:
        """What was committed is never done again; what was not may be, once, by the one who comes after."""
        done = Counter(flow_app.effects(self.effects))
        assert done.keys() == set(expected)
        again = done - Counter(expected)
        if self.point.startswith(("after:commit_flows", "after:commit_told")) or not (self.point or self.stands):
            assert not again, f"{self.point}: {again} after its commit"
        # A worker that stood still does what it has in hand before it learns that it is not its own any more.
        assert again.total() <= 1, f"{self.point}: {again}"


@pytest.fixture
def sweep(server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    return Sweep(server, tmp_path, monkeypatch)


@pytest.mark.parametrize(("each", "calls"), [pytest.param(1, ["commit_told"], id="sample"), SAMPLE[1]])
def test_steps_sleeps_calls_and_signals_survive_a_kill_anywhere(sweep: Sweep, each: int, calls: list[str]):
    def start() -> Any:
        run = flow_app.order.sync.start("o-1")
        run.signal("address", "Rome")
        return run

    def check(run: Any) -> None:
        assert run.result(timeout=30) == {
            "paid": "paid o-1",
            "again": "paid twice",
            "shipped": "shipped packed o-1 to Rome",
        }
        sweep.check_effects(EFFECTS)
        history = run.history()
        steps = Counter(event.step for event in history if event.type == "step_completed")
        assert steps == {"charge": 1, "pack": 1, "charge~1": 1, "ship": 1}
        assert [event.seq for event in history] == list(range(1, len(history) + 1))

    assert len(sweep(start, check, calls=calls, each=each, duplicates=each > 1)) >= min(each, 6)


@pytest.mark.parametrize(("each", "calls"), SAMPLE)
def test_children_survive_a_kill_anywhere(sweep: Sweep, each: int, calls: list[str]):
    def check(run: Any) -> None:
        assert run.result(timeout=30) == [10, 11]
        names = [info.name for info in flow_app.app.portal.call(flow_app.app.runs.list())]
        assert sorted(names) == ["above", "below", "below"]

    assert len(sweep(flow_app.above.sync.start, check, calls=calls, each=min(each, 8), duplicates=each > 1)) >= 2


@pytest.mark.parametrize(("each", "calls"), SAMPLE)
def test_a_cancelled_run_cleans_up_whichever_call_its_worker_dies_at(sweep: Sweep, each: int, calls: list[str]):
    def start() -> Any:
        run = flow_app.undone.sync.start()
        # Before it has begun: the code never runs, and there is nothing to clean up.
        return run

    cancelled: set[str] = set()

    def ended(run: Any) -> None:
        with pytest.raises(RunCancelled):
            run.result(timeout=30)
        sweep.check_effects(["charge/0/0", "charge/1/0", "pack/0/0", "ship/0/0", "ship/1/0"])

    original = sweep._spawn

    def spawn(namespace: str, env: dict[str, str]) -> Any:
        return original(namespace, env)

    def start_and_cancel_later() -> Any:
        import time

        run = start()

        def cancel() -> None:
            for _ in range(3000):
                if run.id in cancelled:
                    return
                if run.status() == "waiting":
                    cancelled.add(run.id)
                    run.cancel()
                    return
                time.sleep(0.01)

        threading.Thread(target=cancel, daemon=True).start()
        return run

    assert len(sweep(start_and_cancel_later, ended, calls=calls, each=min(each, 8), duplicates=each > 1)) >= 2


@pytest.mark.chaos
def test_a_run_that_continues_as_new_survives_a_kill_anywhere(sweep: Sweep):
    def start() -> Any:
        run = flow_app.counting.sync.start(2)
        run.signal("early", "yes")
        return run

    def check(run: Any) -> None:
        assert run.result(timeout=30) == [3, "yes"]
        assert run.state() == {"total": 3}
        sweep.check_effects([f"{name}/{life}/0" for name in ("add", "pack") for life in ("0", "1.0", "2.0")])
        history = run.history()
        assert [event.data["life"] for event in history if event.type == "continued"] == [1, 2]
        assert [event.seq for event in history] == list(range(1, len(history) + 1))

    assert len(sweep(start, check, calls=CALLS, each=8)) >= 10


def test_the_commit_that_begins_a_new_life_is_all_or_nothing(sweep: Sweep):
    """The worker dies before and after the very call that begins the second life: it is the first commit."""

    def check(run: Any) -> None:
        assert run.result(timeout=30) == 7
        sweep.check_effects(["add/1.0/0"])
        assert [event.type for event in run.history()].count("continued") == 1

    points = ["before:commit_flows:1", "after:commit_flows:1"]
    start = flow_app.renewing.sync.start
    assert sweep(start, check, calls=["commit_flows"], each=1, duplicates=False) == points


@pytest.mark.chaos
def test_a_child_that_continues_as_new_survives_a_kill_anywhere(sweep: Sweep):
    def check(run: Any) -> None:
        assert run.result(timeout=30) == [1, "yes"]

    assert len(sweep(flow_app.counting_above.sync.start, check, calls=CALLS, each=8)) >= 6


@pytest.mark.parametrize(("each", "calls"), SAMPLE)
def test_updates_survive_a_kill_anywhere(sweep: Sweep, each: int, calls: list[str]):
    answers: dict[str, list[Any]] = {}

    def start() -> Any:
        run = flow_app.desk.sync.start()
        found = answers[run.id] = []

        def ask() -> None:
            for what in ("a", "b"):
                found.append(run.update("tell", what, id=what, timeout=300))
            # Whoever comes back gets the same, and the handler does not run again.
            found.append(run.update("tell", "a", id="a", timeout=300))
            run.signal("close")

        threading.Thread(target=ask, daemon=True).start()
        return run

    def check(run: Any) -> None:
        assert run.result(timeout=30) == ["a", "b"]
        assert answers[run.id] == [1, 2, 1]
        sweep.check_effects(["charge/0/0", "note/0/0", "note/1/0"])

    died = sweep(start, check, calls=calls, each=each, duplicates=each > 1)
    assert len(died) >= min(each, 6)


@pytest.mark.chaos
def test_a_run_past_its_deadline_tidies_up_whichever_call_its_worker_dies_at(sweep: Sweep):
    def check(run: Any) -> None:
        with pytest.raises(StepFailed, match="deadline"):
            run.result(timeout=30)
        # Its time may be over before its first step is: then there is nothing to tidy up.
        steps = [event.step for event in run.history() if event.type == "step_completed"]
        assert steps in ([], ["charge", "pack", "ship"])

    start = flow_app.overdue.options(deadline="3s").sync.start
    assert len(sweep(start, check, calls=CALLS, each=8)) >= 6
