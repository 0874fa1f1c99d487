"""The verbs of retention: tell what is kept for how long, and let go of what was kept long enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from weft.core.retention import OBSERVED, SCHEDULES, Policy, parse_policy
from weft.engine.cold import Cold
from weft.engine.coldruns import readable, warn_elsewhere
from weft.engine.engine import Engine
from weft.engine.steps import keep_failed_ms
from weft.errors import InvalidOption, SettingsError
from weft.ids import partition_of
from weft.settings import read_setting
from weft.store.namespace import Namespace
from weft.store.runs import read_runs

if TYPE_CHECKING:
    from weft.archive.reader import ColdRun


class KeptRule(msgspec.Struct, frozen=True):
    """A rule of the policy, and what it is about."""

    #: As it is written.
    rule: str
    #: How long what it is about is kept, as it is written.
    keeps: str
    #: Ended runs that it is about, or observations of work elsewhere, or schedules that were deleted.
    n: int
    #: When the oldest of them ended, was observed or was deleted.
    oldest: datetime | None


@dataclass(slots=True)
class Swept:
    """What a sweep let go, or would."""

    runs: int = 0
    #: Large values that went with the last run that used them; unknown before.
    blobs: int = 0
    #: Observations of work elsewhere.
    observed: int = 0
    #: Schedules that were deleted.
    schedules: int = 0
    #: Runs that are due by the policy and stay: their results are kept longer (`keep_result`, dead letters), or Redis has them.
    kept: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)


def read_policy(given: str | None = None) -> Policy:
    """Returns the policy that was given, or is set."""
    text = read_setting("WEFT_KEEP_COLD", given)
    try:
        return parse_policy(text)
    except ValueError as error:
        if given is not None:
            raise InvalidOption(f"policy: {error}", option="policy") from None
        raise SettingsError(f"WEFT_KEEP_COLD={text!r} cannot be used: {error}", setting="WEFT_KEEP_COLD") from None


async def show_retention(engine: Engine, policy: Policy) -> list[KeptRule]:
    """Returns the rules in order, with how much each is about."""
    await engine.open()
    await warn_elsewhere(engine)
    counted = await readable(engine)
    found: list[KeptRule] = []
    for i, rule in enumerate(policy.rules):
        n = oldest = 0
        if counted:
            from weft.archive.retention import Retention

            archive = Retention(engine.cold.database, engine.ns.keys.namespace)
            if rule.kind == OBSERVED:
                n, oldest = await archive.count_observed()
            elif rule.kind == SCHEDULES:
                n, oldest = await archive.count_schedules()
            else:
                n, oldest = await archive.count(rule, policy.rules[:i])
        at = datetime.fromtimestamp(oldest / 1000, UTC) if oldest else None
        found.append(KeptRule(rule.text, rule.keeps, n, at))
    return found


async def apply_retention(
    engine: Engine, policy: Policy, *, dry_run: bool = False, progress: Callable[[Swept], None] | None = None
) -> Swept:
    """Lets go of everything that is kept no longer; with `dry_run` it is only counted. `progress` is told after each batch."""
    await engine.open()
    await warn_elsewhere(engine)
    swept = Swept()
    if await readable(engine):
        seconds, _ = await engine.ns.read("TIME", p=0)
        sweep = Sweep(engine.ns, engine.cold, policy, int(seconds) * 1000, dry_run=dry_run)
        while await sweep.step(swept):
            if progress is not None:
                progress(swept)
    return swept


class Sweep:
    """One sweep over the archive of a namespace, a bounded step at a time."""

    def __init__(
        self,
        ns: Namespace,
        cold: Cold,
        policy: Policy,
        now_ms: int,
        *,
        dry_run: bool = False,
        only_purged: bool = False,
    ) -> None:
        from weft.archive.retention import Retention

        self._ns, self._archive = ns, Retention(cold.database, ns.keys.namespace)
        self._policy, self._now_ms, self._dry_run, self._turn = policy, now_ms, dry_run, cold.turn
        self._after = ""
        self._purged_done, self._runs_done, self._schedules_done = False, False, False
        self._only_purged = only_purged

    async def step(self, swept: Swept) -> bool:
        """Lets go of the next few; returns False when there is nothing left to do."""
        if not self._purged_done:
            return await self._purge(swept) or not self._only_purged
        if not self._runs_done:
            page = await self._archive.due(self._policy, self._now_ms, after=self._after)
            over = [run for run in page if self._is_over(run)]
            hot = await self._are_hot([run.state.id for run in over])
            due = [run for run in over if run.state.id not in hot]
            swept.kept += len(page) - len(due)
            if due:
                await self._drop(due, swept)
            self._runs_done = not page
            if page:
                self._after = page[-1].state.id.partition("-")[2]
            return True
        if not self._schedules_done:
            await self._drop_schedules(swept)
            return True
        keep_ms = self._policy.observed_ms
        if keep_ms is None:
            return False
        async with self._turn:
            n = await self._archive.observed(self._now_ms - keep_ms, apply=not self._dry_run)
        swept.observed += n
        return bool(n) and not self._dry_run

    async def _drop_schedules(self, swept: Swept) -> None:
        """Lets go of schedules that were deleted long enough ago; what people did to them stays in the audit."""
        if (keep_ms := self._policy.schedules_ms) is not None:
            async with self._turn:
                swept.schedules += await self._archive.schedules(self._now_ms - keep_ms, apply=not self._dry_run)
        self._schedules_done = True

    async def _purge(self, swept: Swept) -> bool:
        """Lets go of the next few that somebody purged, whatever the policy says; returns False when there are no more."""
        page, self._after = await self._archive.purged(self._now_ms, after=self._after)
        hot = await self._are_hot([run.state.id for run in page])
        if due := [run for run in page if run.state.id not in hot]:
            await self._drop(due, swept)
        self._purged_done = not self._after
        return not self._purged_done

    async def _drop(self, due: list[ColdRun], swept: Swept) -> None:
        gone = {run.state.id for run in due}
        if not self._dry_run:
            async with self._turn:
                done = await self._archive.drop(due)
            gone = set(done.runs)
            swept.blobs += done.blobs
        swept.runs += len(gone)
        for run in due:
            if run.state.id in gone:
                swept.by_kind[run.state.kind] = swept.by_kind.get(run.state.kind, 0) + 1

    def _is_over(self, run: ColdRun) -> bool:
        """Tells whether its result is kept no longer, whichever store has it."""
        keep_ms = run.state.keep_ms
        if run.state.status == "failed" and run.spec is not None:
            keep_ms = keep_failed_ms(run.spec)
        return run.state.ended_ms + keep_ms < self._now_ms

    async def _are_hot(self, ids: Sequence[str]) -> set[str]:
        """Returns those that the hot store still holds: whoever sees them there may open them anew."""
        found: set[str] = set()
        for p in {partition_of(id) for id in ids}:
            if p < self._ns.partitions:
                rows = await read_runs(self._ns, p, [id for id in ids if partition_of(id) == p])
                found |= {row.id for row in rows if row is not None}
        return found
