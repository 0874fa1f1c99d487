"""What follows the end of a step in a graph run, as data: decided in Python, done by one script. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.core.model import ROUTES, RunSpec, Token

#: The task name of a step that decides what follows. `$` cannot stand in a name users choose.
ROUTE = "$route"
#: The task name of a step that only waits for its time.
PAUSE = "$wait"
#: The step that puts a run's result together when nothing is open any more.
END = "$end"
#: Items of a map that one field or key holds.
CHUNK = 256


@dataclass(slots=True)
class Open:
    """A step begins: at once, after `<ms>` or at `@<ms>`."""

    step: str
    spec: RunSpec
    wait: str = "0"
    #: The spec as it is stored, when whoever decided has it already; the spec's own input is not looked at then.
    packed: bytes = b""


@dataclass(slots=True)
class Mark:
    """A node has ended without a worker of its own: completed, failed or skipped."""

    node: str
    step: str
    status: str
    value: bytes = b""
    #: Digest of a staged value that is too large to stand here.
    blob: str = ""


@dataclass(slots=True)
class Arrive:
    """A predecessor reaches a join; the join opens when it has what it needs (0: all)."""

    join: str
    who: str
    total: int
    need: int = 0


@dataclass(slots=True)
class Shut:
    """A step that had no token is over."""

    step: str


@dataclass(slots=True)
class Scatter:
    """A map begins."""

    step: str
    n: int
    most: int
    need: int = 0


@dataclass(slots=True)
class Cursor:
    """Items of a map were opened up to here."""

    step: str
    to: int
    #: Whether a step is under way that opens more of them.
    busy: bool = False


@dataclass(slots=True)
class Fail:
    """The run fails."""

    error: bytes


@dataclass(slots=True)
class Finish:
    """The run's result, should nothing be open any more."""

    value: bytes
    #: The definition leaves nothing behind but the run's own keys: no maps.
    plain: bool = False


@dataclass(slots=True)
class Last:
    """Should nothing be open any more, a last step puts the result together."""


Effect = Open | Mark | Arrive | Shut | Scatter | Cursor | Fail | Finish | Last


@dataclass(slots=True)
class NodeEnd:
    """The end of a step of a graph run, and what follows."""

    token: Token
    kind: str
    value: bytes
    started_ms: int
    keep_ms: int
    effects: list[Effect] = field(default_factory=list)
    blob: str = ""
    run: str = field(init=False)
    step: str = field(init=False)

    def __post_init__(self) -> None:
        self.run, _, self.step = self.token.run.partition("/")


def step_id(run: str, step: str) -> str:
    """Returns the id under which a step lives while it is open."""
    return f"{run}/{step}"


def run_of(id: str) -> str:
    """Returns the run that a step belongs to."""
    return id.partition("/")[0]


def step_of(id: str) -> str:
    """Returns the step within its run; empty for a run that is no step."""
    return id.partition("/")[2]


def route_spec(definition: str) -> RunSpec:
    """Returns what a step that decides is asked."""
    return RunSpec(ROUTE, definition=definition, queue=ROUTES)
