"""Graph runs for tests of scripts: a run with some open steps, without an app or a worker."""

from __future__ import annotations

from partition import Partition

from weft.core.effects import Effect, Open
from weft.core.model import SPEC_ENCODER, RunSpec
from weft.ids import new_run_id
from weft.store.graphs import start_graph
from weft.store.lone import unfold_run
from weft.store.runs import NewRun

DEFINITION = "d" * 64


async def start(part: Partition, *steps: str, effects: list[Effect] | None = None, **options: object) -> str:
    """Starts a graph run that begins with these steps; returns its id."""
    spec = RunSpec("graph", definition=DEFINITION, **options)  # type: ignore[arg-type]
    new = NewRun(new_run_id(part.p), spec, SPEC_ENCODER.encode(spec))
    opens: list[Effect] = [Open(step, RunSpec("job", definition=DEFINITION)) for step in steps]
    word = await start_graph(part.ns, part.p, new, [*opens, *(effects or [])], definition=b"{}", result=b"", by="c-1")
    assert word == "started"
    await unfold_run(part.ns, part.p, new.id)
    return new.id
