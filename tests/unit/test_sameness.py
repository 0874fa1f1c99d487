"""Calls that are equal are compared as equal, however their values were made, and by whichever process."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pydantic
import pytest

from weft import Weft
from weft.codec import TypeCodec
from weft.sameness import one_spelling

app = Weft("same")


@dataclass
class Point:
    x: float
    tags: set[str] = field(default_factory=set)


class Order(pydantic.BaseModel):
    id: int
    lines: set[str] = set()


@app.task
async def call(
    tags: set[Any] | None = None,
    counts: dict[str, int] | None = None,
    by_number: dict[int, str] | None = None,
    x: float = 0.5,
    point: Point | None = None,
    order: Order | None = None,
    plain: Any = None,
    **others: int,
) -> None: ...


def compared(*args: Any, **kwargs: Any) -> bytes:
    return call.signature.without_defaults(call.signature.encode(args, kwargs))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"tags": {0, 8}}, {"tags": {8, 0}}),
        ({"tags": {"a", 1, None, (2, "b")}}, {"tags": {(2, "b"), None, 1, "a"}}),
        ({"counts": {"a": 1, "b": 2}}, {"counts": {"b": 2, "a": 1}}),
        ({"by_number": {1: "a", 20: "b"}}, {"by_number": {20: "b", 1: "a"}}),
        ({"plain": [{"a": 1, "b": {"d": 1, "c": 2}}]}, {"plain": [{"b": {"c": 2, "d": 1}, "a": 1}]}),
        ({"x": 1}, {"x": 1.0}),
        ({"point": Point(1, {"a", "b", "c"})}, {"point": Point(1.0, {"c", "b", "a"})}),
        ({"order": Order(id=1, lines={"a", "b", "c"})}, {"order": Order(id=1, lines={"c", "b", "a"})}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"x": 0.5}, {}),
    ],
)
def test_equal_calls_are_equal_bytes(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert compared(**one) == compared(**other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"tags": {0, 8}}, {"tags": {0, 9}}),
        ({"tags": set()}, {}),
        ({"by_number": {1: "a"}}, {"by_number": {1: "b"}}),
        ({"plain": [1, 2]}, {"plain": [2, 1]}),
        ({"plain": 1}, {"plain": "1"}),
        ({"plain": {"a": None}}, {"plain": {}}),
        ({"x": 1}, {"x": 1.5}),
    ],
)
def test_other_calls_are_other_bytes(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert compared(**one) != compared(**other)


def test_a_mapping_is_never_spelled_as_a_list() -> None:
    mapping, pairs = TypeCodec(dict[int, str]), TypeCodec(list[tuple[int, str]])

    assert one_spelling(mapping, mapping.encode({2: "b", 1: "a"})) == one_spelling(
        mapping, mapping.encode({1: "a", 2: "b"})
    )
    assert one_spelling(mapping, mapping.encode({1: "a"})) != one_spelling(pairs, pairs.encode([(1, "a")]))


def test_processes_agree_about_sets() -> None:
    program = (
        "from weft import Weft\napp = Weft('x')\n@app.task\nasync def f(tags: set[str]) -> None: ...\n"
        "print(f.signature.without_defaults(f.signature.encode(({'alpha', 'beta', 'gamma', 'delta'},), {})).hex())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "1234"
    }
    assert len(told) == 1
