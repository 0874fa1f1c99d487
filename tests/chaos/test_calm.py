"""Without any fault: the checker itself, on a calm run and on states it must refuse."""

from __future__ import annotations

from chaos.checker import check, check_new_work
from chaos.fleet import Fleet


def test_a_calm_fleet_keeps_every_promise() -> None:
    with Fleet() as fleet:
        fleet.start_workers(2)
        fleet.note_baseline()
        fleet.producer(n=60, seed=1).finish()
        check_new_work(fleet)
        check(fleet)
