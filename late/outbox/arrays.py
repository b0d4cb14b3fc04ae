"""Arrays in PostgreSQL's binary form, a column at a time.

psycopg writes an array item by item, in Python, which is a third of what the statement of a bulk
costs its producer; and an array of text where ids are meant, which the server takes apart again.
Here each step is one call for the whole column.

Source: `array_recv`, `uuid_recv` and their like in PostgreSQL; psycopg's `types/array.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

_HEAD = struct.Struct("!5I").pack
"""Dimensions, whether there are NULLs, the items' type; items, the number of the first."""
_SIZE = struct.Struct("!I").pack
_SMALLINT = struct.Struct("!Ih").pack


class Packed:
    """One array without NULLs, ready to be sent."""

    __slots__ = ("data", "oid")

    def __init__(self, oid: int, data: bytes) -> None:
        self.oid = oid
        """Of the array's type."""
        self.data = data


def pack(kind: str, values: Sequence[Any]) -> Packed:
    """`values` as an array of `kind`: `smallint` from ints, `uuid` from canonical text, `bytea`."""
    oid, item_oid, body = _KINDS[kind]
    return Packed(oid, _HEAD(1, 0, item_oid, len(values), 1) + body(values))


def _smallints(values: Sequence[int]) -> bytes:
    items = {value: _SMALLINT(2, value) for value in set(values)}
    return b"".join([items[value] for value in values])


def _uuids(values: Sequence[str]) -> bytes:
    return bytes.fromhex("00000010".join(("", *values)).replace("-", ""))


def _byteas(values: Sequence[bytes]) -> bytes:
    sizes = list(map(len, values))
    marks = {size: _SIZE(size) for size in set(sizes)}
    pairs: Iterable[tuple[bytes, bytes]] = zip(map(marks.__getitem__, sizes), values, strict=True)
    return b"".join(chain.from_iterable(pairs))


_KINDS: dict[str, tuple[int, int, Callable[[Any], bytes]]] = {
    "smallint": (1005, 21, _smallints),
    "uuid": (2951, 2950, _uuids),
    "bytea": (1001, 17, _byteas),
}
"""Oids of the array and of its items, which are the same on every server."""
