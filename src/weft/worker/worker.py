"""A worker: claims tokens, executes them, commits what came out; drains when told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft import __version__
from weft.clock import Duration, parse_duration_ms
from weft.core.effects import NodeEnd
from weft.core.flow import FlowRecord
from weft.core.model import ROUTES, Outcome, SessionInfo, Token
from weft.ending import end_tasks
from weft.engine.housekeeping.archiver import make_archivers
from weft.engine.housekeeping.reopening import open_again, open_or_rebuild, until_open
from weft.engine.housekeeping.retention import make_sweeping
from weft.engine.housekeeping.service import Service
from weft.engine.housekeeping.sweeper import Sweeper
from weft.engine.housekeeping.timers import Timers
from weft.engine.retention import read_policy
from weft.engine.schedules import publish
from weft.engine.session import Session
from weft.engine.steps import report_steps, returned
from weft.errors import InvalidOption, UserError, WeftError
from weft.ids import check_name, new_id
from weft.settings import read_setting
from weft.telemetry import get_logger
from weft.worker.archiving import Archiving
from weft.worker.execute import Execution, Executor
from weft.worker.hooks import call_hook, call_shutdown
from weft.worker.lane import Lane
from weft.worker.lease import TICK, Pulse
from weft.worker.slots import Slots
from weft.worker.suspects import Suspects
from weft.worker.verdicts import DRAINED, LOST

if TYPE_CHECKING:
    from weft.sdk.app import Weft

log = get_logger("weft.worker")

#: Seconds between two looks at the embedded server.
STORE_LOOK = 1.0

#: Seconds a step runs before its log lines are sent ahead of its end.
LINES_SECONDS = 1.0

#: Times a leaving worker looks for tokens it holds unseen.
LEAVE_ATTEMPTS = 3

#: Milliseconds after which a step that Weft itself failed to execute is tried again.
FAULT_DELAY_MS = 5_000

#: What is needed only now and then: refused before the worker has a session, not when it comes to that.
READ_LATER = (
    "WEFT_RETENTION",
    "WEFT_DLQ_RETENTION",
    "WEFT_MAX_LAG",
    "WEFT_MAX_MEMORY",
    "WEFT_EGRESS_PORTS",
    "WEFT_SECRET_KEY",
    "WEFT_STATUS_KEEP",
    "WEFT_STATUS_HISTORY",
    "WEFT_STATUS_FEED",
    "WEFT_STATUS_EVENTS",
)


class Worker:
    """Serves queues of one app. `async with app.worker(): …`, or `weft worker` for a process of its own."""

    def __init__(
        self,
        app: Weft,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        grace: Duration = 30.0,
        aging: Duration | None = None,
        archive: bool | None = None,
    ) -> None:
        self.app = app
        if queues is not None and not isinstance(queues, (list, tuple)):
            raise InvalidOption(f"queues takes a list of names, not {queues!r}", option="queues")
        names = read_setting("WEFT_QUEUES", queues)
        self.queues = list(dict.fromkeys(check_name(queue, what="queue") for queue in names))
        self.concurrency: int = read_setting("WEFT_CONCURRENCY", concurrency)
        if not isinstance(self.concurrency, int) or isinstance(self.concurrency, bool):
            raise InvalidOption(f"concurrency is a whole number, not {concurrency!r}", option="concurrency")
        if self.concurrency < 1 or not self.queues:
            raise InvalidOption("a worker needs at least one queue and a concurrency of at least 1")
        self.grace = parse_duration_ms(grace, what="grace") / 1000
        #: Milliseconds of waiting that count as one priority more; 0: priorities are strict.
        given = None if aging is None else parse_duration_ms(aging, what="aging")
        self.aging_ms: int = read_setting("WEFT_AGING", given) or 0
        if archive is not None and not isinstance(archive, bool):
            raise InvalidOption(f"archive is True or False, not {archive!r}", option="archive")
        self.archive: bool = read_setting("WEFT_ARCHIVE", archive)
        #: Whether it archives in a process of its own, which workers of the command line do.
        self.archive_apart = False
        self._hot_ms: int = read_setting("WEFT_KEEP_HOT")
        self.lease = read_setting("WEFT_LEASE") / 1000
        for setting in READ_LATER:
            read_setting(setting)
        if self.archive:
            read_policy()
        self.session = ""
        self.running: dict[tuple[str, str], Execution] = {}
        self._started = self._draining = False
        self._hasten = asyncio.Event()
        self._lost: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the store, runs the startup hooks, takes a session and begins to claim. One that stopped may start again."""
        if self._started:
            raise UserError("this worker runs already: for two of them make two, app.worker() twice")
        self._started = True
        try:
            await self._start()
        except BaseException:
            self._started = False
            raise

    async def _start(self) -> None:
        self._draining, self._hasten, self._lost = False, asyncio.Event(), None
        self._loop = asyncio.get_running_loop()
        await self.open()
        engine = self.app.engine()
        self.ns = engine.ns
        for hook in self.app.startup:
            await call_hook(hook, "start-up")
        await publish(engine, self.app.crons)
        self.slots = Slots(self.concurrency)
        self.executor = self.make_executor()
        self.executor.batches.slots = self.slots
        self.executor.flows.submit = lambda record: self.lanes[record.token.partition].committer.put(record)
        self._reports: dict[tuple[str, str], Execution] = {}
        self._reporting = asyncio.Event()
        await self._open_session()
        self._chores = [
            asyncio.create_task(self._heartbeat(), name="weft heartbeat"),
            asyncio.create_task(self._send_reports(), name="weft reports"),
            asyncio.create_task(self._keep_store_up(), name="weft embedded store"),
            asyncio.create_task(self._keep_schedules(), name="weft schedules"),
        ]

    async def open(self) -> None:
        """Opens the store. One that was lost is rebuilt first: by this worker if it archives, else it waits for who does."""
        await open_or_rebuild(self.app.engine(), archive=self.archive, hot_ms=self._hot_ms)

    def make_executor(self) -> Executor:
        """Makes what executes its steps; tests put in one that takes notes."""
        return Executor(self.app, self.ns)

    async def _open_session(self) -> None:
        """Takes a new session: a name no other worker had, with lanes and services of its own."""
        self.session = self.executor.session = new_id("s")
        about = self._describe()
        self._session = Session(self.ns, about, lease=self.lease, on_message=self._receive, on_gap=self._look_again)
        try:
            await self._session.open()
        except BaseException:
            # Cancelled, or the store went away: another one is opened, or none. This one must not listen on for ever.
            await self._session.close()
            raise
        self.suspects = Suspects(
            self.ns, session=self.session, slots=self.slots, begin=self._begin, on_lost=self._begin_anew
        )
        self.lanes = [self._make_lane(p) for p in range(self.ns.partitions)]
        self._services = self._make_services()
        self._pulse = Pulse(
            self._session.renew,
            lease=self.lease,
            on_lost=self._on_lost,
            loop_thread=threading.get_ident(),
            moved=lambda: self._session.moved,
        )
        self._pulse.start()
        self.suspects.start()
        for lane in self.lanes:
            lane.start()
        for service in self._services:
            service.start()

    def _make_lane(self, p: int) -> Lane:
        return Lane(
            self.ns,
            p,
            session=self.session,
            queues=[ROUTES, *self.queues],
            slots=self.slots,
            suspects=self.suspects,
            alone=self.ns.partitions == 1,
            aging_ms=self.aging_ms,
            begin=self._begin,
            drop=self._drop,
            on_lost=self._begin_anew,
            overdue=lambda: self._pulse.overdue,
        )

    def _make_services(self) -> list[Service]:
        retention_ms = read_setting("WEFT_RETENTION")
        services: list[Service] = []
        for p in range(self.ns.partitions):
            services.append(Timers(self.ns, p, self.session))
            services.append(Sweeper(self.ns, p, self.session, lease=self.lease, retention_ms=retention_ms))
        if self.archive and self.archive_apart:
            places = {"WEFT_REDIS_URL": self.app.url(), **self.app.database().environ}
            services.append(Archiving(self.ns, self.session, environ=places))
        elif self.archive:
            services += make_archivers(self.ns, self.app.engine().cold, self.session, hot_ms=self._hot_ms)
            services += make_sweeping(self.ns, self.app.engine().cold, self.session)
        return services

    def _describe(self) -> SessionInfo:
        return SessionInfo(
            id=self.session,
            app=self.app.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            tasks=sorted({*self.app.tasks, *self.app.workflows}),
            concurrency=self.concurrency,
            started_ms=int(time.time() * 1000),
            version=__version__,
            workflows={name: sorted(one.versions) for name, one in self.app.workflows.items()},
        )

    async def stop(self, *, grace: Duration | None = None) -> None:
        """Drains: stops claiming at once, lets steps finish within the grace, hands the rest back, leaves.

        Does nothing to a worker that does not run.
        """
        seconds = self.grace if grace is None else parse_duration_ms(grace, what="grace") / 1000
        if not self._started:
            return
        self._draining = self.executor.flows.draining = True
        if self._lost:
            await asyncio.gather(self._lost, return_exceptions=True)
        await self._stop_claiming()
        self.executor.batches.close_all()
        if self.running:
            log.info("draining", running=len(self.running), grace=seconds)
        await self._await_steps(seconds)
        for execution in list(self.running.values()):
            execution.stop(DRAINED)
        await self._await_steps(1.0, hasten=False)
        for execution in list(self.running.values()):
            # Its code will not stop. Hand it back now: left to the lease, every deploy would count as a crash of the step.
            execution.verdict = LOST
            token = execution.token
            log.warning("a step does not stop when it is cancelled; it is handed back all the same", run=token.run)
            self.lanes[token.partition].committer.put(returned(token, "worker stopped", execution.started_ms))
        for lane in self.lanes:
            await lane.hand_back_unseen()
        await self._committed()
        await end_tasks(*self._chores)
        await self._close_session()
        await self.executor.close()
        self._started = False
        await call_shutdown(self.app.shutdown)

    def hasten(self) -> None:
        """Ends the grace of a drain that is under way: what still runs is handed back now."""
        self._hasten.set()

    async def _stop_claiming(self) -> None:
        await asyncio.gather(*(lane.stop_claiming() for lane in self.lanes))
        await self.suspects.stop()
        await asyncio.gather(*(service.stop() for service in self._services))

    async def _await_steps(self, seconds: float, *, hasten: bool = True) -> None:
        """Waits for running steps, up to a time or a second signal."""
        tasks = [execution.loop_task for execution in self.running.values() if execution.loop_task]
        if not tasks:
            return
        done = asyncio.ensure_future(asyncio.wait(tasks))
        hurry = asyncio.ensure_future(self._hasten.wait()) if hasten else None
        await asyncio.wait([done, *([hurry] if hurry else [])], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for waiter in (done, hurry):
            if waiter:
                waiter.cancel()

    async def _committed(self) -> None:
        """Waits until every outcome is committed, or until waiting longer would help nobody."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(5.0, self.lease)):
                await asyncio.gather(*(lane.committer.idle() for lane in self.lanes))

    async def _close_session(self) -> None:
        self._pulse.stop()
        await asyncio.to_thread(self._pulse.join)
        for lane in self.lanes:
            with contextlib.suppress(WeftError):
                for _ in range(LEAVE_ATTEMPTS):
                    if not await self._session.end(lane.p) or not self._draining:
                        break
                    # A claim that was cut off when the drain began took something after we had looked for it.
                    await lane.hand_back_unseen()
                    await self._committed()
            await lane.close()
        await self._session.close()

    # --- one token --------------------------------------------------------------------------------

    def _begin(self, token: Token) -> Execution:
        execution = self.running[token.key] = Execution(token, self._report)
        execution.loop_task = self._loop.create_task(self._run(execution))
        return execution

    def _drop(self, token: Token) -> None:
        if (execution := self.running.get(token.key)) is not None:
            execution.stop(LOST)

    async def _run(self, execution: Execution) -> None:
        token = execution.token
        outcome: Outcome | NodeEnd | FlowRecord | None = None
        lane = self.lanes[token.partition]
        try:
            outcome = await self.executor.execute(execution)
        except Exception as error:  # noqa: BLE001 - not the step's: that is an outcome
            # A fault of ours. The token would stay with this session, and its run would look as if it ran.
            where = "".join(traceback.format_tb(error.__traceback__)[-1:]).strip()
            log.error("a step could not be executed; it is handed back", run=token.run, error=repr(error), where=where)
            outcome = returned(token, "it could not be executed", execution.started_ms, delay_ms=FAULT_DELAY_MS)
        finally:
            # The task's context refers to the execution, for `current()`: every step would leave a reference cycle.
            execution.loop_task = None
            self.running.pop(token.key, None)
            lane.held.pop(token.key, None)
            if not execution.lent and not (token.crashes and token.is_suspect and self.suspects.inherit(token)):
                self.slots.give()
            if outcome is not None and execution.verdict != LOST:
                if execution.lines is not None:
                    outcome.lines, _ = execution.lines.pack()
                lane.committer.put(outcome)

    # --- news -------------------------------------------------------------------------------------

    def _receive(self, message: bytes) -> None:
        """`end <run> <kind>`: the run was ended from outside; its step must stop. `mail <run> -`: a workflow has mail."""
        what, run, _ = message.decode().split(" ", 2)
        if what == "mail":
            return self.executor.flows.notify(run)
        for execution in list(self.running.values()):
            if execution.token.run == run:
                execution.stop(LOST)

    def _look_again(self) -> None:
        """Asks for what may have come while nobody listened: mail of workflows, and which steps were ended."""
        self.executor.flows.look_again()
        self._reports |= {execution.token.key: execution for execution in self.running.values()}
        self._reporting.set()

    def _report(self, execution: Execution, text: str) -> None:
        """Takes a progress report or heartbeat of a step, from any thread; the newest one is sent."""
        self._loop.call_soon_threadsafe(self._note_report, execution, text)

    def _note_report(self, execution: Execution, text: str) -> None:
        if execution.token.key in self.running:
            execution.progress = text or execution.progress
            self._reports[execution.token.key] = execution
            self._reporting.set()

    async def _send_reports(self) -> None:
        """Sends reports in groups: what comes while one call is under way goes in the next."""
        while True:
            await self._reporting.wait()
            self._reporting.clear()
            waiting, self._reports = list(self._reports.values()), {}
            await self._tell(waiting)

    async def _heartbeat(self) -> None:
        """Shows the loop's pulse, and reports long steps: a step that was taken away learns it here at the latest."""
        due = time.monotonic() + self.lease / 3
        while True:
            await asyncio.sleep(min(TICK, self.lease / 6))
            now = self._pulse.beat = time.monotonic()
            self._report_lines(now)
            if now >= due:
                due = now + self.lease / 3
                self.executor.flows.look_again()
                # Queued, not sent from here: waiting for a slow server must not look like a blocked loop.
                for execution in self.running.values():
                    if now - execution.began > self.lease / 3:
                        self._reports[execution.token.key] = execution
                if self._reports:
                    self._reporting.set()

    def _report_lines(self, now: float) -> None:
        """Reports steps that logged something and do not end: whoever reads their lines, or loses them, need not wait."""
        waiting = [
            execution
            for execution in self.running.values()
            if execution.lines and now - execution.began > LINES_SECONDS
        ]
        if waiting:
            self._reports |= {execution.token.key: execution for execution in waiting}
            self._reporting.set()

    async def _tell(self, executions: list[Execution]) -> None:
        for p in {execution.token.partition for execution in executions}:
            group = [execution for execution in executions if execution.token.partition == p]
            reports = [(execution.token, execution.started_ms, execution.progress) for execution in group]
            packed = {execution.token.key: execution.lines.pack() for execution in group if execution.lines}
            for execution in group:
                execution.progress = ""
            try:
                lines = {key: text for key, (text, _) in packed.items()}
                alive = await report_steps(self.ns, p, reports, session=self.session, lines=lines)
            except WeftError as error:
                log.debug("a report could not be sent", error=error)
                continue
            for execution, still_ours in zip(group, alive, strict=True):
                if still_ours and execution.lines is not None and execution.token.key in packed:
                    execution.lines.forget(packed[execution.token.key][1])
                if not still_ours:
                    execution.stop(LOST)

    async def _keep_store_up(self) -> None:
        """Starts the embedded server again when it died under us; its data is on disk."""
        while self.app.embedded is not None:
            await asyncio.sleep(STORE_LOOK)
            try:
                await asyncio.to_thread(self.app.revive)
            except WeftError as error:
                log.warning("the embedded store is down and cannot be started; trying on", error=error)

    async def _keep_schedules(self) -> None:
        """Publishes declared schedules again that a store which came back empty lacks."""
        known = list(self.ns.epochs)
        while self.app.crons:
            await asyncio.sleep(STORE_LOOK)
            if (epochs := list(self.ns.epochs)) != known:
                with contextlib.suppress(WeftError):
                    await publish(self.app.engine(), self.app.crons, missing=True)
                    known = epochs

    # --- the lease --------------------------------------------------------------------------------

    def _on_lost(self, error: WeftError) -> None:
        """Called by the pulse thread when the session was declared dead or the epoch moved."""
        self._loop.call_soon_threadsafe(self._begin_anew, error)

    def _begin_anew(self, error: WeftError) -> None:
        if self._draining or (self._lost and not self._lost.done()):
            return
        self._lost = self._loop.create_task(self._change_session(error), name="weft new session")

    async def _change_session(self, error: WeftError) -> None:
        log.warning("this worker was declared dead; it drops its steps and begins a new session", error=error)
        for execution in list(self.running.values()):
            execution.stop(LOST)
        await asyncio.gather(*(lane.stop_claiming() for lane in self.lanes))
        # Its services go on until the store is open: one of them may be rebuilding it, and nobody else would.
        await until_open(self.ns.open, lambda: self._draining)
        await self._stop_claiming()
        await self._close_session()
        await until_open(self._open_again, lambda: self._draining)

    async def _open_again(self) -> None:
        await open_again(self.app.engine(), archive=self.archive, hot_ms=self._hot_ms)
        await self._open_session()
