"""Every fault of the parity list has a test that is named by its number."""

from __future__ import annotations

import re
from pathlib import Path

#: Number -> what must not happen again, in a few words.
FAULTS = {
    1: "a diamond's join runs once and the run completes",
    2: "a loop of three iterations completes",
    3: "no false completion in 1,000 random interleavings",
    4: "a crash between taking and applying loses nothing",
    5: "abandoned work is recovered on every queue",
    6: "a poll over several queues strands nothing",
    7: "lease expiry is seen with real TTLs",
    8: "a worker crash does not dead-letter the redelivery",
    9: "events resume across reconnect and server restart",
    10: "priority order is exact",
    11: "steady traffic at the limit is not locked out",
    12: "breaker half-open rules hold across processes",
    13: "a budget is never exceeded by 100 parallel calls",
    14: "barrier with instant workers, empty scatter, duplicate results, two orchestrators",
    15: "an approval blocks no one else and survives restarts",
    16: "the same idempotency key gives the same run",
    17: "timers fire within 50 ms when idle",
    18: "all keys of a run in one slot",
    19: "nothing left after retention",
    20: "concurrent patches lose no update",
    21: "denied calls are not counted against a window",
    22: "results of a scatter come in index order",
}


def test_every_fault_has_a_test_of_its_number() -> None:
    tests: dict[int, list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for name in re.findall(r"^(?:async )?def (test_\d\w+)", path.read_text(), re.MULTILINE):
            numbers = re.match(r"test_((?:\d+_and_)*\d+)_", name)
            assert numbers, f"{name}: a number, or `<number>_and_<number>`"
            for number in numbers[1].split("_and_"):
                tests.setdefault(int(number), []).append(f"{path.name}::{name}")
    for number, what in FAULTS.items():
        print(f"{number:>2}  {what}\n    " + "\n    ".join(tests.get(number, ["none"])))
    assert sorted(tests) == sorted(FAULTS)
