"""What a workflow asks people: `ctx.approve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.clock import Duration, format_duration, parse_duration_ms
from weft.codec import decode_plain, encode_plain
from weft.core.flow import call_mark
from weft.core.graph.problems import Problems
from weft.core.graph.schema import check_schema
from weft.core.model import ROUTES, RunSpec
from weft.core.waits import APPROVAL, MAX_ASKED
from weft.errors import InvalidOption, PayloadTooLarge


class Decision(dict[str, Any]):
    """How people decided: `{decision, by, at, comment, form, …}`. True when they approved."""

    def __bool__(self) -> bool:
        return bool(self.get("decision") == "approved")


def approval_spec(
    home: RunSpec,
    title: str,
    *,
    show: Any,
    approvers: Sequence[str],
    quorum: int,
    form: Mapping[str, Any] | None,
    timeout: Duration | None,
    reminders: Sequence[Duration],
) -> RunSpec:
    """Returns what the step is asked that waits for people; `home` is its workflow's."""
    if not isinstance(title, str) or not title.strip():
        raise InvalidOption(f"the title of an approval is what people are asked: a text, not {title!r}", option="title")
    if isinstance(approvers, str) or not all(isinstance(one, str) and one for one in approvers):
        raise InvalidOption(f"approvers takes a list of people and roles, not {approvers!r}", option="approvers")
    if not isinstance(quorum, int) or isinstance(quorum, bool) or quorum < 1:
        raise InvalidOption(f"quorum must be a whole number from 1 on, not {quorum!r}", option="quorum")
    problems = Problems()
    check_schema(None if form is None else dict(form), problems, ("form",))
    if problems.found:
        told = "; ".join(problem.message for problem in problems.found)
        raise InvalidOption(f"form is no JSON Schema that can be used: {told}", option="form")
    asked = {
        "title": title,
        "show": show,
        "approvers": list(approvers),
        "quorum": quorum,
        "form": None if form is None else dict(form),
        "timeout_ms": 0 if timeout is None else parse_duration_ms(timeout, what="timeout", allow_zero=False),
        "on_timeout": "fail",
        "reminders_ms": [parse_duration_ms(one, what="reminders") for one in reminders],
        "escalate_ms": 0,
        "escalate_to": [],
    }
    data = encode_plain(asked, what="what the approval asks for")
    if len(data) > MAX_ASKED:
        raise PayloadTooLarge(f"the approval shows {len(data)} bytes, at most {MAX_ASKED}: show where it is instead")
    return RunSpec(APPROVAL, queue=ROUTES, input=data, flow=call_mark(home.queue, home.priority))


def read_decision(data: bytes, timeout: Duration | None) -> Decision:
    """Returns how people decided. Raises TimeoutError when they did not in time."""
    decision = Decision(decode_plain(data))
    if decision["decision"] == "timed_out":
        assert timeout is not None
        told = format_duration(parse_duration_ms(timeout, what="timeout"))
        raise TimeoutError(f"nobody decided within {told}")
    return decision
