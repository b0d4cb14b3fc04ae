"""One page of the log as one row of a result.

The driver takes the interpreter's lock back after each row, and a busy event loop lets it wait for
it: row by row, reading and running tasks take turns on one processor however many there are. As
one row, SQLite puts a page together without the lock, and Python takes it apart in a few calls for
all of it. Columns are lists in JSON; payloads may be any bytes, so they are joined as they are,
with their lengths beside.

What JSON cannot hold (a text that is not UTF-8, a name that is a blob: only a raw INSERT can have
written it), what does not add up, and a page of very large payloads, which would be in memory
three times, are read row by row: None says so.
"""

from __future__ import annotations

import sqlite3
from itertools import accumulate, pairwise, repeat
from typing import NamedTuple

import msgspec

from late.model.task import Record, ShardId
from late.store.sqlite import statements as sql

BYTES_MAX = 16 * 1024 * 1024
"""Of a page that is read so; a tailer that knows the size of payloads asks for half of it."""
READ = (
    f"select ({sql.NOW}), (select data_version from pragma_data_version),"
    " cast(json_array(json_group_array(seq), json_group_array(task_id),"
    " json_group_array(queue), json_group_array(name), json_group_array(length(payload)),"
    " json_group_array(headers), json_group_array(options), json_group_array(created_at_us))"
    " as blob), cast(group_concat(payload, '') as blob)"
    " from (select seq, task_id, queue, name, cast(payload as blob) as payload, headers, options,"
    " created_at_us from late_task where shard_id = ? and seq > ? order by seq limit ?)"
)

_columns = msgspec.json.Decoder(
    tuple[
        list[int], list[str], list[str], list[str], list[int],
        list[str | None], list[str | None], list[int],
    ]
)  # fmt: skip


class DecodedPage(NamedTuple):
    """A page, and what was true in the moment of its snapshot."""

    now_us: int
    version: int
    """`data_version`: it moves when another connection commits."""
    records: list[Record]


def read(
    connection: sqlite3.Connection, shard_id: ShardId, after: int, limit: int
) -> DecodedPage | None:
    """Up to `limit` records above position `after`, ascending; None: they have to be read row by
    row."""
    most = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, BYTES_MAX)
    try:
        found = connection.execute(READ, (shard_id, after, limit)).fetchone()
    except (sqlite3.OperationalError, sqlite3.DataError):
        return None  # a locked or broken file says so again
    finally:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most)
    now_us, version, columns, joined = found
    page = records(shard_id, columns, joined or b"")
    return None if page is None else DecodedPage(now_us, version, page)


def records(shard_id: ShardId, columns: bytes, joined: bytes) -> list[Record] | None:
    """The records of the columns of `READ`."""
    try:
        seqs, ids, queues, names, lengths, headers, options, created = _columns.decode(columns)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    # SQLite promises no order of what it joins; in one row all columns have the same.
    if sum(lengths) != len(joined) or seqs != sorted(seqs):
        return None
    queues, names = _shared(queues), _shared(names)
    payloads = [joined[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
    return list(
        map(
            Record, repeat(shard_id), seqs, ids, queues, names, payloads, headers, options, created,
            seqs,
        )
    )  # fmt: skip


def _shared(column: list[str]) -> list[str]:
    """The same column; where all values are equal they are one object, whose hash is then known to
    all that look it up: a thirtieth of what a plain task takes in the event loop."""
    if column and column.count(column[0]) == len(column):
        return [column[0]] * len(column)
    return column
