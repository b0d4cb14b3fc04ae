"""Arrays in PostgreSQL's binary form, a column at a time.

psycopg writes an array item by item, in Python, which was half of what the statement of a bulk cost
its producer; and ids as an array of text, which the server took apart again. Here a step is for the
whole column, or one operation for an item.

Source: `array_recv`, `uuid_recv` and their like in PostgreSQL; psycopg's `types/array.py`.
"""

from __future__ import annotations

import struct
from binascii import unhexlify
from collections.abc import Callable, Sequence
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
        """The oid of the array's type."""
        self.data = data


def pack(kind: str, values: Sequence[Any]) -> Packed:
    """`values` as an array of `kind`: `smallint` from ints, `uuid` from canonical text, `bytea`."""
    oid, item_oid, body = _KINDS[kind]
    # Joined once: payloads are what is large here.
    return Packed(oid, b"".join([_HEAD(1, 0, item_oid, len(values), 1), *body(values)]))


def _smallints(values: Sequence[int]) -> list[bytes]:
    items = {value: _SMALLINT(2, value) for value in set(values)}
    return [items[value] for value in values]


def _uuids(values: Sequence[str]) -> list[bytes]:
    return [unhexlify("00000010".join(("", *values)).encode().translate(None, b"-"))]


def _byteas(values: Sequence[bytes]) -> list[bytes]:
    sizes = {size: _SIZE(size) for size in set(map(len, values))}
    return [sizes[len(value)] + value for value in values]


_KINDS: dict[str, tuple[int, int, Callable[[Any], list[bytes]]]] = {
    "smallint": (1005, 21, _smallints),
    "uuid": (2951, 2950, _uuids),
    "bytea": (1001, 17, _byteas),
}
"""Oids of the array and of its items, which are the same on every server."""
