"""What the figures were measured on, and how quiet it was."""

import os
import platform
import shutil
import statistics
import subprocess
import time
from pathlib import Path

#: Work done before each measurement to see how busy the machine is; some 30 ms.
SPIN_STEPS = 500_000


def description() -> dict[str, str]:
    """Facts a reader needs to judge the figures."""
    facts = {"CPU": f"{len(_cores())} × {_cpu_model()}", "memory": _memory(), "system": platform.platform()}
    facts["Python"] = platform.python_version()
    if node := shutil.which("node"):
        facts["node"] = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    return facts


def spin() -> float:
    """Milliseconds a fixed piece of work takes: always the same on a quiet machine, longer on a busy one."""
    start = time.perf_counter()
    sum(i * i for i in range(SPIN_STEPS))
    return (time.perf_counter() - start) * 1000


def calm(spins: list[float]) -> str:
    """How even the machine was over a run, in words for the report."""
    if not spins:
        return "not measured"
    return (
        f"a fixed piece of work took {min(spins):.0f} to {max(spins):.0f} ms, {statistics.median(spins):.0f} at median"
    )


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
