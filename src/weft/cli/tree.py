"""A graph run on a terminal, as it goes: its nodes in order, how each stands, and what it waits for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from weft.cli import output
from weft.terminal import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from weft.core.graph.compile import Plan
    from weft.sdk.app import Weft

#: Seconds between two looks at the run.
LOOK = 0.2
#: Seconds between two questions why nothing goes on.
ASK = 1.0
#: Characters of a bar.
BAR = 20
#: What a node spent its time with besides being executed, and how much of it is worth a word.
_SPENT, SHORTEST_MS = {"queued_ms": "queued", "waiting_ms": "waited"}, 10
#: Rows of nodes that are shown when a run has ended.
MAX_ROWS = 200

#: Status -> mark, the same for terminals that know only ASCII, and style.
MARKS = {
    "completed": ("✔", "+", "green"),
    "failed": ("✖", "x", "red"),
    "skipped": ("–", "-", "dim"),
    "cancelled": ("■", "#", "magenta"),
    "running": ("●", "*", "cyan"),
    "waiting": ("◔", "~", "yellow"),
    "ready": ("○", "o", "cyan"),
    "pending": ("·", ".", "dim"),
}
#: What is left out last when a terminal is too low: what moves, and what went wrong.
_FIRST = ("failed", "running", "waiting", "ready", "completed", "cancelled", "skipped", "pending")


async def show_tree(app: Weft, id: str) -> None:
    """Shows a graph run until it ends; what stays on the terminal is how it ended."""
    from rich.live import Live

    from weft.engine import graphs, graphview
    from weft.ids import partition_of

    engine, console = app.engine(), output.console()
    plan: Plan | None = None
    why, asked = "", 0.0
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            info, told = await app.runs.get(id).info(), await graphview.graph_of(engine, id, outputs=False)
            if plan is None or plan.address != told["definition"]:
                plan = (await graphs.definition_of(engine.ns, partition_of(id), told["definition"])).plan
            nodes, over = told["nodes"], info.status.finished
            if over or any(node["status"] == "running" for node in nodes.values()):
                why = ""
            elif time.monotonic() - asked > ASK:
                found, asked = await app.runs.get(id).explain(), time.monotonic()
                # What a row tells of itself is not said twice.
                why = "" if found.reason in ("retrying", "delayed") else found.text
            end_ms = info.finished_at.timestamp() * 1000 if info.finished_at else time.time() * 1000
            took_ms = int(end_ms - info.created_at.timestamp() * 1000)
            head = (info.name, id, str(info.status), took_ms)
            height = MAX_ROWS if over else console.height - 4
            live.update(draw(plan, nodes, head, why, console=console, height=height), refresh=True)
            if over:
                return
            await asyncio.sleep(LOOK)


def draw(
    plan: Plan,
    nodes: Mapping[str, dict[str, Any]],
    head: tuple[str, str, str, int],
    why: str = "",
    *,
    console: Console,
    height: int,
) -> RenderableType:
    """Returns the picture of a run: a head, a row per node, and why nothing goes on."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from weft.clock import format_duration
    from weft.core.graph.drawing import lay_out

    name, id, status, took_ms = head
    counts = Counter(node["status"] for node in nodes.values())
    done = sum(counts[word] for word in ("completed", "skipped", "failed"))
    title = Text.assemble(
        (name, "bold"), f"  {id}  ", (status, MARKS.get(status, ("", "", ""))[2]),
        f"  {done} of {len(nodes)} nodes  {format_duration(max(0, took_ms))}",
    )  # fmt: skip
    title.no_wrap, title.overflow = True, "ellipsis"
    ascii_only = not (console.encoding or "").lower().startswith("utf")
    rows = [(lead, id) for lead, id in lay_out(plan) if id in nodes]
    shown = _fitting(rows, nodes, max(3, height))
    # What stands to the left keeps its width: a long error must not take the names away.
    width = min(max(len(lead) + len(id) for lead, id in rows) + 2, console.width // 2)
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", width=width)
    table.add_column(justify="right", no_wrap=True, width=7)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for lead, node_id in rows:
        if node_id in shown:
            table.add_row(*_row(lead, node_id, nodes[node_id], ascii_only=ascii_only))
    parts: list[RenderableType] = [title, table]
    hidden = Counter(nodes[node_id]["status"] for _, node_id in rows if node_id not in shown)
    if hidden:
        parts.append(Text("… and " + ", ".join(f"{n} {word}" for word, n in hidden.items()), style="dim"))
    if why:
        parts.append(Text(why, style="yellow"))
    return Group(*parts)


def _fitting(rows: list[tuple[str, str]], nodes: Mapping[str, dict[str, Any]], height: int) -> set[str]:
    """Returns the nodes that a screen has room for: all, or those that matter most."""
    if len(rows) <= height:
        return {id for _, id in rows}
    ranked = sorted(
        (id for _, id in rows),
        key=lambda id: (_FIRST.index(nodes[id]["status"]), -nodes[id].get("ended_ms", 0)),
    )
    return set(ranked[:height])


def _row(lead: str, id: str, node: Mapping[str, Any], *, ascii_only: bool) -> tuple[Text, Text, Text]:
    from rich.text import Text

    from weft.clock import format_duration

    mark, plain, style = MARKS[node["status"]]
    name = Text.assemble((plain if ascii_only else mark, style), " ", (lead, "dim"), id)
    ms = took_ms(node)
    took = Text(format_duration(ms) if ms else "", style="dim")
    note = Text()
    if node.get("items"):
        note.append_text(_bar(node, ascii_only=ascii_only))
    for text, colour in _notes(node):
        note.append("  " if note else "").append(text, style=colour)
    return name, took, note


def took_ms(node: Mapping[str, Any]) -> int | None:
    """Returns how long a node took, or has been open."""
    if node["status"] in ("running", "waiting", "ready"):
        return max(0, int(time.time() * 1000) - node["opened_ms"]) if "opened_ms" in node else None
    if node["status"] in ("completed", "failed") and node.get("ended_ms"):
        return max(0, int(node["ended_ms"] - (node.get("started_ms") or node["ended_ms"])))
    return None


def _bar(node: Mapping[str, Any], *, ascii_only: bool) -> Text:
    """Draws how far a map is: done, failed, and what is left."""
    from rich.text import Text

    n, done, failed = node["items"], node["done"], node["failed"]
    full, rest = ("#", ".") if ascii_only else ("━", "─")
    good = BAR * done // n
    bad = max(1, BAR * failed // n) if failed else 0
    good = BAR - bad if done + failed == n else min(good, BAR - bad)
    text = Text.assemble((full * good, "green"), (full * bad, "red"), (rest * (BAR - good - bad), "dim"))
    text.append(f" {done:,}/{n:,}")
    if failed:
        text.append(f" {failed:,} failed", style="red")
    if node.get("hedged"):
        text.append(f" {node['hedged']:,} started twice", style="dim")
    if node.get("cached"):
        text.append(f" {node['cached']:,} cached", style="dim")
    return text


def about_node(node: Mapping[str, Any]) -> str:
    """Returns what else there is to say of a node, in words."""
    from weft.clock import format_duration

    words = [text for text, _ in _notes(node)]
    if node.get("items"):
        failed = f", {node['failed']:,} failed" if node["failed"] else ""
        again = f", {node['hedged']:,} started twice" if node.get("hedged") else ""
        kept = f", {node['cached']:,} cached" if node.get("cached") else ""
        words.insert(0, f"{node['done']:,} of {node['items']:,} items done{failed}{again}{kept}")
    # Items wait side by side: together they may have waited for longer than there was time.
    together = " over all items" if node.get("items", 0) > 1 else ""
    words += [
        f"{text} {format_duration(node[name])}{together}"
        for name, text in _SPENT.items()
        if node.get(name, 0) >= SHORTEST_MS
    ]
    return ", ".join(word for word in words if word != node["status"])


def _notes(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from weft.clock import format_duration

    if node.get("iteration"):
        yield f"iteration {node['iteration']}", "dim"
    if node.get("progress") is not None:
        yield f"{node['progress']:.0%} {node.get('message', '')}".strip(), ""
    if node.get("attempt", 1) > 1:
        yield f"attempt {node['attempt']}", "yellow"
    if "waits_for" in node:
        what, _, name = node["waits_for"].partition(":")
        limit = ""
        if "due_ms" in node:
            limit = f", {format_duration(max(0, node['due_ms'] - int(time.time() * 1000)))} left"
        yield f"waits for {'an approval' if what == 'approval' else f'{what} {name}'}{limit}", "yellow"
    elif "due_ms" in node:
        left = format_duration(max(0, node["due_ms"] - int(time.time() * 1000)))
        yield f"{'again' if node['reason'] == 'retry' else 'goes on'} in {left}", "yellow"
    elif node["status"] == "waiting":
        yield f"waits: {node.get('reason', '')}".rstrip(": "), "yellow"
    elif node["status"] == "skipped":
        yield f"skipped: {node['reason']}" if node.get("reason") else "skipped", "dim"
    elif node.get("cached") is True:
        yield "cached", "dim"
    error = node.get("error") or node.get("last_error")
    if error and node["status"] in ("failed", "waiting", "running", "ready"):
        message = visible(" ".join(str(error["message"]).split()))
        yield f"{error['type']}: {message}", "red"
