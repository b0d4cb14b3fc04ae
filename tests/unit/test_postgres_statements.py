"""What a settlement sends to PostgreSQL: in what order, and how much at once."""

from __future__ import annotations

import base64

import msgspec

from late.store import postgres_sql as sql
from late.store.base import Settlement
from late.store.postgres_journal import ROWS_MAX, statements_of
from late.task import Cursor, Epoch, ShardId
from tests.conformance.kit import parked, record


def test_parked_tasks_are_written_in_parts_after_the_old_ones_are_gone() -> None:
    rows = [parked(n, of=record(payload=b"\x00\xff")) for n in range(2 * ROWS_MAX + 1)]
    keys = tuple((row.due_at_us, row.record.task_id) for row in rows)
    settlement = Settlement(
        "id", "g", ShardId(0), 2, Epoch(1), "me", Cursor(""), (), unparked=keys, parked=tuple(rows)
    )

    sent = [(statement, values[0]) for statement, values in statements_of([settlement])]

    assert [statement for statement, _ in sent] == [sql.SETTLE, *[sql.UNPARK] * 3, *[sql.PARK] * 3]
    parts = [msgspec.json.decode(text) for _, text in sent[1:]]
    assert [len(part) for part in parts] == [ROWS_MAX, ROWS_MAX, 1] * 2
    written = [row for part in parts[3:] for row in part]
    assert [(row["due_at_us"], row["task_id"]) for row in written] == list(keys)
    assert {base64.b64decode(row["payload"]) for row in written} == {b"\x00\xff"}
