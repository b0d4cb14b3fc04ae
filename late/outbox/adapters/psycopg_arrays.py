"""Arrays in PostgreSQL's binary form, made one column at a time.

psycopg writes an array item by item in Python, which was half of the producer's cost of a bulk
statement. It also sends ids as an array of text, which the server has to parse. Here each step is
for the whole column, or takes one operation per item.

Source: `array_recv`, `uuid_recv` and similar functions in PostgreSQL; psycopg's `types/array.py`.
"""

from __future__ import annotations

import struct
from binascii import unhexlify
from collections.abc import Callable, Sequence
from typing import Any

_HEAD = struct.Struct("!5I").pack
"""The number of dimensions, a flag for NULLs, the items' type, the number of items, and the index
of the first item."""
_SIZE = struct.Struct("!I").pack
_SMALLINT = struct.Struct("!Ih").pack


class Packed:
    """One array without NULLs, in the form in which it is sent."""

    __slots__ = ("data", "oid")

    def __init__(self, oid: int, data: bytes) -> None:
        self.oid = oid
        """The oid of the array's type."""
        self.data = data


def pack(kind: str, values: Sequence[Any]) -> Packed:
    """Make an array of `kind`: `smallint` from ints, `uuid` from canonical text, `bytea`."""
    oid, item_oid, body = _KINDS[kind]
    # The parts are joined once, because payloads may be large.
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
"""The oids of the array and of its items, which are the same on every server."""
