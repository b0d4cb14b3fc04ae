"""The part of an answer that says which past moment it is about, and what is not known of it."""

from __future__ import annotations

from typing import Literal

import msgspec


class NotKnown(msgspec.Struct, frozen=True):
    """A part of an answer about the past that nothing tells any more, so it is left out."""

    field: str
    """Its path in the answer, such as `queues.parked`."""
    why: str


class AsOf(msgspec.Struct, frozen=True):
    """The moment of an answer about the past."""

    at_us: int
    source: Literal["journal", "versions"]
    """`journal`: worked out from the settlements since. `versions`: the database has kept what its
    tables held then."""
    not_known: tuple[NotKnown, ...] = ()
    """The parts that are left out. In Python a count of them says at least 0, and others None."""
