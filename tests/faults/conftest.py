"""The 22 faults of the systems that Weft replaces, one test or more per fault, named by its number in the parity list.

| file | faults |
|---|---|
| test_graph_faults.py | 1 diamonds · 2 loops · 3 interleavings · 14 barriers · 15 approvals · 16 idempotency |
| (the same) | 18 slots · 19 retention · 20 patches · 22 order |
| test_queue_faults.py | 6 several queues · 9 resuming · 10 priorities · 11 steady traffic · 17 timers · 21 denied calls |
| test_worker_faults.py | 4 crash between · 5 every queue · 7 lease expiry · 8 redelivery |
| test_guard_faults.py | 12 breakers · 13 budgets: not built yet |

`test_all_faults.py` sees to it that none is missing.
"""

from __future__ import annotations

import pytest

from graphs.conftest import put_away
from weft import Weft
from weft.testing import VirtualClock

__all__ = ["put_away"]


@pytest.fixture
def clock(app: Weft, weft_clock: VirtualClock) -> VirtualClock:
    return weft_clock
