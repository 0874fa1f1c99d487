"""What Weft promises, computed from the figures of one run, each beside its target.

A ratio is the median of the rounds' ratios: its two sides were measured within a minute, while the machine's own pace
changes more from one round to the next than most ratios do. Figures of failed rows do not exist, so no ratio uses one.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bench.cases import Results
from bench.peers import PEERS

#: Bytes, milliseconds and factors of the promises.
MAX_BYTES_QUEUED = 300
MAX_P50_MS = 1.0
MAX_P99_MS = 3.0
MIN_SCALE = 0.8
#: What ten times as many items may take, as a multiple of ten times the time.
MAX_GROWTH = 1.3

#: Databases of the archive, by their part in the names of figures.
_DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
#: One figure per round, by peer and metric.
Rounds = dict[str, dict[str, list[float]]]
#: Finds the label and the figures of whom a metric is compared with.
Rival = Callable[[Rounds, str], tuple[str, list[float]] | None]


@dataclass(frozen=True)
class Verdict:
    """One promise. `met` is None when this run did not measure what it needs."""

    promise: str
    target: str
    measured: str
    met: bool | None


def verdicts(results: Results) -> list[Verdict]:
    rounds = results.figures
    return [
        _ratio("no-op tasks, 1 process, against BullMQ", rounds, "drain_1", 1.2, _bullmq),
        _ratio("no-op tasks, 2 processes, against BullMQ with 2", rounds, "drain_2", 1.5, _bullmq),
        _ratio("no-op tasks, 1 process, against the best Python peer", rounds, "drain_1", 8, _best_python),
        _ratio("`enqueue_many` against BullMQ `addBulk`", rounds, "enqueue_bulk", 1.5, _bullmq),
        _at_most("idle latency p50", rounds, "latency_p50", MAX_P50_MS, "ms"),
        _at_most("idle latency p99", rounds, "latency_p99", MAX_P99_MS, "ms"),
        _below_every_peer("idle latency p50, against the peers", rounds, "latency_p50"),
        _below_every_peer("idle latency p99, against the peers", rounds, "latency_p99"),
        _at_most("memory per queued task", rounds, "bytes_queued", MAX_BYTES_QUEUED, "bytes"),
        _ratio("10-step chains, steps/s, against BullMQ flows", rounds, "chain_steps", 3, _bullmq),
        _ratio("10-step chains, steps/s, against DBOS", rounds, "chain_steps", 40, _dbos),
        _part("map of 1,000 items, seconds, against a BullMQ flow", rounds, "map_s", 0.5),
        _at_most("map of 100,000 items", rounds, "map_100000_s", 15, "s"),
        _growth("map of 100,000 items against ten of 10,000", rounds),
        _at_most("active run of 10 nodes", rounds, "run_bytes", 2048, "bytes"),
        _share("steps/s in a graph of 5,000 nodes, against 10", rounds, "nodes_5000", "nodes_10", 1 / 1.2),
        _share("keyed limits that are open, against no limits", rounds, "limits_keyed", "limits_plain", 0.7),
        _share("1,000 keys, one of each at a time, against no keys", rounds, "total_strict", "total_plain", 1 / 1.5),
        _at_most("100,000 runs due in one second, all done", rounds, "timers_s", 10, "s"),
        _at_most("round trip p99 of another queue meanwhile", rounds, "timers_quick_p99", 50, "ms"),
        _at_most("10,000 schedules every minute, part of a core", rounds, "schedules_core", 0.2, "cores"),
        _at_least("workflows of ten steps, 500 in flight, 1 process", rounds, "workflows", 1000),
        _workflows("workflows of ten steps against those of DBOS", rounds, "dbos", 30),
        _workflows("workflows of ten steps against Temporal's, with local activities", rounds, "temporal", 15),
        _at_most("from step to step in a workflow, p50", rounds, "step_p50_ms", 1, "ms"),
        _at_most("from step to step in a workflow, p99", rounds, "step_p99_ms", 5, "ms"),
        _at_most("replay of 10,000 entries", rounds, "replay_s", 2, "s"),
        _at_most("sleeping workflow", rounds, "bytes_per_sleeper", 1536, "bytes"),
        _share("tasks archived in SQLite, against not archived", rounds, "archived", "unarchived", 0.75),
        *_archive("behind after 1,000,000 tasks at full load", rounds, "behind_{}_s", 5, "s"),
        *_archive("slowest page out of 1,000,000 runs", rounds, "page_{}_ms", 50, "ms"),
        *_archive("loss of the store with 10,000 open runs, to new work", rounds, "recovery_{}_s", 60, "s"),
        _share("enqueue, large queue against small", rounds, "scale_enqueue_large", "scale_enqueue_small", MIN_SCALE),
        _share("drain, large queue against small", rounds, "scale_drain_large", "scale_drain_small", MIN_SCALE),
    ]


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
    """The ratio of each round, in order of size; of the medians where the sides have not the same rounds."""
    if len(ours) != len(theirs):
        return [statistics.median(ours) / statistics.median(theirs)]
    return sorted(mine / other for mine, other in zip(ours, theirs, strict=True))


def _spread(values: list[float]) -> str:
    """The median, with the least and the greatest round."""
    middle = f"{statistics.median(values):.2f}x"
    return middle if len(values) == 1 else f"{middle} ({values[0]:.2f} to {values[-1]:.2f})"


def _ratio(promise: str, rounds: Rounds, metric: str, target: float, rival: Rival) -> Verdict:
    ours, theirs = _ours(rounds, metric), rival(rounds, metric)
    if not ours or theirs is None:
        return _unmeasured(promise, f"≥ {target:g}x")
    found = ratios(ours, theirs[1])
    return Verdict(promise, f"≥ {target:g}x", f"{_spread(found)} {theirs[0]}", statistics.median(found) >= target)


def _at_most(promise: str, rounds: Rounds, metric: str, limit: float, unit: str) -> Verdict:
    ours = _ours(rounds, metric)
    if not ours:
        return _unmeasured(promise, f"≤ {limit:g} {unit}")
    middle = statistics.median(ours)
    shown = f"{middle:.0f}" if unit == "bytes" else f"{middle:.2f}"
    return Verdict(promise, f"≤ {limit:g} {unit}", f"{shown} {unit}", middle <= limit)


def _archive(promise: str, rounds: Rounds, metric: str, limit: float, unit: str) -> list[Verdict]:
    """The same with each database of the archive."""
    return [_at_most(f"{promise}, {_DATABASES[key]}", rounds, metric.format(key), limit, unit) for key in _DATABASES]


def _at_least(promise: str, rounds: Rounds, metric: str, least: float) -> Verdict:
    ours = _ours(rounds, metric)
    if not ours:
        return _unmeasured(promise, f"≥ {least:,.0f} a second")
    middle = statistics.median(ours)
    return Verdict(promise, f"≥ {least:,.0f} a second", f"{middle:,.0f} a second", middle >= least)


def _below_every_peer(promise: str, rounds: Rounds, metric: str) -> Verdict:
    ours = _ours(rounds, metric)
    theirs = {name: statistics.median(values) for name, values in _of_peers(rounds, metric).items()}
    if not ours or not theirs:
        return _unmeasured(promise, "below every peer")
    best, middle = min(theirs, key=lambda name: theirs[name]), statistics.median(ours)
    measured = f"{middle:.2f} ms, best peer {theirs[best]:.2f} ms ({PEERS[best].label})"
    return Verdict(promise, "below every peer", measured, middle < theirs[best])


def _share(promise: str, rounds: Rounds, metric: str, base: str, least: float) -> Verdict:
    """Weft beside itself, in rates."""
    ours, plain = _ours(rounds, metric), _ours(rounds, base)
    if not ours or not plain:
        return _unmeasured(promise, f"≥ {least:.2g}x")
    found = ratios(ours, plain)
    rates = f"{statistics.median(ours):,.0f}/s and {statistics.median(plain):,.0f}/s"
    return Verdict(promise, f"≥ {least:.2g}x", f"{_spread(found)}, {rates}", statistics.median(found) >= least)


def _part(promise: str, rounds: Rounds, metric: str, most: float) -> Verdict:
    ours, theirs = _ours(rounds, metric), _bullmq(rounds, metric)
    if not ours or theirs is None:
        return _unmeasured(promise, f"≤ {most:g}x")
    found = ratios(ours, theirs[1])
    times = f"{statistics.median(ours):.3f} s and {statistics.median(theirs[1]):.3f} s"
    return Verdict(promise, f"≤ {most:g}x", f"{_spread(found)} {theirs[0]}, {times}", statistics.median(found) <= most)


def _growth(promise: str, rounds: Rounds) -> Verdict:
    small, large = _ours(rounds, "map_10000_s"), _ours(rounds, "map_100000_s")
    if not small or not large:
        return _unmeasured(promise, f"≤ {MAX_GROWTH:g}x")
    growth = statistics.median(ratios(large, [10 * one for one in small]))
    times = f"{statistics.median(small):.2f} s and {statistics.median(large):.2f} s"
    return Verdict(promise, f"≤ {MAX_GROWTH:g}x", f"{growth:.2f}x, {times}", growth <= MAX_GROWTH)


def _unmeasured(promise: str, target: str) -> Verdict:
    return Verdict(promise, target, "not measured", None)


def _ours(rounds: Rounds, metric: str) -> list[float]:
    return rounds.get("weft", {}).get(metric, [])


def _of_peers(rounds: Rounds, metric: str) -> dict[str, list[float]]:
    return {
        name: figures[metric]
        for name, figures in rounds.items()
        if metric in figures and not PEERS[name].is_ours and not PEERS[name].is_floor
    }


def _bullmq(rounds: Rounds, metric: str) -> tuple[str, list[float]] | None:
    rates = _of_peers(rounds, metric).get("bullmq")
    return None if rates is None else (PEERS["bullmq"].label, rates)


def _dbos(rounds: Rounds, metric: str) -> tuple[str, list[float]] | None:
    rates = _of_peers(rounds, metric).get("dbos")
    return None if rates is None else (PEERS["dbos"].label, rates)


def _workflows(promise: str, rounds: Rounds, peer: str, target: float) -> Verdict:
    """The peer's chains are workflows of ten steps in one process; they were not measured in the same round as ours."""
    ours, steps = _ours(rounds, "workflows"), _of_peers(rounds, "chain_steps").get(peer)
    if not ours or not steps:
        return _unmeasured(promise, f"≥ {target:g}x")
    rate, other = statistics.median(ours), statistics.median(steps) / 10
    measured = f"{rate / other:.1f}x {PEERS[peer].label}, {rate:,.0f}/s and {other:,.1f}/s"
    return Verdict(promise, f"≥ {target:g}x", measured, rate / other >= target)


def _best_python(rounds: Rounds, metric: str) -> tuple[str, list[float]] | None:
    rates = {name: values for name, values in _of_peers(rounds, metric).items() if PEERS[name].is_python}
    if not rates:
        return None
    best = max(rates, key=lambda name: statistics.median(rates[name]))
    return PEERS[best].label, rates[best]
