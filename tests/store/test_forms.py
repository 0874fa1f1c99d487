"""Forms: a call that was packed once says the same as one that is packed anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weft.core.model import SPEC_ENCODER, Outcome, RunSpec, Token
from weft.ids import new_run_id
from weft.store import runs, steps
from weft.store.forms import MAX_FORMS, Form, Forms
from weft.store.namespace import Namespace
from weft.store.runs import NewRun, start_call, start_runs
from weft.store.scripts import Script, load
from weft.store.steps import commit_steps


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Any]]]:
    """Takes what would be sent to the server."""
    calls: list[tuple[str, list[Any]]] = []

    async def send(ns: Namespace, script: Script, pack: Callable[[], list[Any]], **_: object) -> list[bytes]:
        calls.append((script.name, pack()))
        return [b"ok"]

    monkeypatch.setattr(Namespace, "send", send)
    return calls


async def test_a_bare_run_is_started_by_a_form_that_says_the_same(ns, p, sent):
    for queue, priority in (("default", 5), ("mail", 9), ("default", 5)):
        spec = RunSpec("job", input=b"\x01", queue=queue, priority=priority)
        run = NewRun(new_run_id(p), spec, SPEC_ENCODER.encode(spec))
        assert run.is_bare
        await start_runs(ns, p, [run], by="c-1", watch="a channel")
        keys, items = start_call(ns, p, [run])
        anew = ns.pack(load("start_runs"), p, keys, runs.start_args(ns, p, "c-1", "a channel"), items)
        assert sent.pop() == ("start_runs", anew)
    assert len(ns.forms) == 2


async def test_a_bare_outcome_is_committed_by_a_form_that_says_the_same(ns, p, sent):
    for number in (1, 2):
        token = Token(p, 1, new_run_id(p), f"{number}-0", 1, 1, RunSpec("job"), 7)
        outcome = Outcome(token, "completed", b"value %d" % number, 1_000, number)
        await commit_steps(ns, p, [outcome], session="s-1")
        anew = ns.pack(load("commit_steps"), p, *steps._commit(ns, p, [outcome], "s-1", ()))
        assert sent.pop() == ("commit_steps", anew)
    assert len(ns.forms) == 1


async def test_another_epoch_or_other_controls_make_another_form(ns, p, sent):
    spec = RunSpec("job")
    run = NewRun(new_run_id(p), spec, SPEC_ENCODER.encode(spec))
    await start_runs(ns, p, [run], by="c-1")
    ns.epochs[p] = "17"
    await start_runs(ns, p, [run], by="c-1")
    (_, before), (_, after) = sent
    (changed,) = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert after[changed] == "17"


@pytest.mark.parametrize(
    "facts",
    [{"delay_ms": 1}, {"due_ms": 1}, {"deadline_ms": 1}, {"blob": "b"}, {"fair": "k"}],
    ids=lambda facts: next(iter(facts)),
)
def test_a_run_that_asks_for_more_is_not_bare(facts):
    assert not NewRun("r0-1", RunSpec("job", **facts), b"").is_bare


@pytest.mark.parametrize("facts", [{"key_digest": "k"}, {"policy": "j"}], ids=lambda facts: next(iter(facts)))
def test_a_call_that_may_be_one_with_others_is_not_bare(facts):
    assert not NewRun("r0-1", RunSpec("job"), b"", **facts).is_bare


def test_forms_are_made_once_and_never_many():
    forms, made = Forms(), []
    for n in (*range(MAX_FORMS), 0, 1):
        forms.of(n, lambda n=n: made.append(n) or Form(["a", n], ["a"]))
    assert made == list(range(MAX_FORMS))
    assert forms.of(3, lambda: None).fill("b") == ["b", 3]
    forms.of("more", lambda: Form([], []))
    assert len(forms) == 1
