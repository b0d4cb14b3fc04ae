"""The fleet as one worker knows it, kept from heartbeat to heartbeat. Pure.

The database counts changes of the fleet: one number for workers (a join, a leave, another
description), one for leases (a grant, a release). Each change raises its number in its own
transaction, so **equal numbers mean that nothing has changed**. A heartbeat then brings the two
numbers and `unusual` ends of leases, nearly always none, whatever the size of the fleet.

What ends by time raises no number. A worker that renews its lease every second has between half
and all of its time to live left. Who has less, or more by a clock that was set back, is unusual and
comes with its end, for the last time with the first answer after that end.

In a fleet of more than `ALL_WATCHED` each worker is told of the ends of its neighbours only, those
next to it by id. Who sees one end tells everybody, by raising the number of workers.

Everything is read anew:

- every `FULL_S`, for what was changed behind the numbers' back, as by a hand;
- while a peer does not raise the numbers (`CHANGES` is not in its version);
- after a change of a group, such as a reset, which takes its shards from their owners;
- when more or fewer workers live than in the view, where all are watched: somebody joined or left
  who raises no number, or a renewal became visible after the lease's end was seen;
- after a clock that was set back, and for a peer that should not be there.

A caller begins a new view where an answer was lost, and where it does not live itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from late.store.base import CHANGES, LeaseView, Membership, WorkerInfo
from late.store.common.fleet import worker_of

FULL_S = 30.0
"""The longest time for which a change that raises no number stays unseen."""

ALL_WATCHED = 128
NEIGHBOURS = 4
"""On each side. Of a tenth that dies at once, one of 10^8 has no neighbour that is left to tell:
`FULL_S` is for that one."""
NEVER_US = 2**62
"""Later than every end of a lease: before the first answer none is asked for."""

Ends = Collection[tuple[str, int]]
"""(worker id, end of its lease by the database's clock)."""


class Numbers(msgspec.Struct, frozen=True):
    """They count the changes of workers and of leases."""

    workers: int
    leases: int
    groups: str = ""
    """Another text after any change of a group: one that is made or reset has other leases. And
    after the server was replaced or started again: its numbers may be older than those seen."""


class FleetView:
    """See the module."""

    def __init__(self) -> None:
        self.now_us = NEVER_US
        """The database's clock at the last answer: leases that end later are still to be told."""
        self.since = 0
        """The store's own mark of the last reading of leases; 0: all are to be read."""
        self._numbers: Numbers | None = None
        self._full_at_us = 0
        self._workers: dict[str, WorkerInfo] = {}
        self._ends_us: dict[str, int] = {}
        self._leases: dict[tuple[str, int], LeaseView] = {}
        self._seen = Membership(0, (), (), ())

    def outdated(self, now_us: int, numbers: Numbers, ends: Ends, live: int | None) -> bool:
        """Return whether the fleet must be read; `since` says from where on.

        Args:
            now_us: by the database's clock, which goes on while this machine is suspended.
            ends: the unusual ones later than `now_us` of the last answer.
            live: the number of workers that live; None: they were not counted.
        """
        ended = {name for name, end_us in ends if end_us <= now_us}
        if (
            self._numbers is None
            or numbers.groups != self._numbers.groups
            or now_us < self.now_us
            or now_us >= self._full_at_us + FULL_S * 1_000_000
            or any(CHANGES not in each.version for each in self._workers.values())
            or any(end_us > now_us and name not in self._workers for name, end_us in ends)
            or live not in (None, len(self._workers.keys() - ended))
        ):
            self._numbers, self.since = None, 0
        return numbers != self._numbers

    @property
    def ring(self) -> bool:
        """True if neighbours watch each other, because there are too many for all to watch all."""
        return len(self._workers) > ALL_WATCHED

    def dead(self, now_us: int, ends: Ends) -> bool:
        """Return whether others must be told of a lease that has ended."""
        return self.ring and any(end <= now_us and name in self._workers for name, end in ends)

    def wants_workers(self, numbers: Numbers) -> bool:
        """Return whether workers must be read too."""
        return self._numbers is None or numbers.workers != self._numbers.workers

    def read(
        self,
        numbers: Numbers,
        since: int,
        workers: Iterable[Any] | None,
        leases: Iterable[Any],
        now_us: int,
    ) -> None:
        """Take in what was read at one moment.

        Args:
            workers: rows as `membership_of` has them, of all that live; None: not read.
            leases: the rows that changed since the last mark, or all.
        """
        if workers is not None:
            rows = list(workers)
            self._workers = {row[0]: worker_of(row) for row in sorted(rows)}
            self._ends_us = {row[0]: row[6] for row in rows}
            # Numbers that were not read together with workers say nothing of them.
            self._numbers = numbers
        if not self.since:
            self._leases.clear()
            self._full_at_us = now_us
        self._leases.update(((row[0], row[1]), LeaseView(*row)) for row in leases)
        assert self._numbers is not None, "workers are read first"
        self._numbers = msgspec.structs.replace(numbers, workers=self._numbers.workers)
        self.since = since
        self._seen = msgspec.structs.replace(
            self._seen,
            workers=tuple(self._workers.values()),
            leases=tuple(self._leases[key] for key in sorted(self._leases)),
        )

    def pass_time(self, now_us: int, ends: Ends, ttl_s: float) -> None:
        """Take in an answer that needed no reading of workers. Who is not among `ends` has renewed
        its lease lately: its end is not known, and is at most a time to live away."""
        end_us = now_us + round(ttl_s * 1_000_000)
        self._ends_us = dict.fromkeys(self._workers, end_us)
        self._ends_us.update(each for each in ends if each[0] in self._workers)

    def membership(self, now_us: int, me: str, own_end_us: int | None) -> Membership:
        """Return the fleet at this moment, with the caller if it lives."""
        self.now_us = now_us
        self._ends_us[me] = own_end_us or 0
        gone = [name for name in self._workers if self._ends_us[name] <= now_us]
        for name in gone:
            del self._workers[name]
        if gone:
            workers = tuple(self._workers.values())
            self._seen = msgspec.structs.replace(self._seen, workers=workers)
        ends_us = {name: self._ends_us[name] for name in self._workers}
        return msgspec.structs.replace(self._seen, now_us=now_us, expires_at_us=ends_us)
