"""Prints the events of a run, as they happen, and how it ended. A graph run on a terminal is shown by its nodes instead."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from weft.cli import output

if TYPE_CHECKING:
    from weft.core.model import Event
    from weft.sdk.app import Weft


async def follow(app: Weft, id: str, *, after: int = 0, json: bool) -> int:
    """Shows a run until it ends, then its result; returns the exit code: 1 unless it completed."""
    from weft.cli.tree import show_tree
    from weft.errors import HistoryExpired, RunCancelled, StepFailed
    from weft.sdk.graphrun import GraphRun

    run = await app.runs.get(id)
    try:
        if not json and not after and sys.stdout.isatty() and isinstance(run, GraphRun):
            await show_tree(app, id)
        else:
            async for event in run.events(after=after):
                print_event(event, json=json)
    except HistoryExpired:
        output.say("the first events of this run are no longer in the log; waiting for its end")
    end: dict[str, Any] = {"id": id, "run_id": id, "status": "completed", "result": None, "error": None}
    try:
        end["result"] = await run.result()
    except (StepFailed, RunCancelled) as error:
        end["status"] = "cancelled" if isinstance(error, RunCancelled) else "failed"
        end["error"] = {"code": error.facts.get("code") or error.code, "message": error.message}
        if isinstance(error, StepFailed):
            end["error"] |= {"type": error.type, "traceback": error.traceback, "causes": error.causes}
    if json:
        output.print_json_lines([end])
    elif end["error"] is None:
        print(output.to_json(end["result"]), flush=True)
    else:
        output.say(f"run {id} {end['status']}: {end['error']['message']}\n{end['error'].get('traceback', '')}".rstrip())
    return output.OK if end["error"] is None else output.FAILED


def print_event(event: Event, *, json: bool) -> None:
    """Prints one event on one line."""
    if json:
        output.print_json_lines([event])
        return
    facts = _facts(event)
    if sys.stdout.isatty():
        at = event.at.astimezone().strftime("%H:%M:%S.%f")[:-3]
        output.show(f"{at}  {event.type:<14} {facts}".rstrip())
    else:
        output.show(f"{event.seq}\t{event.at.isoformat(timespec='milliseconds')}\t{event.type}\t{facts}")


def _facts(event: Event) -> str:
    """Returns what an event tells, short enough for a line."""
    shown = [f"step={event.step}"] if event.step else []
    for name, value in event.data.items():
        if value not in ("", {}, None):
            told = f"{value['type']}: {value['message']}" if name == "error" else value
            text = told if isinstance(told, str) else output.to_json(told)
            shown.append(f"{name}={' '.join(text.split())[:200]}")
    return " ".join(shown)
