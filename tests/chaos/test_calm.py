"""Without any fault: a calm fleet keeps every promise, and the checker notices each one that is broken by hand."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator

import msgspec
import pytest

from chaos.checker import Limits, State, await_rest, broken_promises, check, check_new_work, read_state
from chaos.fleet import Fleet
from weft.core.model import Value
from weft.store.keys import GROUP
from weft.store.log import RawEvent


@pytest.fixture(scope="module")
def calm() -> Iterator[Fleet]:
    with Fleet() as fleet:
        fleet.start_workers(2)
        fleet.note_baseline()
        fleet.producer(n=60, seed=1).finish()
        fleet.start_many("narrow", [(n, 1) for n in range(5)])
        check_new_work(fleet)
        await_rest(fleet)
        yield fleet


def test_a_calm_fleet_keeps_every_promise(calm: Fleet) -> None:
    state = check(calm, Limits(crashes=0))
    assert len(state.runs) > 60


def a_run(state: State, task: str = "effect") -> str:
    return next(run for run, row in state.runs.items() if row.spec.name == task)


def forget_a_run(fleet: Fleet, state: State) -> None:
    del state.runs[fleet.acked()[0]]


def end_a_run_twice(fleet: Fleet, state: State) -> None:
    events = state.events[a_run(state)]
    events.append(dataclasses.replace(events[-1], seq=events[-1].seq + 1))


def reopen_a_run(fleet: Fleet, state: State) -> None:
    state.runs[a_run(state)].fields["open"] = b"1:5-0"


def change_a_result(fleet: Fleet, state: State) -> None:
    state.runs[a_run(state)].fields["result"] = msgspec.msgpack.encode(Value(msgspec.msgpack.encode(-5)))


def forget_an_effect(fleet: Fleet, state: State) -> None:
    state.effects[a_run(state)].clear()


def execute_twice(fleet: Fleet, state: State) -> None:
    rows = state.effects[a_run(state)]
    rows.append(rows[0])


def execute_without_a_reason(fleet: Fleet, state: State) -> None:
    rows = state.effects[a_run(state)]
    rows.append(dataclasses.replace(rows[0], delivery=2, fence=rows[0].fence + 1))


def lose_an_event(fleet: Fleet, state: State) -> None:
    state.events[a_run(state, "flaky")].pop(1)


def repeat_an_event(fleet: Fleet, state: State) -> None:
    events = state.events[a_run(state, "flaky")]
    events.insert(1, events[1])


def contradict_the_events(fleet: Fleet, state: State) -> None:
    state.runs[a_run(state, "flaky")].fields["attempt"] = b"9"


def begin_early(fleet: Fleet, state: State) -> None:
    run = next(run for run, row in state.runs.items() if row.spec.delay_ms)
    end: RawEvent = state.events[run][-1]
    state.events[run][-1] = dataclasses.replace(end, facts={**end.facts, "started": str(state.events[run][0].at_ms)})


def count_a_death(fleet: Fleet, state: State) -> None:
    end = state.events[a_run(state)][-1]
    state.events[a_run(state)][-1] = dataclasses.replace(
        end, facts={**end.facts, "session": "s-somebody", "crashes": "1"}
    )


def crowd_a_gate(fleet: Fleet, state: State) -> None:
    for run in [run for run, row in state.runs.items() if row.spec.name == "narrow"][:4]:
        state.effects[run] = [
            dataclasses.replace(row, at=1.0 if row.phase == "before" else 2.0) for row in state.effects[run]
        ]


def use_a_key_twice(fleet: Fleet, state: State) -> None:
    with fleet.producers[0].ledger.open("a") as ledger:
        ledger.write(json.dumps({"ack": 999, "runs": [fleet.acked()[0]], "key": "key-1"}) + "\n")


IN_MEMORY: list[tuple[str, Callable[[Fleet, State], None]]] = [
    ("I1", forget_a_run),
    ("I1", end_a_run_twice),
    ("I1", reopen_a_run),
    ("I2", change_a_result),
    ("I3", forget_an_effect),
    ("I3", execute_twice),
    ("I3", execute_without_a_reason),
    ("I4", lose_an_event),
    ("I4", repeat_an_event),
    ("I4", contradict_the_events),
    ("I10", begin_early),
    ("I3", count_a_death),
    ("I5", crowd_a_gate),
    ("I14", use_a_key_twice),
]


@pytest.mark.parametrize(("name", "harm"), IN_MEMORY, ids=lambda value: getattr(value, "__name__", value))
def test_the_checker_notices_what_was_read_wrong(calm: Fleet, name: str, harm: Callable[[Fleet, State], None]) -> None:
    state, ledger = read_state(calm), calm.producers[0].ledger.read_bytes()
    harm(calm, state)
    try:
        assert name in {problem.split(" ", 1)[0] for problem in broken_promises(calm, state, Limits(crashes=0))}
    finally:
        calm.producers[0].ledger.write_bytes(ledger)


def test_the_checker_notices_what_is_left_in_the_store(calm: Fleet) -> None:
    client, keys = calm.server.client, calm.keys
    stream = keys.tasks(0, "default", 5)
    harms: list[tuple[str, tuple[object, ...], tuple[object, ...]]] = [
        ("I5", ("ZADD", keys.timers(0), 4102444800000, "open:r0-x"), ("ZREM", keys.timers(0), "open:r0-x")),
        ("I5", ("ZADD", keys.repair(0), 1, "r0-x"), ("DEL", keys.repair(0))),
        ("I5", ("ZADD", keys.gate(0, "task|narrow"), 1, "r0-x"), ("DEL", keys.gate(0, "task|narrow"))),
        ("I5", ("ZADD", keys.line(0, "task|narrow"), 1, "r0-x"), ("DEL", keys.line(0, "task|narrow"))),
        ("I6", ("SET", "somebody", "else"), ("DEL", "somebody")),
        ("I6", ("SET", keys.lock(0, "forever"), "x"), ("DEL", keys.lock(0, "forever"))),
        ("I6", ("SADD", keys.prefix(0) + "unheard:of", "x"), ("DEL", keys.prefix(0) + "unheard:of")),
        (
            "I7",
            ("XGROUP", "CREATECONSUMER", stream, GROUP, "s-dead"),
            ("XGROUP", "DELCONSUMER", stream, GROUP, "s-dead"),
        ),
    ]
    for name, harm, mend in harms:
        client.execute_command(*harm)
        found = broken_promises(calm, read_state(calm), Limits())
        client.execute_command(*mend)
        # The audit is another pair of eyes: it may see the same.
        assert {problem.split(" ", 1)[0] for problem in found} - {"audit"} == {name}, found
    assert not broken_promises(calm, read_state(calm), Limits())
