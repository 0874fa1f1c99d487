"""Steps that stand alone in the hash of their graph run: no place in its ledger, no hash of their own (see lib/lone.lua).

So does the only open step of a chain, for as long as all goes as usual. Readers see it as any other step; who does
something else with it than to commit its end has it unfolded first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from weft.core.effects import Effect, Open, run_of, step_id, step_of
from weft.core.model import Token
from weft.store.namespace import Namespace

#: What the names of steps have that are more than a node run once: items, iterations, copies, steps that decide.
_MARKS = frozenset("#~?=+>$@!^*")
#: Bytes of a spec that rides with its token; what is asked more has a hash of its own.
MAX_SPEC_BYTES = 512


@lru_cache(4096)
def is_node(step: str) -> bool:
    """Tells whether a step is a node run once."""
    return _MARKS.isdisjoint(step)


def stands_alone(ahead: Open, size: int) -> bool:
    """Tells whether a step that is asked so many bytes may stand alone. What is no task is parked, or has runs below it."""
    return size <= MAX_SPEC_BYTES and ahead.spec.name[:1] != "$" and is_node(ahead.step)


def begins_alone(effects: Sequence[Effect], rows: Sequence[Sequence[str | bytes | int]]) -> bool:
    """Tells whether a graph run begins with one plain step; `rows` is what is sent of its effects."""
    if len(effects) != 1 or len(rows) != 1 or type(effects[0]) is not Open:
        return False
    _, _, _, _, _, packed, wait, refs, *_ = rows[0]
    assert isinstance(packed, bytes | str)
    return wait == "0" and refs == "" and stands_alone(effects[0], len(packed))


def parse_lone(data: bytes) -> tuple[str, dict[str, bytes]]:
    """Returns the name of a step that stands alone, and the fields that a hash of its own would have."""
    step, ledger, born, spec = data.split(b" ", 3)
    return step.decode(), {"spec": spec, "open": ledger, "born": born, "lone": b"1"}


def lone_ledger(id: str, lone: bytes | None) -> bytes | None:
    """Returns the ledger of a step if it stands alone in the hash of its run, whose field this is."""
    if not isinstance(lone, bytes):
        return None
    step, about = parse_lone(lone)
    return about["open"] if step == step_of(id) else None


def may_be_lone(token: Token) -> bool:
    """Tells whether the step of a claimed token may stand alone."""
    spec = token.spec
    return (
        bool(spec.definition)
        and token.delivery == 1
        and not token.gates
        and spec.name[:1] != "$"
        and is_lone_id(token.run)
    )


def is_lone_id(id: str) -> bool:
    """Tells whether an id is that of a step that may stand alone."""
    return "/" in id and is_node(step_of(id))


async def unfold_tokens(ns: Namespace, p: int, tokens: Iterable[Token]) -> int:
    """Unfolds the steps of claimed tokens that stand alone; returns how many did."""
    return await unfold_steps(ns, p, [token.run for token in tokens if may_be_lone(token)])


async def unfold_steps(ns: Namespace, p: int, ids: Iterable[str]) -> int:
    """Gives steps that stand alone a place in the ledger and a hash of their own; returns how many did."""
    found = list(dict.fromkeys(id for id in ids if is_lone_id(id)))
    if not found:
        return 0
    keys = ns.keys
    runs = [keys.run(p, run_of(id)) for id in found]
    ledgers = [keys.ledger(p, run_of(id)) for id in found]
    reply = await ns.call(
        "unfold_steps", p, {"run": [*runs, *(keys.run(p, id) for id in found)], "ledger": ledgers}, {}
    )
    return int(reply)


async def unfold_run(ns: Namespace, p: int, run: str) -> None:
    """Unfolds the step of a run that stands alone, if there is one, whichever it is by now."""
    while (lone := await ns.read("HGET", ns.keys.run(p, run), "lone", p=p)) is not None:
        step, _ = parse_lone(lone)
        await unfold_steps(ns, p, [step_id(run, step)])
