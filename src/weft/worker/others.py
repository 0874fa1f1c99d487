"""What becomes of a step that this worker cannot do: another has it soon, or it rests until somebody can."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from weft.core.model import Outcome, Token
from weft.engine import steps
from weft.engine.serving import Serving, read_serving, rest

if TYPE_CHECKING:
    from weft.worker.execute import Execution

#: Seconds for which what others can do is believed.
LOOK_AROUND = 2.0
#: Milliseconds before a step is offered again that another live worker can do: the first time, and at most. That one may be
#: busy, or have died a moment ago.
FIRST_DELAY_MS, MAX_DELAY_MS = 20, 2_000
#: Steps that are remembered as handed back.
MAX_REMEMBERED = 10_000


class Others:
    """The other workers, as this one sees them."""

    def __init__(self, ns: Any, insist: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> None:
        self._ns, self._insist = ns, insist
        self._serving = Serving([])
        self._looked = -LOOK_AROUND
        #: How long each step was to wait that was handed back to others, and until when.
        self._handed: OrderedDict[str, tuple[int, float]] = OrderedDict()

    async def can_do(self, token: Token, version: str = "") -> bool:
        """Tells whether a live worker can do a step; `version`: with the code of that one."""
        now = asyncio.get_running_loop().time()
        if now > self._looked + LOOK_AROUND:
            self._serving = await self._insist(lambda: read_serving(self._ns, token.partition))
            self._looked = now
        return self._serving.has(token.spec, version)

    async def leave(self, execution: Execution, reason: str, *, by: str) -> Outcome | None:
        """Leaves a step to whoever can do it; it rests where there is nobody."""
        token = execution.token
        if await self.can_do(token):
            return self.hand_over(execution, reason)
        await self._insist(lambda: rest(self._ns, token, reason, execution.started_ms, by=by))
        return None

    def hand_over(self, execution: Execution, reason: str) -> Outcome:
        """Hands a step back that another worker can do, and that may come here again before that one looks."""
        token, now = execution.token, asyncio.get_running_loop().time()
        delay_ms, until = self._handed.pop(token.run, (0, 0.0))
        # A hand-back that comes much later belongs to another turn of the run: count it from the beginning.
        delay_ms = min(2 * delay_ms, MAX_DELAY_MS) if delay_ms and now < until + 1.0 else FIRST_DELAY_MS
        self._handed[token.run] = delay_ms, now + delay_ms / 1000
        while len(self._handed) > MAX_REMEMBERED:
            self._handed.popitem(last=False)
        return steps.returned(token, reason, execution.started_ms, delay_ms=delay_ms)
