"""Everything an app tells of a run, as plain data, so that two tellings can be compared field by field."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

import msgspec

from weft import RunCancelled, StepFailed, Weft, WeftError

#: Of which parts only some runs have one: these say NotFound or have no such verb of others.
_OF_GRAPHS = ("graph", "patches")
_OF_WORKFLOWS = ("state", "timeline", "tree")

#: Where the archive tells something else than the store, by name, and why it does.
KNOWN = {
    # It stands in the run's hash: whoever waited for the disk notes it there, when the run may have ended long ago.
    "durability": re.compile(r"[\w ]+\.(info|row)\.durability"),
    # The archive counts them as it folds the events of steps; the store would have to read all of these for each look.
    "times of steps": re.compile(r"[\w ]+\.graph\.nodes\.\w+\.(opened|queued|running|waiting)_ms"),
}


async def views_of(app: Weft, runs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns what is told of each of some runs: by the run itself, and by the lists that it stands in."""
    listed = {info.id: info for info in await app.runs.list(limit=10_000)}
    named = {name: [info.id for info in await app.runs.list(name=name)] for name in {i.name for i in listed.values()}}
    counted = {by: await app.runs.count(by=by) for by in ("status", "kind", "name", "queue")}
    views: dict[str, dict[str, Any]] = {"": {"counts": counted, "named": named}}
    for what, run in runs.items():
        views[what] = await view_of(app, run)
        views[what]["row"] = _plain(listed.get(run.id))
        views[what]["children"] = _plain(await app.runs.list(parent=run.id))
    return views


async def view_of(app: Weft, run: Any) -> dict[str, Any]:
    """Returns what a run tells of itself. What it refuses to tell is told as the error."""
    info = await _told(run.info())
    view: dict[str, Any] = {"info": info, "result": await _told(run.result(5))}
    for verb in ("history", "explain", "logs"):
        view[verb] = await _told(getattr(run, verb)())
    view["events"] = [_plain(event) async for event in run.events()]
    if info["kind"] == "graph":
        view |= {verb: await _told(getattr(app.graphs[info["name"]].run(run.id), verb)()) for verb in _OF_GRAPHS}
    elif info["kind"] == "workflow":
        view |= {verb: await _told(getattr(app.workflows[info["name"]].run(run.id), verb)()) for verb in _OF_WORKFLOWS}
    asked = sorted(
        f"{run.id}/{event['step']}" for event in view["events"] if event["type"] in ("approval_decided", "step_waiting")
    )
    view["approvals"] = {id: await _told(app.approvals.get(id)) for id in dict.fromkeys(asked)}
    view["letter"] = await _told(app.dlq.get(run.id))
    return view


async def _told(asked: Awaitable[Any]) -> Any:
    try:
        return _plain(await asked)
    except (StepFailed, RunCancelled, WeftError) as error:
        return {"raised": type(error).__name__, "message": str(error), "facts": _plain(error.facts)}


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def told_apart(hot: Any, cold: Any) -> tuple[list[tuple[str, Any, Any]], set[str]]:
    """Returns where two tellings differ, and the names of known differences that were met."""
    found, met = list(differences(hot, cold)), set()
    for name, where in KNOWN.items():
        known = {path for path, *_ in found if where.fullmatch(path)}
        found = [each for each in found if each[0] not in known]
        met |= {name} if known else set()
    return found, met


def differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields where two tellings differ, and what stands there in each."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted({*one, *other}):
            yield from differences(one.get(name, "(none)"), other.get(name, "(none)"), f"{path}.{name}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (each, its) in enumerate(zip(one, other, strict=True)):
            yield from differences(each, its, f"{path}[{i}]")
    elif one != other:
        yield path, one, other
