"""Refuse tasks of queues and limit keys that take none, in the caller's own transaction.

`late_full` names them, and is empty while everything is open. On PostgreSQL and SQLite the insert
of the tasks depends on it, and writes none or all of them. On Spanner, where tasks wait for the
commit in the client, an app reads the table once a second, in the transaction of an enqueue.

The table is new in schema 0018: in an older database nothing is refused here. Each database has its
own way to find out (`Way`), as a statement about a missing table must not cost the caller its
transaction.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from late.model.admission import Full, refusal
from late.outbox.base import Steps

if TYPE_CHECKING:
    from late.outbox.statements import Dialect

Way: TypeAlias = Literal["ask", "try", "look"]
"""Each app asks once whether the table is there (PostgreSQL); or the insert is tried, and repeated
without the condition (SQLite); or the app asks once, and then reads the table (Spanner)."""
LOOK_S = 1.0
AGAIN_S = 60.0
"""The time after which an app looks again for a table that was missing."""
_FULL = "select name, held, bound from late_full where until_us > {now}"
_IS_THERE = {
    "ask": "select coalesce(has_table_privilege(to_regclass('late_full'), 'select'), false)",
    # A producer there may read everything.
    "look": "select value >= '0018' from late_meta where key = 'schema_version'",
}


class Admission:
    """The facts of `late_full` that an app knows. Thread-safe: each fact is one assignment."""

    def __init__(self) -> None:
        self.is_there: bool | None = None
        """True if the database has the table; None if that is to be found out."""
        self._again_s = math.inf
        self._full: dict[str, Full] = {}
        self._look_s = -math.inf

    def is_missing(self) -> bool:
        """Tell whether the table was missing within the last minute."""
        if self.is_there is False and time.monotonic() >= self._again_s:
            self.is_there = None
        return self.is_there is False

    def missed(self) -> None:
        """Note that the table is missing."""
        self._again_s = time.monotonic() + AGAIN_S
        self.is_there, self._full = False, {}

    @property
    def look_is_due(self) -> bool:
        """True if the table is to be read before the next task."""
        return not self.is_missing() and time.monotonic() >= self._look_s

    def saw(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take what a look has found."""
        self._full = {name: Full(name, held, bound) for name, held, bound in rows}
        self._look_s = time.monotonic() + LOOK_S

    def full(self, names: Iterable[str]) -> list[Full]:
        """Return those of `names` that took no tasks at the last look."""
        seen = self._full
        return [seen[name] for name in names if name in seen] if seen else []


class Asked(NamedTuple):
    """The names that must be open for an insert."""

    names: Sequence[str]
    """The queues of the tasks, and the limit keys in them; see `late.model.admission`."""
    admission: Admission


def at_once(asked: Asked | None, dialect: Dialect) -> Sequence[str] | None:
    """Return the names on which the insert must depend, or None if `conditions` must say."""
    if asked is None:
        return ()
    names, known = asked
    if dialect.admission == "look":
        return None if known.look_is_due or known.full(names) else ()
    if known.is_there:
        return names
    return () if known.is_missing() else None


def conditions(asked: Asked | None, dialect: Dialect) -> Steps[Sequence[str]]:
    """Return the names on which the insert must depend; find out first what is not known.

    Raises:
        QueueFull: by the last look.
    """
    if asked is None:
        return ()
    names, known = asked
    if known.is_missing():
        return ()
    if known.is_there is None and dialect.admission in _IS_THERE:
        answer = yield dialect.bind(_IS_THERE[dialect.admission], fetch=True)
        if not answer.rows or not answer.rows[0][0]:
            known.missed()
            return ()
        known.is_there = True
    if dialect.admission != "look":
        return names
    if known.look_is_due:
        answer = yield dialect.bind(_FULL, fetch=True)
        known.saw(answer.rows)
    if full := known.full(names):
        raise refusal(full)
    return ()


def refuse(names: Sequence[str], dialect: Dialect) -> Steps[None]:
    """Read what is full.

    Raises:
        QueueFull: one of `names` is.
    """
    answer = yield dialect.bind(_FULL, fetch=True)
    wanted = set(names)
    if full := [Full(*row) for row in answer.rows if row[0] in wanted]:
        raise refusal(full)
