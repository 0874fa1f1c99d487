"""All workflow runs of a worker: the code of those that wait stays in memory; other code is made anew from its journal."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from weft.core.flow import CallEnd, FlowRecord, is_flow
from weft.core.model import Outcome, Token
from weft.core.waits import WAITS
from weft.engine import flows as verbs
from weft.engine import steps
from weft.engine.waits import park
from weft.errors import OwnershipLost
from weft.worker.flow import Flow
from weft.worker.inline import Limits

if TYPE_CHECKING:
    from weft.sdk.workflow import Workflow
    from weft.worker.execute import Execution, Executor

T = TypeVar("T")

#: Flows that wait and are kept in memory.
MAX_KEPT = 2_000


class Flows:
    """All workflow runs of one worker."""

    def __init__(self, executor: Executor) -> None:
        self.executor, self.insist = executor, executor.insist
        self.ns: Any = executor._ns
        self._waiting: OrderedDict[str, Flow] = OrderedDict()
        self._live: dict[str, Flow] = {}
        self.limits = Limits()
        self._answers: list[tuple[Flow, Sequence[Any]]] = []
        #: Puts a commit in line; the worker sets it.
        self.submit: Callable[[FlowRecord], None] = lambda record: None
        #: The worker stops: flows are handed back at the next boundary.
        self.draining = False

    async def execute(self, execution: Execution) -> Outcome | CallEnd | None:
        """Runs a flow until it waits or ends, or one call of a flow."""
        execution.begun = True
        executor, token = self.executor, execution.token
        if execution.verdict:
            return await executor._stopped(execution)
        if not is_flow(token.spec):
            if token.spec.name in WAITS:
                return await self._wait(execution)
            outcome = await executor._attempt(execution)
            terminal = outcome is not None and outcome.kind in ("completed", "failed", "cancelled")
            return verbs.ended_call(outcome) if terminal and outcome is not None else outcome
        workflow = executor._app.workflows.get(token.spec.name)
        if workflow is None:
            return await executor.others.leave(execution, "unknown workflow", by=executor.session)
        flow = self._recall(token)
        if token.spec.version:
            workflow = workflow.versions.get(token.spec.version)
            if workflow is None:
                return await executor.others.leave(execution, "another version", by=executor.session)
        flow = flow or Flow(self, workflow, token.run)
        flow.epoch = self.ns.epochs[token.partition]
        self._live[token.run] = flow
        try:
            return await flow.run(execution)
        except asyncio.CancelledError:
            if not execution.verdict:
                raise
            return await flow.hand_back() if execution.verdict == "drained" else None
        except Exception as error:  # noqa: BLE001 - its token would stay with this worker, and nobody would go on with it
            flow.trouble(error)
            return await flow._released
        finally:
            self._live.pop(token.run, None)
            if flow.program is not None and not flow.parked:
                flow.let_go()
            elif flow.parked:
                self._keep(flow)

    async def insist_for(self, token: Token, call: Callable[[], Awaitable[T]]) -> T:
        """Repeats a call for a flow while the store is away; raises OwnershipLost when the store was rebuilt meanwhile.

        The flow goes on elsewhere then, from where the archive had it, which may be long before what this call is for.
        """

        ns, p, again = self.ns, token.partition, False

        async def once() -> T:
            nonlocal again
            # Asked of the store once a call has failed: a script refused under the old epoch is sent again under the new.
            now = int(await ns.read("HGET", ns.keys.epoch(p), "number", p=p) or 0) if again else ns.epoch(p)
            again = True
            if now != token.epoch:
                raise OwnershipLost(f"run {token.run} was rebuilt, and goes on elsewhere", run=token.run)
            return await call()

        return await self.insist(once)

    def _recall(self, token: Token) -> Flow | None:
        """Returns a flow that was kept in memory, if it may go on from there."""
        flow = self._waiting.pop(token.run, None)
        if flow is None:
            return None
        # The store may have been lost and rebuilt, with another journal for this run. Or the run was pinned while it waited.
        lost = flow.epoch != self.ns.epochs[token.partition]
        if lost or (token.spec.version and flow._workflow.version != token.spec.version):
            flow.let_go()
            return None
        return flow

    async def leave_to_others(self, execution: Execution, own: Workflow[Any, Any], version: str) -> Outcome | None:
        """Hands a flow back that does not fit this worker's code, if another live one has the code that it had: a deploy."""
        others = self.executor.others
        if version in ("", own.version) or not await others.can_do(execution.token, version):
            return None
        return others.hand_over(execution, "another version")

    async def _wait(self, execution: Execution) -> CallEnd | None:
        """Lets a step wait for people, or takes what they decided."""
        token = execution.token
        if not await self.insist(lambda: park(self.ns, token, by=self.executor.session)):
            return None
        data = await self.insist(lambda: verbs.given_to(self.ns, token))
        return verbs.ended_call(steps.completed_inline(token, data, execution.started_ms))

    def answered(self, flow: Flow, reply: Sequence[Any]) -> None:
        """Takes the answer to a commit of a flow. Its code runs behind the commit, with that of all others in it."""
        if not self._answers:
            # Not inside the committer: workflow code that takes long must not delay the next commit.
            asyncio.get_running_loop().call_soon(self._tell)
        self._answers.append((flow, reply))

    def _tell(self) -> None:
        answers, self._answers = self._answers, []
        for flow, reply in answers:
            try:
                flow.replied(reply)
            except Exception as error:  # noqa: BLE001 - one flow must not take the others with it
                flow.trouble(error)

    def notify(self, run: str) -> None:
        """A run that is here has mail."""
        flow = self._live.get(run)
        if flow is not None:
            self._look(flow)

    def look_again(self) -> None:
        """Has every run that is here look for mail: news of it may have been lost."""
        for flow in list(self._live.values()):
            self._look(flow)

    def _look(self, flow: Flow) -> None:
        try:
            flow.look_for_mail()
        except Exception as error:  # noqa: BLE001 - one flow must not take the others' news with it, nor the worker's
            flow.trouble(error)

    def _keep(self, flow: Flow) -> None:
        self._waiting[flow.run_id] = flow
        while len(self._waiting) > MAX_KEPT:
            self._waiting.popitem(last=False)[1].let_go()

    def close(self) -> None:
        while self._waiting:
            self._waiting.popitem()[1].let_go()
