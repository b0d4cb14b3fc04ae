"""Reads of the control plane on a replica while it is near enough, else on the database itself.

On PostgreSQL a read first waits for a moment until the replica has what the primary had when it was
asked. Mostly that is so at once, and then nothing is late. On Spanner a read is as of `max_lag_s`
ago, which any replica near by answers without a word to the leader. On CockroachDB a follower near
by answers with what it has, some five seconds late; that is untried.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from late.clock import Monotonic
from late.control.control import Control
from late.control.status.replication import Freshness, LagMeter
from late.errors import ConfigError, LateError, StoreError
from late.schema.engine import parse, shown

T = TypeVar("T")

logger = logging.getLogger("late.control")

WAIT_S = 0.1
"""The longest wait for a replica to have what the primary has."""
_PAUSE_S = 0.01
AGAIN_S = 30.0
"""The pause after a replica that did not answer: a try may take the time-out of a connection."""


class ReplicaReads:
    """Runs reads on a replica, or on the primary. Several threads may use one instance.

    Args:
        primary: the control of the database. The caller closes it.
        url: of a streaming replica of that PostgreSQL; on Spanner and CockroachDB of the database
            itself, on Spanner with `?replica=us-east4` where a certain replica is to answer.
        max_lag_s: the longest time by which a read may be late.
        alarm_s: as `Control` takes it.

    Raises:
        ConfigError: no other store has such reads, or the URL is of another database.
    """

    def __init__(
        self,
        primary: Control,
        url: str,
        *,
        max_lag_s: float,
        alarm_s: float,
        monotonic: Monotonic = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        try:
            kind = parse(url).get_backend_name()
        except ConfigError as error:
            raise ConfigError(f"read_url: {error}") from error
        if kind not in ("postgresql", "spanner", "cockroachdb") or kind != primary.store:
            raise ConfigError(
                f"read_url={shown(url)}: expected a replica of the same PostgreSQL, or on Spanner"
                " and CockroachDB the URL of the database itself; SQLite has no such reads"
            )
        if kind != "postgresql" and parse(url).database != parse(primary.url).database:
            raise ConfigError(f"read_url={shown(url)} is another database than {primary.url}")
        self._primary = primary
        self._where = shown(url)
        self.max_lag_s = max_lag_s
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = threading.Lock()
        self._meter = LagMeter()
        self._kind = kind
        self.url = url
        self.stale_s = 0.0 if kind == "postgresql" else max_lag_s
        """The age of what is read; 0 on PostgreSQL, whose replica has what it has."""
        self._replica = Control(url, alarm_s=alarm_s, stale_s=self.stale_s)
        self._not_before = 0.0
        self._near: bool | None = None
        self.freshness = Freshness(self._where, max_lag_s)
        """The last read."""

    def read(self, work: Callable[[Control], T], *, fresh: bool = False) -> T:
        """Return `work(control)`, on the replica where that is near enough.

        A server that is no replica is not read: after a switch of servers it may be the primary,
        and whoever looks then must see something. `check` refuses it.

        Args:
            work: it only reads. It runs again on the primary if the replica fails.
            fresh: it has to see all that is committed.

        Raises:
            StoreError: what `work` raises on the primary.
        """
        try:
            near, _ = self._look(fresh=fresh)
        except ConfigError as error:
            self._leave(error, "it is no replica of this database")
            near = False
        if near:
            try:
                return work(self._replica)
            except StoreError as error:
                self._leave(error)
        return work(self._primary)

    def check(self) -> tuple[bool, float | None]:
        """Ask the replica once: return whether it is read, and the most by which it is late.

        The latter is None if that is not known. A replica that does not answer is no error.

        Raises:
            ConfigError: the URL is that of a primary, or of another server's replica.
        """
        if self._kind == "spanner":
            with self._lock:
                return self._look_at_age()
        return self._look(fresh=False)

    def set_alarm(self, alarm_s: float) -> None:
        """Change `alarm_s` for the reads to come."""
        self._replica.groups.set_alarm(alarm_s)

    def close(self) -> None:
        """Close the connections to the replica."""
        self._replica.close()

    def _look(self, *, fresh: bool) -> tuple[bool, float | None]:
        """Return whether the replica is near enough, and its lag if that is known."""
        if self._kind != "postgresql" and fresh:
            self._note(None, "a change was just made")
            return False, None
        with self._lock:
            if self._monotonic() < self._not_before:
                return False, None
            if self._kind == "postgresql":
                return self._look_at_positions(fresh=fresh)
            if self._kind == "cockroachdb":
                return self._look_at_age()
            # Spanner serves exactly the age that is asked for; `check` asks whether it does.
            self._note(self.max_lag_s, None)
            return True, self.max_lag_s

    def _look_at_age(self) -> tuple[bool, float | None]:
        """Ask how old a stale read is, by the database's own word; no longer than is allowed.

        The question takes time, by which the answer is older: that is no lag of the read.
        """
        asked_s = self._monotonic()
        try:
            age_s = self._replica.status.age_s()
        except StoreError as error:
            self._leave(error)
            return False, None
        near, lag_s = self._judge(age_s, self.max_lag_s + self._monotonic() - asked_s)
        if not near and self._kind == "spanner":  # `read` does not ask
            self._not_before = self._monotonic() + AGAIN_S
        return near, lag_s

    def _look_at_positions(self, *, fresh: bool) -> tuple[bool, float | None]:
        """Ask the primary how far its log is written, and the replica for that."""
        asked_s = self._monotonic()
        primary = self._primary.status.written()
        try:
            lag_s = self._lag_s(primary.server, primary.bytes or 0, asked_s)
        except StoreError as error:
            self._leave(error)
            return False, None
        return self._judge(lag_s, 0.0 if fresh else self.max_lag_s, tell=not fresh)

    def _judge(
        self, lag_s: float | None, bound_s: float, *, tell: bool = True
    ) -> tuple[bool, float | None]:
        near = lag_s is not None and lag_s <= bound_s
        trouble = None if near else f"it is over {min(bound_s, self.max_lag_s):g} s behind"
        self._note(lag_s, trouble)
        if tell:
            self._tell(trouble)
        return near, lag_s

    def _lag_s(self, server: int, position: int, asked_s: float) -> float | None:
        """Return the most by which the replica is late, 0 once it has reached `position`."""
        self._meter.add(position, asked_s)
        while True:
            replica = self._replica.status.replayed()
            if replica.bytes is None or replica.server != server:
                raise ConfigError(f"read_url={self._where} is no replica of {self._primary.url}")
            if replica.bytes >= position:
                self._meter.lag_s(replica.bytes, asked_s)
                return 0.0
            if self._monotonic() - asked_s >= WAIT_S:
                return self._meter.lag_s(replica.bytes, self._monotonic())
            self._sleep(_PAUSE_S)

    def _leave(self, error: LateError, trouble: str = "it does not answer") -> None:
        self._not_before = self._monotonic() + AGAIN_S
        self._note(None, trouble)
        self._tell(str(error))

    def _note(self, lag_s: float | None, trouble: str | None) -> None:
        self.freshness = Freshness(self._where, self.max_lag_s, lag_s, trouble)

    def _tell(self, trouble: str | None) -> None:
        """Log each change; `trouble` is why the replica is not read."""
        near = trouble is None
        if near == self._near:
            return
        self._near = near
        if near:
            logger.info("reads go to the replica %s", self._where)
        else:
            logger.warning(
                "reads go to the database, not to the replica %s: %s", self._where, trouble
            )
