"""Functions with their fingerprints. A process of its own imports this and nothing of pytest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from typing import Any, Literal

import msgspec

from late.handler import signature
from late.handler.fingerprint import fingerprint


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(msgspec.Struct):
    """A line of an order."""

    title: str
    count: int = 1
    within: Item | None = None


@dataclasses.dataclass
class Order:
    id: int
    items: list[Item]
    at: datetime


def of(function: Callable[..., Any], label: str = "charge") -> str:
    return fingerprint(signature.read(function, label).shape)


def plain(order: int, currency: str = "EUR") -> None: ...


def rich(order: Order, colour: Colour, *, title: str | None = None, kind: Literal["a", "b"]) -> None: ...  # noqa: E501  # fmt: skip
