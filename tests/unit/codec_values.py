"""Types of every kind that an annotation may name, and values of them, for the tests of the codec."""

import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import pathlib
import uuid
import zoneinfo
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic

from weft.codec import TypeCodec

NAN, INF = float("nan"), float("inf")
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Circle(Point):
    radius: float = 1.0


@dataclasses.dataclass
class Basket:
    items: list[Point]
    at: dt.datetime
    next: "Basket | None" = None


@dataclasses.dataclass(eq=False)
class Identical:
    x: int


@dataclasses.dataclass
class Mount:
    path: pathlib.Path


class Leaf(msgspec.Struct):
    name: str
    weight: decimal.Decimal = decimal.Decimal("1.50")


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    lives: int


class Order(pydantic.BaseModel):
    id: int
    when: dt.datetime | None = None
    tags: set[str] = set()


class RushOrder(Order):
    courier: str = "x"


class Refund(pydantic.BaseModel):
    amount: decimal.Decimal


class Invoice(pydantic.BaseModel):
    id: int


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, frozen=True, extra="forbid")
    key: uuid.UUID = pydantic.Field(alias="theKey")
    path: pathlib.Path
    address: ipaddress.IPv4Address
    blob: bytes
    names: dict[int, str]
    either: int | str
    _seen: int = pydantic.PrivateAttr(default_factory=lambda: id(object()))

    @pydantic.computed_field
    def doubled(self) -> int:
        return 2


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Hiding(pydantic.BaseModel):
    hidden: int = pydantic.Field(1, exclude=True)


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


@pydantic.dataclasses.dataclass
class Checked:
    n: int = pydantic.Field(ge=1)


class Colour(enum.Enum):
    RED = "r"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    HI = "hi"


class Pair(NamedTuple):
    a: int
    b: str


class Row(TypedDict):
    a: int


class Unknown:
    pass


def trip(annotation: Any, value: Any) -> Any:
    codec = TypeCodec(annotation)
    return codec.decode(codec.encode(value))
