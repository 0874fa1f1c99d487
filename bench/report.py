"""Turns results into text: one table of peers, one of promises, and a list of what went wrong.

Tables are aligned Markdown, readable in a terminal and in a document alike.
"""

import math
import statistics

from bench.cases import SCALE_BASE, Plan, Results
from bench.peers import Peer
from bench.targets import Verdict, verdicts
from bench.tree import ACTIVITIES, SIZES, WORKFLOWS

#: By what peers are compared in: column title, metric, the pass that measures it, and the decimals shown.
COLUMNS = {
    "queues": (
        ("drained/s, 1 process", "drain_1", "queue, 1 process", 0),
        ("2 processes", "drain_2", "queue, 2 processes", 0),
        ("enqueued/s, one by one", "enqueue_one", "queue, 1 process", 0),
        ("bulk", "enqueue_bulk", "queue, 1 process", 0),
        ("bytes queued", "bytes_queued", "memory", 0),
        ("latency p50 ms", "latency_p50", "latency", 2),
        ("p99 ms", "latency_p99", "latency", 2),
    ),
    "graphs": (
        ("steps/s in chains of 10, 1 process", "chain_steps", "chains", 0),
        ("map of 1,000 items, s", "map_s", "map", 3),
    ),
}


def peer_table(plan: Plan, results: Results, field: str, *, ranges: bool) -> str:
    """One line per peer that is compared in the field: medians, with `ranges` also the least and the greatest round."""
    columns = COLUMNS[field]
    rows = [
        [peer.label, *(_cell(peer, results, metric, case, decimals, ranges) for _, metric, case, decimals in columns)]
        for peer in plan.peers
        if field in peer.fields
    ]
    return table(["", *(title for title, *_ in columns)], rows)


def target_table(results: Results) -> str:
    return table(
        ["Weft", "target", "measured", "verdict"],
        [[v.promise, v.target, v.measured, _mark(v)] for v in verdicts(results)],
        numbers=False,
    )


def scale_table(plan: Plan, results: Results) -> str:
    """Weft's rates for the small and the large queue; empty when they were not measured."""
    figures = results.figures.get("weft", {})
    rows = [
        [f"{n:,} tasks", *(_summary(figures.get(f"scale_{what}_{size}", []), 0, True) for what in ("enqueue", "drain"))]
        for size, n in (("small", SCALE_BASE), ("large", plan.n_scale))
    ]
    return table(["Weft", "enqueued/s (bulk)", "drained/s, 1 process"], rows) if "scale_drain_large" in figures else ""


def tree_table(results: Results) -> str:
    """Trees of workflows by the size of their results; empty when they were not measured."""
    figures = results.figures.get("weft", {})
    rows = []
    for size in SIZES:
        if rate := figures.get(f"tree_{size}"):
            shown = f"{size // 1_000_000} MB" if size >= 1_000_000 else f"{size:,} bytes"
            per_s = statistics.median(rate)
            rows.append([shown, f"{per_s:,.0f}", f"{per_s / ACTIVITIES:,.0f}", f"{per_s * size / 1e6:,.1f}"])
    head = [f"Weft, trees of {WORKFLOWS} workflows", "activities/s, 1 process", "workflows/s", "MB/s of results"]
    return table(head, rows) if rows else ""


def problems(plan: Plan, results: Results) -> list[str]:
    """Why a cell is empty or says `failed`, and which latencies rest on few samples."""
    labels = {peer.name: peer.label for peer in plan.peers}
    lines = [f"{labels[name]} was not measured: {reason}" for name, reason in results.missing.items()]
    lines += [f"{labels[name]}, {case}: {reason}" for (name, case), reason in results.failures.items()]
    lines += list(dict.fromkeys(results.notes))
    for name, figures in results.figures.items():
        fewest = min(figures.get("latency_samples", [math.inf]))
        if fewest < plan.n_samples:
            lines.append(f"{labels[name]}, latency: {fewest:.0f} samples in the time allowed")
    return lines


def as_json(plan: Plan, results: Results, facts: dict[str, str]) -> dict[str, object]:
    """Everything measured, unrounded, for machines."""
    return {
        "facts": facts,
        "peers": {peer.name: {"packages": peer.packages, "setting": peer.setting} for peer in plan.peers},
        "cases": plan.cases,
        "rounds": plan.rounds,
        "tasks": {peer.name: peer.tasks(plan.n_tasks) for peer in plan.peers},
        "figures": results.figures,
        "failures": [{"peer": name, "case": case, "reason": why} for (name, case), why in results.failures.items()],
        "missing": results.missing,
        "targets": [vars(verdict) for verdict in verdicts(results)],
    }


def table(header: list[str], rows: list[list[str]], *, numbers: bool = True) -> str:
    """An aligned Markdown table; with `numbers` all columns but the first stand to the right."""
    columns = []
    for i, cells in enumerate(zip(header, *rows, strict=True)):
        width, right = max(len(cell) for cell in cells), numbers and i > 0
        rule = "-" * (width - 1) + (":" if right else "-")
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in (cells[0], rule, *cells[1:])])
    return "\n".join("| " + " | ".join(line) + " |" for line in zip(*columns, strict=True))


def _cell(peer: Peer, results: Results, metric: str, case: str, decimals: int, ranges: bool) -> str:
    if peer.name in results.missing:
        return "not installed"
    if (peer.name, case) in results.failures:
        return "failed"
    return _summary(results.figures.get(peer.name, {}).get(metric, []), decimals, ranges)


def _summary(values: list[float], decimals: int, ranges: bool) -> str:
    if not values:
        return "-"
    median = f"{statistics.median(values):,.{decimals}f}"
    if not ranges or len(values) == 1:
        return median
    return f"{median} ({min(values):,.{decimals}f} to {max(values):,.{decimals}f})"


def _mark(verdict: Verdict) -> str:
    return {True: "met", False: "not met", None: "-"}[verdict.met]
