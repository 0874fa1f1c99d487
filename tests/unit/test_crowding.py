"""Whether processors are crowded is told by what the system counts, or by its load where it counts nothing."""

from __future__ import annotations

import pytest

from weft.engine.housekeeping import crowding


class Machine:
    """A machine whose clock and pressure are set by hand."""

    def __init__(self, path) -> None:
        self.path, self.now, self.waited = path, 1000.0, 0

    def monotonic(self) -> float:
        return self.now

    def pass_time(self, seconds: float, *, waited: float) -> None:
        self.now += seconds
        self.waited += int(waited * 1e6)
        self.path.write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={self.waited}\nfull avg10=0.00 total=7\n")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path / "cpu")
    made.pass_time(0, waited=5)
    monkeypatch.setattr(crowding, "PRESSURE", made.path)
    monkeypatch.setattr(crowding.time, "monotonic", made.monotonic)
    return made


def test_it_is_crowded_while_somebody_waits_much_of_the_time_and_not_long_after(machine):
    crowd = crowding.Crowd()
    machine.pass_time(0.2, waited=0.0)
    calm = crowd.look()
    for _ in range(5):
        machine.pass_time(0.2, waited=0.15)
        crowded = crowd.look()
    for _ in range(10):
        machine.pass_time(0.2, waited=0.01)
        after = crowd.look()

    assert (calm, crowded, after) == (False, True, False)


def test_one_short_moment_is_not_a_crowd(machine):
    crowd = crowding.Crowd()
    machine.pass_time(0.2, waited=0.2)
    assert not crowd.look()


@pytest.mark.parametrize("text", [None, "", "nonsense\n"])
def test_where_nobody_counts_the_load_tells(machine, monkeypatch, text):
    if text is None:
        machine.path.unlink()
    else:
        machine.path.write_text(text)
    crowd = crowding.Crowd()
    monkeypatch.setattr(crowding.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(crowding.os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    crowded = crowd.look()
    monkeypatch.setattr(crowding.os, "getloadavg", lambda: (1.5, 9.0, 9.0))

    assert (crowded, crowd.look()) == (True, False)
