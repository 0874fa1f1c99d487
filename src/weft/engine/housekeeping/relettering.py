"""Rebuilds dead letters: failed runs, and failed steps of graph runs that went on; with what people noted there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.effects import run_of, step_id, step_of
from weft.core.failing import letter_spec
from weft.core.fold import PURGED, Logged, RunState
from weft.core.history import read_history
from weft.core.letters import marks_of
from weft.core.model import SPEC_DECODER, SPEC_ENCODER, RunSpec
from weft.core.published import Published
from weft.core.regrow import regrow
from weft.core.routing import parse_step
from weft.engine.coldruns import fold_fields
from weft.engine.definitions import decode_bundle
from weft.engine.steps import keep_failed_ms
from weft.store.recovery import Closed, restore_letter

if TYPE_CHECKING:
    from weft.archive.reader import ColdRun, Reader
    from weft.archive.recovery import Recovery


class Reletterer:
    """Rebuilds the dead letters of one partition."""

    def __init__(
        self, ns: Closed, p: int, archive: Recovery, reader: Reader, *, now_ms: int, dry_run: bool = False
    ) -> None:
        self._ns, self._p, self._archive, self._reader, self._now_ms = ns, p, archive, reader, now_ms
        #: Only count them.
        self._dry_run = dry_run
        self._definitions: dict[str, Published | None] = {}

    async def restore(self, since_ms: int) -> int:
        """Writes what failed since a moment and is still kept; returns how many."""
        n = 0
        async for page in self._archive.letters(since_ms):
            replays = await self._archive.replays([run.state.id for run in page])
            for run in page:
                n += await self._run(run, replays.get(run.state.id, ""))
        async for page in self._archive.failing(since_ms):
            for run in page:
                n += await self._steps(run)
        return n

    async def _run(self, run: ColdRun, replayed: str) -> bool:
        state, spec = run.state, run.spec
        if spec is None or state.keep_ms == PURGED:
            return False
        events = await self._reader.events(state.id) if state.due_ms else []
        # A letter that only the archive had was replayed without an event.
        marks = {"replayed": replayed.encode()} if replayed else {}
        return await self._write(state, spec, run.value, {**marks, **marks_of(events)})

    async def _steps(self, run: ColdRun) -> int:
        """Writes the steps of a graph run that became dead letters, as their nodes say."""
        assert run.spec is not None
        logged = await self._reader.all_events(run.state.id)
        history = read_history(run.state.id, logged)
        published = await self._definition(regrow(run.spec.definition, history).definition)
        n = 0
        for step, state in history.steps.items():
            if state.status != "failed" or not state.spec or published is None:
                continue
            id, _ = parse_step(published.plan, step.partition("#")[0])
            if id not in published.plan or published.plan.node(id).on_error != "dead_letter":
                continue
            events = [event for event in logged if event.run == step_id(run.state.id, step)]
            if not any(event.type == "purged" for event in events):
                n += await self._step(state, events)
        return n

    async def _step(self, state: RunState, events: list[Logged]) -> bool:
        state.worker = next(event.by for event in reversed(events) if event.type == "failed")
        spec = letter_spec(SPEC_DECODER.decode(state.spec))
        state.spec = SPEC_ENCODER.encode(spec)
        return await self._write(state, spec, state.value, {**marks_of(events), "letter": b"1"})

    async def _write(self, state: RunState, spec: RunSpec, value: bytes | None, marks: dict[str, bytes]) -> bool:
        left_ms = state.ended_ms + keep_failed_ms(spec) - self._now_ms
        data = await self._archive.blob(spec.blob) if spec.blob else b""
        if left_ms <= 0 or data is None:
            return False
        if self._dry_run:
            return True
        if spec.blob:
            key = self._ns.keys.blob(self._p, run_of(state.id), spec.blob)
            # Not if an open run uses it: that run keeps it for as long as it needs.
            await self._ns.read("SET", key, data, "NX", "PX", left_ms, p=self._p)
        fields = {**fold_fields(state, spec, value), "spec": state.spec, **marks}
        if step_of(state.id):
            fields["open"] = b"=%d:-" % state.delivery
        await restore_letter(self._ns, self._p, state.id, fields, failed_ms=state.ended_ms, keep_ms=left_ms)
        return True

    async def _definition(self, digest: str) -> Published | None:
        if digest not in self._definitions:
            data = await self._archive.blob(digest)
            self._definitions[digest] = None if data is None else Published(decode_bundle(data), digest)
        return self._definitions[digest]
