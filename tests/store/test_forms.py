"""Forms: a call that was packed once says the same as one that is packed anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weft.core.model import SPEC_ENCODER, Outcome, RunSpec, Token
from weft.ids import new_run_id
from weft.store.forms import MAX_FORMS, Form, Forms
from weft.store.keys import GROUP
from weft.store.namespace import Namespace
from weft.store.runs import NewRun, start_runs
from weft.store.scripts import Script, load
from weft.store.steps import commit_steps


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Any]]]:
    """Takes what would be sent to the server."""
    calls: list[tuple[str, list[Any]]] = []

    async def send(ns: Namespace, script: Script, pack: Callable[[], list[Any]], **_: object) -> bytes:
        calls.append((script.name, pack()))
        return b"ok"

    monkeypatch.setattr(Namespace, "send", send)
    return calls


async def test_a_bare_run_is_started_by_a_form_that_says_the_same(ns, p, sent):
    for queue, priority in (("default", 5), ("mail", 9), ("default", 5)):
        spec = RunSpec("job", input=b"\x01", queue=queue, priority=priority)
        run = NewRun(new_run_id(p), spec, SPEC_ENCODER.encode(spec))
        assert run.is_bare
        await start_runs(ns, p, [run], by="c-1", watch="a channel")
        keys = {
            "log": ns.keys.log(p),
            "queues": ns.keys.queues(p),
            "wake": ns.keys.wake(p, queue),
            "wf.tasks": ns.keys.tasks(p, queue, priority),
            "run": ns.keys.run(p, run.id),
        }
        about = {"controls": ns.controls[p].version, "by": "c-1", "queue": queue}
        args = {**about, "watch": "a channel", "run": run.id, "spec": run.packed}
        assert sent.pop() == ("start_run", ns.pack(load("start_run"), p, keys, args, ()))
    assert len(ns.forms) == 2


async def test_a_bare_outcome_is_committed_by_a_form_that_says_the_same(ns, p, sent):
    for number in (1, 2):
        token = Token(p, 1, new_run_id(p), f"{number}-0", 1, 1, RunSpec("job"), 7)
        outcome = Outcome(token, "completed", b"value %d" % number, 1_000, number)
        await commit_steps(ns, p, [outcome], session="s-1")
        keys = {"log": ns.keys.log(p), "wf.tasks": ns.keys.tasks(p, "default", 5), "run": ns.keys.run(p, token.run)}
        ends = {"keep_ms": 1_000, "started_ms": number, "value": outcome.value}
        args = {"by": "s-1", "group": GROUP, "run": token.run, "ledger": token.ledger, "token": token.entry, **ends}
        assert sent.pop() == ("commit_step", ns.pack(load("commit_step"), p, keys, args, ()))
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
