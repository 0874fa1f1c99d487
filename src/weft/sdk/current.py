"""What a step knows about itself while it runs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any

from weft.core.effects import COPY, effect_key, run_of, step_of
from weft.core.model import Token
from weft.errors import InvalidOption, UserError
from weft.sdk.tasklog import TaskLog


class Reported:
    """Lets `current().progress(…)` be awaited or not: reporting never waits."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class Current:
    """One attempt of one step, as its own code sees it."""

    __slots__ = (
        "_keep",
        "_report",
        "attempt",
        "batch",
        "delivery",
        "effect_key",
        "fence",
        "run_id",
        "step",
        "tags",
        "task",
    )

    def __init__(self, token: Token, report: Callable[[str], None], keep: Callable[[bytes], None]) -> None:
        self.run_id = run_of(token.run)
        #: The task that runs; the step of a graph run is called by its node, as in `classify#17`, a task's own by the task.
        self.task = token.spec.name
        self.step = step_of(token.run).removesuffix(COPY) or token.spec.name
        self.attempt = token.attempt
        self.delivery = token.delivery
        #: Stable over attempts, crashes and losses of the store: hand it to whatever has an effect outside.
        self.effect_key = effect_key(token.run, token.spec.name)
        #: Rises with every delivery: a database can refuse writes of an older one.
        self.fence = token.fence
        self.tags = token.spec.tags
        #: In a batch function: what belongs to each item, in order of the list.
        self.batch: tuple[Current, ...] = ()
        self._report, self._keep = report, keep

    def progress(self, fraction: float, message: str = "") -> Reported:
        """Tells how far the step is, from 0 to 1."""
        if not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise InvalidOption(f"progress goes from 0 to 1, not {fraction!r}")
        if not isinstance(message, str):
            raise InvalidOption(f"the message of a progress is a text, not {message!r}")
        # What is no valid text could not be sent, and would take the reports of other steps with it.
        self._report(f"{fraction:.4g} {message[:200].encode('utf-8', 'replace').decode()}")
        return Reported()

    def heartbeat(self) -> Reported:
        """Tells that the step is alive; also how it learns early that it was cancelled."""
        self._report("")
        return Reported()

    @property
    def log(self) -> TaskLog:
        """A logger whose lines stay with the run, too: `.info("sent", to=address)`; read them by `run.logs()`."""
        step = "" if self.step == self.task else self.step
        return TaskLog(self.task, self.run_id, self.attempt, self._keep, step=step)


#: What makes the `Current` of the step that runs here. Made on demand: most steps never ask.
CURRENT: ContextVar[Callable[[], Current]] = ContextVar("weft_current")


def current() -> Current:
    """Returns the step this code runs in; raises outside of one."""
    try:
        return CURRENT.get()()
    except LookupError:
        raise UserError("current() is only there inside a step; calling the function directly is not one") from None
