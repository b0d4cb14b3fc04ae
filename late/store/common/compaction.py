"""Compaction of the journal: which rows become one, and with what usage. The planning is pure.

The rows of one bucket of time (a minute, later an hour, of the database's clock) become its last
row. That one keeps its `seq`, its checkpoint and its time, gets the sums of their usage, and its
`first_seq` says where they began. So a reader that follows the journal by `seq` sees no hole, and
one that counts it sees each settlement once:

    seq        41   42   43   44   45   46          41..44 in one minute, 45.. in the next
    first_seq   -    -    -    -    -    -
    after                     44   45   46          44 carries the usage of 41..44
                              41    -    -

- **A quiet shard's row goes on over the minutes of an hour** until it stands for `ROW_MIN`
  settlements, and each round puts what has become old behind it. A row keeps a page of the
  journal's index, which has some 130 keys: one row a minute would keep each page of most journals.
- **The fence is not touched.** The last row of a journal is neither removed nor changed, and a
  settlement must follow it. That is all that the fence looks at.
- **Only neighbours of one owner and epoch become one**, so that the terms stay in the journal, and
  a hole (which is damage) stays a hole.
- **The first row of a term stays as it is.** A worker of an older version takes a free `seq` on
  Spanner for its own, however long its term has been over. The one that it would take is that of
  the first row of the next term.
- **Only whole buckets that are older than their time**, and only behind others that are, so that a
  clock that went back changes nothing.
- **Nothing is counted twice or lost**: a store reads the rows, deletes all but the last and changes
  that in one transaction, in which nobody else has changed any of them. A round that is killed has
  done some of these transactions, and the next one goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from late.model.task import Usage
from late.model.usage_sums import summed

MINUTE_US = 60_000_000
HOUR_US = 3_600_000_000
BATCH = 200
"""Rows per transaction: their usage is decoded and added up while it is open."""
PROBE = 3
"""Rows that tell whether there is anything to do: the last sum, and the two behind it."""
ROW_MIN = 500
"""So many settlements, some four pages of the index, are enough for a row."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[Usage, ...]).decode


class JournalRow(msgspec.Struct, frozen=True):
    """A row of the journal without its checkpoint. The columns are in the order of the fields."""

    seq: int
    first_seq: int | None
    epoch: int
    owner: str
    usage: str | None
    settled_at_us: int

    @property
    def first(self) -> int:
        """The first settlement whose usage it carries."""
        return self.seq if self.first_seq is None else self.first_seq


COLUMNS = ", ".join(JournalRow.__struct_fields__)


class Stretch(msgspec.Struct, frozen=True):
    """The rows of one journal with `start` <= seq < `last`, and what is to become of them."""

    group: str
    shard_id: int
    start: int
    last: int
    """The last `seq` of the journal, whose row stays as it is."""
    width_us: int
    before_us: int
    """The time before which buckets of this width are to be one row."""


class Sum(msgspec.Struct, frozen=True):
    """Rows that become one: those with `low` <= seq < `seq` go, and that of `seq` changes."""

    low: int
    seq: int
    first_seq: int
    usage: str | None
    removed: int
    """The number of rows that go."""


class Compacted(msgspec.Struct, frozen=True):
    """The plan for one batch of rows."""

    sums: tuple[Sum, ...]
    resume: int
    """The `seq` at which the next batch begins: that of the last row that is done."""
    more: bool

    @property
    def removed(self) -> int:
        """The number of rows that go."""
        return sum(each.removed for each in self.sums)


def plan_sums(rows: Sequence[JournalRow], stretch: Stretch, limit: int) -> Compacted:
    """Decide on the first `limit` rows of a stretch, ascending by seq. With `PROBE` the plan only
    says whether there is more to do than to look."""
    runs: list[list[JournalRow]] = []
    ended = len(rows) < limit
    begins_term = True  # the row before; that at `start` has none before it, and may begin one
    for row in rows:
        if row.settled_at_us >= stretch.before_us:
            ended = True
            break
        before = runs[-1][-1] if runs else None
        if before and not begins_term and _joins(runs[-1], row, stretch.width_us):
            runs[-1].append(row)
        else:
            runs.append([row])
        begins_term = row.first_seq is None and not (before and _same_term(before, row))
    if not runs:
        return Compacted((), stretch.start, more=False)
    if limit == PROBE:
        return Compacted((), stretch.start, more=not ended or any(len(run) > 1 for run in runs))
    if not ended and len(runs) > 1 and runs[-2][-1].seq > rows[0].seq:
        runs.pop()  # it may go on behind the batch
    sums = [each for run in runs if len(run) > 1 and (each := _sum(run)) is not None]
    return Compacted(tuple(sums), runs[-1][-1].seq, more=not ended)


def _same_term(before: JournalRow, row: JournalRow) -> bool:
    return row.epoch == before.epoch and row.owner == before.owner


def _joins(run: list[JournalRow], row: JournalRow, width_us: int) -> bool:
    before = run[-1]
    if before.seq - run[0].first + 1 < ROW_MIN:
        width_us = HOUR_US
    return (
        row.first == before.seq + 1
        and _same_term(before, row)
        and row.settled_at_us // width_us == before.settled_at_us // width_us
    )


def _sum(run: list[JournalRow]) -> Sum | None:
    """Return the sum of a run; None if it has usage that cannot be read: `late verify` names it."""
    usages: list[Usage] = []
    try:
        for row in run:
            usages += _decode(row.usage or "[]")
    except msgspec.MsgspecError:
        return None
    usage = _encode(summed(usages)).decode() if usages else None
    return Sum(run[0].seq, run[-1].seq, run[0].first, usage, len(run) - 1)
