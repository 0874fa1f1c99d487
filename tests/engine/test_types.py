"""Values of every annotated type come back as that type, through a real worker."""

import enum
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Literal

import msgspec
import pydantic
import pytest


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: float
    labels: list[str] = field(default_factory=list)


class Line(msgspec.Struct):
    start: Point
    end: Point
    drawn: datetime | None = None


class Address(pydantic.BaseModel):
    street: str
    number: int = pydantic.Field(gt=0)


class Person(pydantic.BaseModel):
    id: uuid.UUID
    name: str
    born: date
    addresses: list[Address] = []
    balance: Decimal = Decimal(0)


PERSON = Person(
    id=uuid.UUID("0189f7e5-7c4b-7d1e-8a3b-2f6c5d4e3b2a"),
    name="Ann",
    born=date(1990, 2, 28),
    addresses=[Address(street="Elm", number=3)],
    balance=Decimal("12345678901234567890.123456789"),
)
BERLIN = timezone(timedelta(hours=2))

VALUES = [
    (int, 2**63 - 1),
    (int, -(2**63)),
    (float, 1e-300),
    (float, -0.0),
    (bool, True),
    (str, "ä €\x00\n🦦"),
    (bytes, bytes(range(256))),
    (None, None),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
    (datetime, datetime(2026, 7, 2, 3, 4, 5, tzinfo=BERLIN)),
    (date, date(2026, 2, 28)),
    (timedelta, timedelta(days=3, microseconds=1)),
    (uuid.UUID, uuid.UUID("0189f7e5-7c4b-7d1e-8a3b-2f6c5d4e3b2a")),
    (Decimal, Decimal("0.10")),
    (Decimal, Decimal("-1E+30")),
    (Colour, Colour.BLUE),
    (Literal["a", "b"], "b"),
    (list[int], [1, 2, 3]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[str], {"a", "b"}),
    (frozenset[int], frozenset({1, 2})),
    (dict[str, list[Decimal]], {"a": [Decimal("1.10")], "": []}),
    (dict[int, str], {1: "a"}),
    (int | None, None),
    (int | str, "5"),
    (Point, Point(1, 2.5, ["a"])),
    (list[Point], [Point(1, 2.0), Point(3, 4.0)]),
    (Line, Line(Point(1, 1.0), Point(2, 2.0), datetime(2026, 1, 1, tzinfo=UTC))),
    (Person, PERSON),
    (dict[str, Person], {"ann": PERSON}),
    (Person | None, None),
    (list, [1, "a", [None, {"b": b"c"}]]),
    (dict, {"a": [1, {"b": None}]}),
]


@pytest.mark.parametrize(("kind", "value"), VALUES)
async def test_a_value_comes_back_as_its_annotated_type(app, start_worker, kind, value):
    seen: list[object] = []

    async def echo(value):
        seen.append(value)
        return value

    echo.__annotations__ = {"value": kind, "return": kind}
    task = app.task(echo)
    await start_worker()

    back = await (await task.enqueue(value)).result(10)

    assert (type(seen[0]), seen[0]) == (type(value), value), "what the worker saw"
    assert (type(back), back) == (type(value), value), "what came back"


async def test_unannotated_parameters_take_plain_data(app, start_worker):
    @app.task
    async def echo(value):
        return value

    await start_worker()

    for value in (None, 1, 1.5, "a", b"\x00", [1, [2]], {"a": {"b": []}}, []):
        assert await (await echo.enqueue(value)).result(10) == value


async def test_star_arguments_travel_too(app, start_worker):
    @app.task
    async def gather(first: int, *rest: Decimal, flag: bool = False, **named: date) -> list[str]:
        return [str(first), *map(str, rest), str(flag), *(f"{k}={v}" for k, v in named.items())]

    await start_worker()
    run = await gather.enqueue(1, Decimal("2.0"), Decimal(3), flag=True, day=date(2026, 1, 1))

    assert await run.result(10) == ["1", "2.0", "3", "True", "day=2026-01-01"]


async def test_a_model_is_validated_before_it_is_enqueued(app, start_worker):
    from weft import InvalidArguments

    @app.task
    async def move(address: Address) -> Address:
        return address

    with pytest.raises(InvalidArguments, match=r"move\(address: Address\) -> Address"):
        await move.enqueue({"street": "Elm", "number": 3})
    with pytest.raises(InvalidArguments):
        await move.enqueue(Address.model_construct(street="Elm", number=-1))


async def test_a_result_found_by_id_alone_is_plain_data_and_typed_by_its_task(app, start_worker):
    @app.task
    async def when() -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    await start_worker()
    run = await when.enqueue()
    await run.result(10)

    assert await when.run(run.id).result(10) == datetime(2026, 1, 1, tzinfo=UTC)
    assert str(await app.runs.get(run.id).result(10)).startswith("2026-01-01")
