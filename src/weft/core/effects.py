"""What follows the end of a step in a graph run, as data: decided in Python, done by one script. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from weft.core.model import ROUTES, RunSpec, Token

#: The task name of a step that decides what follows. `$` cannot stand in a name users choose.
ROUTE = "$route"
#: The task name of a step that only waits for its time.
PAUSE = "$wait"
#: The task name of a step that runs another graph.
SUBGRAPH = "$graph"
#: The step that puts a run's result together when nothing is open any more.
END = "$end"
#: The step that begins to undo what a failing run has done.
UNDO = "$undo"
#: What the name of the step ends with that waits for the deadline of a map.
ENDS = "@"
#: What the name of an item ends with that is run a second time, because the first takes long.
COPY = "^"
#: What the name of a compensation ends with: the step it undoes stands before it.
UNDOES = "!"
#: What the name ends with under which the context has the errors of a map's items.
ERRORS = "*"
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
    #: Asked what its definition and the one step before it say, nothing else: whoever rebuilds the run can tell it from those.
    straight: bool = False


@dataclass(slots=True)
class Mark:
    """A node has ended without a worker of its own: completed, failed or skipped."""

    node: str
    step: str
    status: str
    value: bytes = b""
    #: Digest of a staged value that is too large to stand here.
    blob: str = ""
    #: Its value was given by a step like it, earlier.
    cached: bool = False


@dataclass(slots=True)
class Given:
    """An item of a map has its value from a step like it, earlier."""

    step: str
    value: bytes
    blob: str = ""


@dataclass(slots=True)
class Weigh:
    """Items were given, up to here: the map may be over, or have room."""

    step: str
    to: int


@dataclass(slots=True)
class Remember:
    """What the step gave is kept for steps like it."""

    node: str
    digest: str
    data: bytes
    ttl_ms: int


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
    #: Whether a step waits that ends it at its deadline.
    timed: bool = False


@dataclass(slots=True)
class Over:
    """The deadline of a map has come: what is there is put together."""

    step: str


@dataclass(slots=True)
class Watch:
    """Items of a map that run for so many milliseconds are started a second time; 0: the map is over."""

    step: str
    ms: int


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
    #: More for the run's last event, such as how many compensations there were.
    facts: str = ""


@dataclass(slots=True)
class Failing:
    """The run will fail: nothing new begins, and what was done is undone first."""

    error: bytes


@dataclass(slots=True)
class Undoable:
    """The step that ends here can be undone."""


@dataclass(slots=True)
class Undone:
    """The newest of what can be undone is undone, or could not be."""

    n: int = 1


@dataclass(slots=True)
class Letter:
    """A step becomes a dead letter: what it was asked, as a run of its own would be."""

    step: str
    spec: RunSpec
    error: bytes
    keep_ms: int = 0
    attempt: int = 1


@dataclass(slots=True)
class Finish:
    """The run's result, should nothing be open any more."""

    value: bytes
    #: The definition leaves nothing behind but the run's own keys: no maps.
    plain: bool = False


@dataclass(slots=True)
class Last:
    """Should nothing be open any more, a last step puts the result together."""


Effect = (
    Open
    | Mark
    | Given
    | Weigh
    | Remember
    | Arrive
    | Shut
    | Scatter
    | Over
    | Watch
    | Cursor
    | Fail
    | Failing
    | Undoable
    | Undone
    | Letter
    | Finish
    | Last
)


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
    #: Log lines that are not kept yet, packed.
    lines: bytes | None = None
    #: Whether somebody else may work on the same item of a map: the first to end it wins.
    hedged: bool = False
    #: Address of the definition it was decided on; empty: the one the step was opened under.
    definition: str = ""
    #: Whether nothing else should be open in its run, which has gone straight until here.
    alone: bool = False
    #: Decides anew, for when a patch came between.
    again: Callable[[], Awaitable[NodeEnd]] | None = None
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


def rival_of(step: str) -> str:
    """Returns the step that works on the same item of a map: the copy of an item, the item of a copy."""
    return step[:-1] if step.endswith(COPY) else step + COPY


def effect_key(id: str, task: str) -> str:
    """Returns `run/step/iteration/index`: what an effect outside is known by, whoever causes it and however often."""
    run, _, step = id.partition("/")
    if not step:
        return f"{run}/{task}/0/0"
    name, _, index = step.removesuffix(COPY).partition("#")
    node, _, iterations = name.partition("~")
    return f"{run}/{node}/{iterations or 0}/{index or 0}"


def route_spec(definition: str) -> RunSpec:
    """Returns what a step that decides is asked."""
    return RunSpec(ROUTE, definition=definition, queue=ROUTES)
