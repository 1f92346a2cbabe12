"""Types of state that tests of serializers share."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, IntEnum
from typing import Annotated, NamedTuple

from airflow_provider_statecheck.state.serializers.record_serializer import Aliases


class Colour(Enum):
    RED = "r"
    GREEN = "g"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    label: str | None = None


@dataclass
class Item:
    sku: str
    quantity: int
    price: float


@dataclass(frozen=True, slots=True)
class Frozen:
    sku: str
    at: Point


@dataclass
class Order:
    id: int
    items: list[Item]
    colour: Colour = Colour.RED
    note: str | None = None
    tags: dict[str, set[int]] = field(default_factory=dict)
    seen: datetime | None = None
    place: tuple[int, float] = (0, 0.0)


@dataclass
class WithLateField:
    base: int
    doubled: int = field(init=False)
    extra: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        self.doubled = self.base * 2


@dataclass
class Renamed:
    name: str = field(metadata={"aliases": ("title", "caption")})
    size: Annotated[int, Aliases("length")] = 0
