"""What a settlement sends to PostgreSQL, in what order and how much at once; and what the tail
asks for until a page is on disk."""

from __future__ import annotations

import base64
import time
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from late.model.task import Cursor, DeadLetter, Epoch, ShardId
from late.store.base import Page, Result, Settlement
from late.store.postgres import statements as sql
from late.store.postgres.cursor import parse
from late.store.postgres.journal import ROWS_MAX, statements_of
from late.store.postgres.tail import (
    ADVANCE_S,
    PostgresTail,
    TailFrame,
    _caught_up,
    _flushed,
)
from late.store.postgres.timeline import Timeline
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


def test_dead_letters_and_results_are_written_in_parts() -> None:
    of = record(payload=b"\x00\xff", headers='{"a":"\\u0000"}')
    letters = tuple(DeadLetter(of, "failed", 3, 1) for _ in range(ROWS_MAX + 1))
    results = tuple(Result(of.task_id, b"\xfe\x00", n) for n in range(ROWS_MAX + 2))
    settlement = Settlement(
        "id", "g", ShardId(7), 2, Epoch(1), "me", Cursor(""), (), dead=letters, results=results
    )

    sent = [(statement, values[0]) for statement, values in statements_of([settlement])][1:]

    assert [statement for statement, _ in sent] == [sql.BURY] * 2 + [sql.RESULT] * 2
    parts = [msgspec.json.decode(text) for _, text in sent]
    assert [len(part) for part in parts] == [ROWS_MAX, 1, ROWS_MAX, 2]
    [letter], result = parts[1], parts[3][1]
    assert (letter["shard_id"], letter["reason"], letter["attempts"], letter["deaths"]) == (
        7, "failed", 3, 1,
    )  # fmt: skip
    assert base64.b64decode(letter["payload"]) == of.payload
    assert letter["headers"] == of.headers
    assert (base64.b64decode(result["value"]), result["ttl_us"]) == (b"\xfe\x00", ROWS_MAX + 1)


class Answering:
    """A connection on which each statement has one row of one column."""

    def __init__(self, *answers: bool) -> None:
        self.sent: list[tuple[str, object]] = []
        self._answers = iter(answers)

    async def execute(self, statement: str, values: object) -> Answering:
        self.sent.append((statement, values))
        return self

    async def fetchone(self) -> tuple[bool]:
        return (next(self._answers),)


@pytest.mark.parametrize("answers", [[True], [False, True], [False, False, True]])
async def test_what_is_not_on_disk_is_flushed_at_once_and_handed_out_once_it_is(
    answers: list[bool],
) -> None:
    """One statement as a rule; nothing is believed to be on disk that the server did not say is."""
    connection: Any = Answering(*answers)

    await _flushed(connection, "0/10")

    asked = [sql.FLUSH] + [sql.FLUSHED] * (len(answers) - 1)
    assert connection.sent == [(statement, ("0/10",)) for statement in asked]


@pytest.mark.parametrize("records", [0, 1])
@pytest.mark.parametrize("since_s", [0.0, 2 * ADVANCE_S])
async def test_an_empty_page_is_left_out_rather_than_flushed_but_now_and_then(
    records: int, since_s: float
) -> None:
    connection: Any = Answering(True)
    tail = PostgresTail(durable=True, timeline=Timeline(), guard=AsyncMock())
    tail._advanced_at = time.monotonic() - since_s if since_s else time.monotonic() + 3_600
    pages = [Page(ShardId(0), [record(0)] * records, Cursor(""), "", False, 0)]

    frame = TailFrame("9:9:", "0/10", durable=False, timeline="00000001", now_us=0)
    found = await tail._durable_pages(connection, pages, frame, waits=True)

    flushed = records > 0 or since_s > 0
    assert (found == pages, bool(connection.sent)) == (flushed, flushed)


@pytest.mark.parametrize(
    ("cursors", "caught_up"),
    [
        (["9:9:", "9:9:"], True),
        (["9:9:", "8:8:"], False),
        (["9:9:", f"9:9:|12:12:@10,{record(1).task_id}"], False),
        ([f"9:9:|12:12:@10,{record(1).task_id}"], False),
    ],
)
def test_shards_have_caught_up_at_the_end_of_one_snapshot(
    cursors: list[str], caught_up: bool
) -> None:
    windows = {("g", shard): parse(Cursor(text)) for shard, text in enumerate(cursors)}
    assert _caught_up(windows) is caught_up  # type: ignore[arg-type]
