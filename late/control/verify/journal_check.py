"""The journal of one (group, shard), judged row by row: pure.

Rules of `docs/design/0002`: one settlement follows the other without a hole (retention takes the
oldest and never the last, compaction makes one row of neighbours, which says where they begin),
epochs never go back, an epoch has one owner.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from late.control.verify.problems import Problems
from late.model.task import ENQUEUED, Usage

ENDS = frozenset({"done", "dead", "expired", "discarded", "cancelled"})
"""Outcomes that end a task; see `late.model.task.Final`."""
RESETS = frozenset({"create", "reset"})
"""Owners of a settlement by which an operator said where the group begins."""
ANEW = RESETS | {"rebase"}
"""Owners of a settlement behind which the same records may be read, and counted, once more."""
CLOCK_BACK_US = 60_000_000
"""A database's clock is corrected now and then; by more than this it is worth a note."""

_usage_of = msgspec.json.Decoder(tuple[Usage, ...]).decode


class Settled(msgspec.Struct, frozen=True):
    """A row of the journal without its checkpoint."""

    seq: int
    epoch: int
    owner: str
    usage: str | None
    settled_at_us: int
    first_seq: int | None = None
    """The first settlement whose usage it carries; None: it carries its own."""

    @property
    def begins(self) -> int:
        """The first settlement that the row stands for."""
        return self.seq if self.first_seq is None else self.first_seq


class Journal:
    """Takes all rows of one journal, ascending by seq."""

    def __init__(self, shard: tuple[str, int], findings: Problems) -> None:
        self.first: Settled | None = None
        """The first row that retention has left, or the last reset."""
        self.last: Settled | None = None
        self.rows = 0
        self.ended: Counter[str] = Counter()
        """Counts of ends of tasks, by the rows after the first."""
        self.since: Settled | None = None
        """From where on arrivals and ends are compared: `first`, or the last rebase."""
        self._arrived = self._ended_since = 0
        self._counts_whole = True
        self._shard = shard
        self._findings = findings

    def take(self, row: Settled) -> None:
        """The next row."""
        self.rows += 1
        before, self.last = self.last, row
        if before is None:
            self.first = self.since = row
            return
        if row.begins > before.seq + 1:
            self._counts_whole = False
            self._add("journal_hole", f"between settlements {before.seq} and {row.begins} is a"
                                      " hole")  # fmt: skip
        elif row.begins <= before.seq:
            self._counts_whole = False
            self._add("counted_twice", f"settlements {row.begins} to {before.seq} are in the sums"
                                       f" of settlement {row.seq}, too")  # fmt: skip
        if row.epoch < before.epoch:
            self._add("epoch_back", f"settlement {row.seq} is of epoch {row.epoch}, the one before"
                                    f" it of {before.epoch}")  # fmt: skip
        elif row.epoch == before.epoch and row.owner != before.owner:
            self._add("two_owners", f"settlement {row.seq} of epoch {row.epoch} is {row.owner}'s,"
                                    f" the one before it {before.owner}'s")  # fmt: skip
        if before.settled_at_us - row.settled_at_us > CLOCK_BACK_US:
            back_s = (before.settled_at_us - row.settled_at_us) / 1_000_000
            self._findings.notes.append(
                f"{self._shard[0]}/{self._shard[1]}: the database's clock went back by"
                f" {back_s:,.0f} s before settlement {row.seq}"
            )
        if row.owner in RESETS:
            # The records that are read from here on, and what is counted, are others.
            self.first = row
            self.ended.clear()
        if row.owner in ANEW:
            self.since = row
            self._arrived = self._ended_since = 0
            self._counts_whole = True
        if row.usage is not None:
            self._count(row)

    def _count(self, row: Settled) -> None:
        try:
            for usage in _usage_of(row.usage or "[]"):
                if usage.outcome in ENDS:
                    self.ended[usage.outcome] += usage.count
                    self._ended_since += usage.count
                elif usage.outcome == ENQUEUED:
                    self._arrived += usage.count
        except msgspec.MsgspecError:
            self._counts_whole = False
            self._add("usage", f"settlement {row.seq} has an unreadable `usage`")

    def close(self, lease_epoch: int | None, ended_recently: int) -> None:
        """Compare, after all rows, with the lease and with what the log says.

        Args:
            lease_epoch: None where there is no lease.
            ended_recently: logged tasks that ended after the first kept row.
        """
        if self.last is None:
            if lease_epoch is not None:
                self._add("journal_gone", "a lease, and no settlement")
            return
        epoch = self.last.epoch
        if lease_epoch is None:
            self._add("lease", f"settled under epoch {epoch}, and there is no lease")
        elif lease_epoch != epoch:
            # Both are raised in one transaction. A higher lease would not have fenced its
            # predecessor, a lower one would grant an epoch twice.
            self._add("lease", f"settled under epoch {epoch}, its lease has {lease_epoch}")
        counted = self.ended.total()
        if ended_recently > counted:
            since = self.first.seq if self.first else 0
            self._add(
                "uncounted",
                f"{ended_recently:,} tasks of the log have ended since settlement {since}, the"
                f" journal counted {counted:,}",
            )

    def balance(self, opened_then: int, unfinished: int) -> None:
        """Whatever was open at `since`, or was covered later, has ended or is to come. This holds
        without the rows of the log, which maintenance removes; parked tasks of before and
        dead letters that were redriven only add to what is to come. Where counts are missing,
        which is a finding of its own, nothing is said.

        Args:
            opened_then: open tasks of `since`.
            unfinished: open and parked tasks now.
        """
        lost = self._arrived + opened_then - self._ended_since - unfinished
        if lost > 0 and self.since is not None and self._counts_whole:
            self._add(
                "uncounted",
                f"{lost:,} of {self._arrived + opened_then:,} tasks that were read since settlement"
                f" {self.since.seq} have not ended, and are neither open nor parked",
            )

    def _add(self, kind: str, what: str) -> None:
        self._findings.add(kind, self._shard, what)
