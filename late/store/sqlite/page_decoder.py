"""One page of the log as one row of a result.

The driver takes the interpreter's lock again after each row, and waits for it while the event loop
is busy: row by row, reading and running tasks share one processor, however many there are. As one
row, SQLite builds a page without the lock, and Python decodes it in a few calls. Columns are lists
in JSON; payloads may be any bytes, so they are joined unchanged, with their lengths in a column.

Three kinds of pages are read row by row, and `read` returns None for them: with values that JSON
cannot hold (a text that is not UTF-8, a name that is a blob: only a raw INSERT can have written
it), with lengths that do not add up, and with very large payloads, which would be in memory three
times.
"""

from __future__ import annotations

import sqlite3
from itertools import accumulate, pairwise, repeat
from typing import NamedTuple

import msgspec

from late.model.task import Record, ShardId
from late.store.sqlite import statements as sql

BYTES_MAX = 16 * 1024 * 1024
"""The largest page that is read this way; a tailer that knows the size of payloads asks for half
of it."""
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
    """A page, and the clock and version of its snapshot."""

    now_us: int
    version: int
    """`data_version`: it moves when another connection commits."""
    records: list[Record]


def read(
    connection: sqlite3.Connection, shard_id: ShardId, after: int, limit: int
) -> DecodedPage | None:
    """Read up to `limit` records above position `after`, ascending; None: read them row by row."""
    most = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, BYTES_MAX)
    try:
        found = connection.execute(READ, (shard_id, after, limit)).fetchone()
    except (sqlite3.OperationalError, sqlite3.DataError):
        return None  # the reading by row meets a locked or broken file again, and reports it
    finally:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most)
    now_us, version, columns, joined = found
    page = records(shard_id, columns, joined or b"")
    return None if page is None else DecodedPage(now_us, version, page)


def records(shard_id: ShardId, columns: bytes, joined: bytes) -> list[Record] | None:
    """Build the records from the columns of `READ`; None if they do not add up."""
    try:
        seqs, ids, queues, names, lengths, headers, options, created = _columns.decode(columns)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    # SQLite guarantees no order of joined values, but all columns of one row have the same.
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
    """Return the same column; if all values are equal they become one object, whose hash is then
    computed once: that saves a thirtieth of a plain task's time in the event loop."""
    if column and column.count(column[0]) == len(column):
        return [column[0]] * len(column)
    return column
