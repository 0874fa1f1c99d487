"""How long the archive keeps runs: rules by kind, status, name and tag, the first that fits decides. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from weft.clock import format_duration, parse_duration_ms
from weft.core.fold import ENDINGS
from weft.errors import InvalidOption

#: What is kept for good.
FOREVER = "forever"
#: What a rule may name as a kind: those of runs, what was observed of work elsewhere, and schedules that were deleted.
OBSERVED = "status"
SCHEDULES = "schedule"
#: What is no run: it has neither an end nor tags, and goes by its age alone.
BY_AGE = {OBSERVED: "what was observed of work elsewhere goes", SCHEDULES: "schedules that were deleted go"}
KINDS = ("task", "graph", "workflow", *BY_AGE)
#: Rules that a policy may have: each is asked for in the same statement.
MAX_RULES = 50

_FORM = "write rules like `status=failed 90d; kind=task tag.env=test 1d; 30d`: the first that fits decides"
_TAG = re.compile(r"tag\.(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """Which runs it is about, and how long they are kept after they ended; `keep_ms` None: for good."""

    keep_ms: int | None
    kind: str = ""
    status: str = ""
    name: str = ""
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it is about every run."""
        return not (self.kind or self.status or self.name or self.tags)

    @property
    def text(self) -> str:
        """The rule as it is written."""
        words = [f"{what}={value}" for what, value in self._parts if value]
        words += [f"tag.{name}={value}" for name, value in self.tags]
        return " ".join([*words, self.keeps])

    @property
    def keeps(self) -> str:
        """How long it keeps runs, as it is written."""
        return FOREVER if self.keep_ms is None else format_duration(self.keep_ms)

    @property
    def _parts(self) -> tuple[tuple[str, str], ...]:
        return ("kind", self.kind), ("status", self.status), ("name", self.name)


@dataclass(frozen=True, slots=True)
class Policy:
    """How long runs are kept: the rules in order, the last of which is about every run."""

    rules: tuple[Rule, ...]

    @property
    def text(self) -> str:
        return "; ".join(rule.text for rule in self.rules)

    @property
    def shortest_ms(self) -> int | None:
        """The shortest time that anything is kept; None: everything is kept for good."""
        return min((rule.keep_ms for rule in self.rules if rule.keep_ms is not None), default=None)

    @property
    def observed_ms(self) -> int | None:
        """How long what was observed of work elsewhere is kept; None: for good."""
        return self._by_age(OBSERVED)

    @property
    def schedules_ms(self) -> int | None:
        """How long schedules are kept after they were deleted; None: for good."""
        return self._by_age(SCHEDULES)

    def _by_age(self, kind: str) -> int | None:
        return next(rule for rule in self.rules if rule.kind == kind or rule.is_plain).keep_ms


def parse_policy(text: str) -> Policy:
    """Reads a policy; raises ValueError that says what is wrong with which rule."""
    rules: list[Rule] = []
    for part in re.split(r"[;\n]", text):
        if not part.strip():
            continue
        if rules and rules[-1].is_plain:
            raise ValueError(f"no rule can stand behind {rules[-1].text!r}, which is about every run; {_FORM}")
        rules.append(_parse_rule(part.strip()))
    if not rules:
        raise ValueError(f"there is no rule; {_FORM}, or `{FOREVER}`")
    if len(rules) > MAX_RULES:
        raise ValueError(f"{len(rules)} rules, at most {MAX_RULES} are taken")
    if not rules[-1].is_plain:
        rules.append(Rule(None))
    return Policy(tuple(rules))


def _parse_rule(text: str) -> Rule:
    *conditions, keep = text.split()
    if "=" in keep:
        raise ValueError(f"rule {text!r} does not say how long: put a duration such as 30d, or {FOREVER}, behind it")
    found: dict[str, str] = {}
    tags: list[tuple[str, str]] = []
    for condition in conditions:
        what, equals, value = condition.partition("=")
        tag = _TAG.fullmatch(what)
        if not equals or not value or not (tag or what in ("kind", "status", "name")):
            raise ValueError(
                f"rule {text!r}: {condition!r} is no condition; there are kind=, status=, name=, tag.NAME="
            )
        if tag:
            tags.append((tag[1], value))
        elif what in found:
            raise ValueError(f"rule {text!r} says {what}= twice: no run has both")
        else:
            found[what] = value
    if found.get("kind", KINDS[0]) not in KINDS:
        raise ValueError(f"rule {text!r}: there is no kind {found['kind']!r}; there are {', '.join(KINDS)}")
    if found.get("status", "failed") not in ENDINGS:
        ended = ", ".join(sorted(ENDINGS))
        raise ValueError(f"rule {text!r}: only runs that have ended go; their status is one of {ended}")
    if found.get("kind") in BY_AGE and len(conditions) > 1:
        raise ValueError(f"rule {text!r}: {BY_AGE[found['kind']]} by age alone")
    return Rule(_parse_keep(text, keep), tags=tuple(tags), **found)


def _parse_keep(rule: str, text: str) -> int | None:
    if text == FOREVER:
        return None
    try:
        return parse_duration_ms(text, what="a rule", allow_zero=False)
    except InvalidOption as error:
        raise ValueError(f"rule {rule!r}: {error.message}") from None
