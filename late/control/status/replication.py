"""The lag of a replica, by positions of the primary's log (the WAL of PostgreSQL).

No clock of another machine has a part in it: what the primary had written when it was asked is on
the replica once it has replayed that position. `pg_last_xact_replay_timestamp()` is the
alternative. It grows in a quiet system, and once the connection between the two is lost it says
nothing.
"""

from __future__ import annotations

from collections import deque

import msgspec
from sqlalchemy import Engine, TextClause, text

from late.control.sql.rows import now_us, seconds
from late.schema.engine import reading

# What is flushed, because only that is sent. A commit under `synchronous_commit = off` is seen a
# little before, and so is late by up to three `wal_writer_delay` more.
_PRIMARY = text(
    "select system_identifier, pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint"
    " from pg_control_system()"
)
_REPLICA = text(
    "select system_identifier, case when pg_is_in_recovery()"
    " then pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint end from pg_control_system()"
)


class Position(msgspec.Struct, frozen=True):
    """A position in the log of a server."""

    server: int
    """The identifier that a primary and its replicas share."""
    bytes: int | None
    """None: it is a primary, and was asked as a replica."""


def written(engine: Engine) -> Position:
    """Return how far the primary's log is written to its disk."""
    return _ask(engine, _PRIMARY)


def replayed(engine: Engine) -> Position:
    """Return how far a replica has replayed the log."""
    return _ask(engine, _REPLICA)


def age_s(engine: Engine) -> float:
    """Return the age of what a stale read of this engine sees, by the clock of who answers it."""
    with reading(engine) as connection:
        seen_us = now_us(connection)
        return seconds(now_us(connection, of_server=True) - seen_us)


def _ask(engine: Engine, statement: TextClause) -> Position:
    with reading(engine) as connection:
        return Position(*connection.execute(statement).one())


class Freshness(msgspec.Struct, frozen=True):
    """The source of the last read for which a replica was asked, and how late it can be."""

    where: str
    """The replica, without a password."""
    bound_s: float
    """The longest time by which a read on it may be late."""
    lag_s: float | None = None
    """The most by which it was late; None if that is not known."""
    trouble: str | None = None
    """The reason for which the database was read and not the replica."""

    def __str__(self) -> str:
        """Return a phrase for people."""
        if self.trouble is not None:
            return f"by the database, not by its replica: {self.trouble}"
        if self.lag_s is None:
            return "by a replica"
        return f"by a replica, {self.lag_s:.1f} s behind" if self.lag_s else "by a replica with all"


class LagMeter:
    """The lag of one replica, from the positions that the primary had at moments. Pure."""

    def __init__(self) -> None:
        self._written: deque[tuple[int, float]] = deque()

    def add(self, position: int, at_s: float) -> None:
        """Note the position of the primary at a moment, or before."""
        self._written.append((position, at_s))

    def lag_s(self, replayed: int, now_s: float) -> float | None:
        """Return the most by which the replica can be behind.

        None: it has reached none of the positions, so nothing is known.
        """
        while len(self._written) > 1 and self._written[1][0] <= replayed:
            self._written.popleft()
        if not self._written or self._written[0][0] > replayed:
            return None
        return now_s - self._written[0][1]
