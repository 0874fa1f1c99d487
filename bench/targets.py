"""The ratios Weft promises, computed from one run's medians, each beside its target.

A ratio of medians: a reader can check it against the table. Figures of failed rows do not exist, so no ratio uses one.
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

Medians = dict[str, dict[str, float]]
#: Finds the label and the median of whom a metric is compared with.
Rival = Callable[[Medians, str], tuple[str, float] | None]


@dataclass(frozen=True)
class Verdict:
    """One promise. `met` is None when this run did not measure what it needs."""

    promise: str
    target: str
    measured: str
    met: bool | None


def verdicts(results: Results) -> list[Verdict]:
    medians = {
        peer: {metric: statistics.median(values) for metric, values in figures.items()}
        for peer, figures in results.figures.items()
    }
    return [
        _ratio("no-op tasks, 1 process, against BullMQ", medians, "drain_1", 1.2, _bullmq),
        _ratio("no-op tasks, 2 processes, against BullMQ with 2", medians, "drain_2", 1.5, _bullmq),
        _ratio("no-op tasks, 1 process, against the best Python peer", medians, "drain_1", 8, _best_python),
        _ratio("`enqueue_many` against BullMQ `addBulk`", medians, "enqueue_bulk", 1.5, _bullmq),
        _at_most("idle latency p50", medians, "latency_p50", MAX_P50_MS, "ms"),
        _at_most("idle latency p99", medians, "latency_p99", MAX_P99_MS, "ms"),
        _below_every_peer("idle latency p50, against the peers", medians, "latency_p50"),
        _below_every_peer("idle latency p99, against the peers", medians, "latency_p99"),
        _at_most("memory per queued task", medians, "bytes_queued", MAX_BYTES_QUEUED, "bytes"),
        _ratio("10-step chains, steps/s, against BullMQ flows", medians, "chain_steps", 3, _bullmq),
        _ratio("10-step chains, steps/s, against DBOS", medians, "chain_steps", 40, _dbos),
        _part("map of 1,000 items, seconds, against a BullMQ flow", medians, "map_s", 0.5),
        _at_most("map of 100,000 items", medians, "map_100000_s", 15, "s"),
        _growth("map of 100,000 items against ten of 10,000", medians),
        _at_most("active run of 10 nodes", medians, "run_bytes", 2048, "bytes"),
        _share("steps/s in a graph of 5,000 nodes, against 10", medians, "nodes_5000", "nodes_10", 1 / 1.2),
        _share("keyed limits that are open, against no limits", medians, "limits_keyed", "limits_plain", 0.7),
        _share("1,000 keys, one of each at a time, against no keys", medians, "total_strict", "total_plain", 1 / 1.5),
        _at_most("100,000 runs due in one second, all done", medians, "timers_s", 10, "s"),
        _at_most("round trip p99 of another queue meanwhile", medians, "timers_quick_p99", 50, "ms"),
        _at_most("10,000 schedules every minute, part of a core", medians, "schedules_core", 0.2, "cores"),
        _at_least("workflows of ten steps, 500 in flight, 1 process", medians, "workflows", 1000),
        _workflows("workflows of ten steps against those of DBOS", medians, 30),
        _at_most("from step to step in a workflow, p50", medians, "step_p50_ms", 1, "ms"),
        _at_most("from step to step in a workflow, p99", medians, "step_p99_ms", 5, "ms"),
        _at_most("replay of 10,000 entries", medians, "replay_s", 2, "s"),
        _at_most("sleeping workflow", medians, "bytes_per_sleeper", 1536, "bytes"),
        _scale("enqueue rate, large queue against small", medians, "enqueue"),
        _scale("drain rate, large queue against small", medians, "drain"),
    ]


def _ratio(promise: str, medians: Medians, metric: str, target: float, rival: Rival) -> Verdict:
    ours, theirs = _ours(medians, metric), rival(medians, metric)
    if ours is None or theirs is None:
        return _unmeasured(promise, f"≥ {target:g}x")
    ratio = ours / theirs[1]
    return Verdict(promise, f"≥ {target:g}x", f"{ratio:.2f}x {theirs[0]}", ratio >= target)


def _at_most(promise: str, medians: Medians, metric: str, limit: float, unit: str) -> Verdict:
    ours = _ours(medians, metric)
    if ours is None:
        return _unmeasured(promise, f"≤ {limit:g} {unit}")
    shown = f"{ours:.0f}" if unit == "bytes" else f"{ours:.2f}"
    return Verdict(promise, f"≤ {limit:g} {unit}", f"{shown} {unit}", ours <= limit)


def _at_least(promise: str, medians: Medians, metric: str, least: float) -> Verdict:
    ours = _ours(medians, metric)
    if ours is None:
        return _unmeasured(promise, f"≥ {least:,.0f} a second")
    return Verdict(promise, f"≥ {least:,.0f} a second", f"{ours:,.0f} a second", ours >= least)


def _below_every_peer(promise: str, medians: Medians, metric: str) -> Verdict:
    ours, theirs = _ours(medians, metric), _of_peers(medians, metric)
    if ours is None or not theirs:
        return _unmeasured(promise, "below every peer")
    best = min(theirs, key=lambda name: theirs[name])
    measured = f"{ours:.2f} ms, best peer {theirs[best]:.2f} ms ({PEERS[best].label})"
    return Verdict(promise, "below every peer", measured, ours < theirs[best])


def _share(promise: str, medians: Medians, metric: str, base: str, least: float) -> Verdict:
    ours, plain = _ours(medians, metric), _ours(medians, base)
    if ours is None or plain is None:
        return _unmeasured(promise, f"≥ {least:.2g}x")
    measured = f"{ours / plain:.2f}x ({ours:,.0f}/s and {plain:,.0f}/s)"
    return Verdict(promise, f"≥ {least:.2g}x", measured, ours / plain >= least)


def _part(promise: str, medians: Medians, metric: str, most: float) -> Verdict:
    ours, theirs = _ours(medians, metric), _bullmq(medians, metric)
    if ours is None or theirs is None:
        return _unmeasured(promise, f"≤ {most:g}x")
    measured = f"{ours / theirs[1]:.2f}x {theirs[0]} ({ours:.3f} s and {theirs[1]:.3f} s)"
    return Verdict(promise, f"≤ {most:g}x", measured, ours / theirs[1] <= most)


def _growth(promise: str, medians: Medians) -> Verdict:
    small, large = _ours(medians, "map_10000_s"), _ours(medians, "map_100000_s")
    if small is None or large is None:
        return _unmeasured(promise, f"≤ {MAX_GROWTH:g}x")
    growth = large / (10 * small)
    return Verdict(
        promise, f"≤ {MAX_GROWTH:g}x", f"{growth:.2f}x ({small:.2f} s and {large:.2f} s)", growth <= MAX_GROWTH
    )


def _scale(promise: str, medians: Medians, what: str) -> Verdict:
    small, large = (_ours(medians, f"scale_{what}_{size}") for size in ("small", "large"))
    if small is None or large is None:
        return _unmeasured(promise, f"≥ {MIN_SCALE:g}x")
    measured = f"{large / small:.2f}x ({small:,.0f}/s and {large:,.0f}/s)"
    return Verdict(promise, f"≥ {MIN_SCALE:g}x", measured, large / small >= MIN_SCALE)


def _unmeasured(promise: str, target: str) -> Verdict:
    return Verdict(promise, target, "not measured", None)


def _ours(medians: Medians, metric: str) -> float | None:
    return medians.get("weft", {}).get(metric)


def _of_peers(medians: Medians, metric: str) -> dict[str, float]:
    return {
        name: figures[metric]
        for name, figures in medians.items()
        if metric in figures and not PEERS[name].is_ours and not PEERS[name].is_floor
    }


def _bullmq(medians: Medians, metric: str) -> tuple[str, float] | None:
    rate = _of_peers(medians, metric).get("bullmq")
    return None if rate is None else (PEERS["bullmq"].label, rate)


def _dbos(medians: Medians, metric: str) -> tuple[str, float] | None:
    rate = _of_peers(medians, metric).get("dbos")
    return None if rate is None else (PEERS["dbos"].label, rate)


def _workflows(promise: str, medians: Medians, target: float) -> Verdict:
    """The chains of DBOS are workflows of ten steps, in the same process as their steps."""
    ours, theirs = _ours(medians, "workflows"), _dbos(medians, "chain_steps")
    if ours is None or theirs is None:
        return _unmeasured(promise, f"≥ {target:g}x")
    rate = theirs[1] / 10
    measured = f"{ours / rate:.1f}x {theirs[0]} ({ours:,.0f}/s and {rate:,.1f}/s)"
    return Verdict(promise, f"≥ {target:g}x", measured, ours / rate >= target)


def _best_python(medians: Medians, metric: str) -> tuple[str, float] | None:
    rates = {name: rate for name, rate in _of_peers(medians, metric).items() if PEERS[name].is_python}
    if not rates:
        return None
    best = max(rates, key=lambda name: rates[name])
    return PEERS[best].label, rates[best]
