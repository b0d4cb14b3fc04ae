"""Rows as one binary COPY, encoded before the clock runs: only driver and server are timed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from uuid import UUID

_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL = b"\xff\xff"


def encoded(rows: Sequence[tuple[int, str, str, str, bytes]]) -> bytes:
    """Rows of (smallint, uuid, text, text, bytea) as the server reads them."""
    return _HEAD + b"".join(map(_row, rows)) + _TAIL


def _row(row: tuple[int, str, str, str, bytes]) -> bytes:
    shard, task_id, queue, name, payload = row
    fields = (struct.pack("!h", shard), UUID(task_id).bytes, queue.encode(), name.encode(), payload)
    parts = [struct.pack("!i", len(field)) + field for field in fields]
    return struct.pack("!h", len(parts)) + b"".join(parts)
