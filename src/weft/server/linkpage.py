"""The page of a link: what is asked, by whom it is decided, the form; and how it stands once it is decided."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from starlette.responses import Response

from weft.core.approvals import TIMEOUT, Approval
from weft.engine.links import Linked
from weft.server.answers import card, page
from weft.server.forms import LONG, Field, Filled
from weft.server.html import Html, Inside, element, join, keep, show

#: What a decision is called: to do it, and as it was done.
_VERBS = {"approve": "Approve", "reject": "Reject"}
_DONE = {"approved": "approved", "rejected": "rejected", "timed_out": "timed out", "cancelled": "cancelled"}
#: Kinds of input by the format of a text, where browsers help with it.
_INPUTS = {"date": "date", "email": "email"}
#: Names of values in a payload that stand in a table; more, and it is shown as JSON.
MAX_ROWS = 40


def ask(linked: Linked, fields: list[Field], filled: Filled, *, status: int = 200) -> Response:
    """Returns the page that asks: nothing is decided until its button is pressed."""
    link, approval = linked.link, linked.approval
    verb = _VERBS[link.decision]
    who = element("b", link.approver)
    lead = element("p", "You are about to ", element("b", link.decision), " this as ", who, ".", class_="lead")
    wrong = _wrong(filled)
    form = element(
        "form",
        element("input", type="hidden", name="confirm", value=linked.confirm),
        *(_field(one, filled, f"field-{n}") for n, one in enumerate(fields)),
        _comment(filled),
        element(
            "div",
            element("button", verb, type="submit", class_="no" if link.decision == "reject" else None),
            element("p", "Nothing happens until you press this. The link works once.", class_="quiet"),
            class_="act",
        ),
        method="post",
    )
    heading = _title(approval)
    return page(
        heading,
        card(
            heading,
            lead,
            wrong,
            _shown(approval),
            element("h2", "About this"),
            _facts(linked, asking=True),
            _votes(approval),
            element("h2", "Your decision"),
            form,
        ),
        status=status,
    )


def tell(linked: Linked) -> Response:
    """Returns the page that tells how it stands: this link was used, or somebody else came first."""
    approval = linked.approval
    heading = _title(approval)
    kind, words = _outcome(linked)
    return page(
        heading,
        card(
            heading,
            element("div", *(element("p", line) for line in words), class_=f"banner {kind}".strip(), role="status"),
            _shown(approval),
            element("h2", "About this"),
            _facts(linked, asking=False),
            _votes(approval),
        ),
    )


def _outcome(linked: Linked) -> tuple[str, list[Inside]]:
    """Returns how it stands, as whoever opens the link is told, and in which colour."""
    link, approval, vote = linked.link, linked.approval, linked.vote
    decision = approval.decision or {}
    lines: list[Inside] = []
    kind = ""
    if vote is not None:
        kind = "good" if vote["decision"] == "approved" else "bad"
        lines.append(
            join(
                element("b", f"{link.approver} has {vote['decision']} this"),
                " on ",
                _moment(vote["at"]),
                _comment_of(vote),
            )
        )
        if not linked.is_used:
            lines.append(f"This link was to {link.decision} it, and a person has one vote.")
    if approval.status == "pending":
        n = sum(one["decision"] == "approved" for one in approval.votes)
        lines.append(f"{n} of {approval.quorum} approvals are there; the others are still asked.")
    elif approval.status == "cancelled":
        lines.append("Nothing is decided any more: the run has ended.")
    elif vote is None or decision.get("by") != link.approver:
        who = (
            "when its time was over"
            if decision.get("by") == TIMEOUT
            else join("by ", element("b", decision.get("by", "")))
        )
        head = "This was decided already: " if vote is None else "In the end it was "
        lines.append(
            join(
                head,
                element("b", _DONE.get(approval.status, approval.status)),
                " ",
                who,
                " on ",
                _moment(decision.get("at", "")),
                _comment_of(decision),
            )
        )
        if vote is None:
            lines.append("It is decided once, so this link changes nothing any more.")
    else:
        lines.append(f"It is {_DONE.get(approval.status, approval.status)}. You can close this page.")
    return kind, lines


def _comment_of(said: dict[str, Any]) -> Html:
    return join(": “", said["comment"], "”") if said.get("comment") else Html(".")


def _title(approval: Approval) -> str:
    return approval.title.strip() or f"Approve {approval.step}?"


def _wrong(filled: Filled) -> Html | None:
    if filled.fits:
        return None
    told = [element("p", "Nothing was decided yet: " + ("; ".join(filled.general) or "some fields need another look."))]
    return element("div", *told, class_="banner bad", role="alert")


def _facts(linked: Linked, *, asking: bool) -> Html:
    link, approval = linked.link, linked.approval
    n = sum(one["decision"] == "approved" for one in approval.votes)
    pairs: list[tuple[str, Inside]] = [("You act as", link.approver), ("This link", f"{link.decision}s")]
    pairs += [
        ("Run", element("code", approval.run_id)),
        ("Node", element("code", approval.step)),
        ("Who decides", ", ".join(approval.approvers) or "anybody"),
        ("Quorum", f"{n} of {approval.quorum} {'approval' if approval.quorum == 1 else 'approvals'}{_rule(approval)}"),
        ("Asked", _moment(approval.opened_at)),
    ]
    if approval.due_at is not None and approval.status == "pending":
        pairs.append(("Decide by", _moment(approval.due_at)))
    if asking:
        pairs.append(("Link expires", _moment(linked.expires_at)))
    return element("dl", *(join(element("dt", name), element("dd", value)) for name, value in pairs))


def _rule(approval: Approval) -> str:
    return " so far; one rejection decides" if approval.status == "pending" else ""


def _votes(approval: Approval) -> Html | None:
    if not approval.votes:
        return None
    lines = [
        element(
            "li",
            element("b", vote["by"]),
            f" {vote['decision']} on ",
            _moment(vote["at"]),
            _comment_of(vote) if vote.get("comment") else None,
        )
        for vote in approval.votes
    ]
    return join(element("h2", "Votes so far" if approval.status == "pending" else "Votes"), element("ul", *lines))


def _shown(approval: Approval) -> Html | None:
    """Returns what is decided about: a table of values, a text, or JSON; all of it."""
    value = approval.show
    if value is None:
        return None
    heading = "What you decide about" if approval.status == "pending" else "What it was about"
    return join(element("h2", heading), element("div", _pretty(value), class_="shown"))


def _pretty(value: Any) -> Html:
    if isinstance(value, str):
        return element("p", value, class_="text")
    if isinstance(value, dict) and 0 < len(value) <= MAX_ROWS and all(isinstance(name, str) for name in value):
        return element("dl", *(join(element("dt", name), element("dd", _value(one))) for name, one in value.items()))
    return element("pre", _json(value))


def _value(value: Any) -> Html:
    if isinstance(value, (dict, list)) and value:
        return element("pre", _json(value))
    return show(value) if isinstance(value, str) else show(_json(value))


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _moment(value: datetime | str) -> Html:
    try:
        at = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except ValueError:
        return show(str(value))
    return element("time", f"{at.day} {at:%b %Y, %H:%M} UTC", datetime=at.isoformat())


# --- fields ---------------------------------------------------------------------------------------


def _field(one: Field, filled: Filled, id: str) -> Html:
    wrong, hint = filled.problems.get(one.key), one.schema.get("description")
    about = [f"{id}-{what}" for what, there in (("hint", hint), ("wrong", wrong)) if there]
    common: dict[str, Any] = {
        "id": id,
        "name": one.key,
        "aria_describedby": " ".join(about) or None,
        "aria_invalid": "true" if wrong else None,
        "autofocus": one.key == next(iter(filled.problems), None),
    }
    control = _control(one, filled.texts.get(one.key, ""), common)
    optional = None if one.required or one.is_check else element("span", " (optional)", class_="optional")
    label = element("label", one.label, optional, for_=id)
    return element(
        "div",
        element("div", control, label, class_="check") if one.is_check else join(label, control),
        element("p", str(hint), class_="hint", id=f"{id}-hint") if hint else None,
        element("p", wrong, class_="wrong", id=f"{id}-wrong") if wrong else None,
        class_="field bad" if wrong else "field",
    )


def _control(one: Field, text: str, common: dict[str, Any]) -> Html:
    if one.kind == "choice":
        named = [(str(i), "nothing" if choice is None else str(choice)) for i, choice in enumerate(one.schema["enum"])]
        return _select(named, text, common)
    if one.kind == "boolean" and not one.is_check:
        return _select([("yes", "yes"), ("no", "no")], text, common)
    if one.is_check:
        return element("input", type="checkbox", value="yes", checked=bool(text), **common)
    if one.kind == "json":
        return _area(text, common | {"class_": "json", "spellcheck": "false"})
    if one.kind == "string":
        if "\n" in text or len(text) > LONG or one.schema.get("maxLength", 0) > LONG:
            return _area(text, common | {"required": one.required})
        kind = _INPUTS.get(str(one.schema.get("format")), "text")
        return element("input", type=kind, value=text, required=one.required, **common)
    mode = "numeric" if one.kind == "integer" else "decimal"
    return element("input", type="text", inputmode=mode, value=text, required=one.required, **common)


def _select(choices: list[tuple[str, str]], text: str, common: dict[str, Any]) -> Html:
    # Nobody is to send what they did not choose.
    rows = [element("option", "choose …", value="", selected=not text)]
    rows += [element("option", words, value=key, selected=key == text) for key, words in choices]
    return element("select", *rows, **common)


def _area(text: str, common: dict[str, Any]) -> Html:
    # Browsers drop a line that ends right behind the tag: this one is theirs to drop.
    return element("textarea", Html("\n"), keep(text), **common)


def _comment(filled: Filled) -> Html:
    wrong = filled.problems.get("comment")
    return element(
        "div",
        element("label", "Comment", element("span", " (optional)", class_="optional"), for_="comment"),
        _area(filled.comment, {"id": "comment", "name": "comment", "maxlength": "4000"}),
        element("p", wrong, class_="wrong") if wrong else None,
        class_="field bad" if wrong else "field",
    )
