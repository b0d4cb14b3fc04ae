"""Tags of transactions, and a small record of those that the database ended for others.

A **tag** says whose a transaction is: `late-foreground:mail.send` for a transaction of that task,
`late-foreground-shadow:mail.send` for one of a shadow of it, `late-foreground:settle` for one of
`late` itself, and what a service chooses (`late.tag`). Spanner gets it as the transaction's tag,
PostgreSQL as a comment before each statement.

A **conflict** is a transaction that was aborted, waited too long or lost a deadlock. It is told as
the event `conflict`, at most `LINES_MAX` times in `PERIOD_S`; what is left out is counted in the
next line of the same kind and tag. `late analyze` reads these lines of the log. The last twenty
minutes are kept as well: a worker's report has them, and the page shows the reports.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Literal

from late import events
from late.observability.conflict_tally import ConflictTally

Kind = Literal[
    "aborted", "deadline", "deadlock", "serialization", "lock_timeout", "busy", "waiting"
]
"""`waiting`: it waited for a lock, as a worker saw in the locks of the database."""
Role = Literal["foreground", "background"]

TAG_LENGTH_MAX = 50
"""The most characters of a tag that Spanner takes."""
LINES_MAX = 50
PERIOD_S = 10.0
_LEFT_OUT_MAX = 256
"""The most pairs of kind and tag for which left-out conflicts are counted apart."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:/@-]")
"""A tag is put into SQL comments, so it has no quote, no star and no percent sign."""
MARK = "/* tag="
_TAG = re.compile(r"/\* tag=([A-Za-z0-9_.:/@-]+) \*/")

_current: ContextVar[str] = ContextVar("late_tag", default="")


@contextmanager
def tag(name: str, *, background: bool = False) -> Iterator[None]:
    """Tag the transactions of this block, for `late analyze` and for the database's statistics.

    It holds for transactions that `late` opens and for those of an engine, connection or Spanner
    database that was given to `late.watch`. In a handler the task's name is the tag already.

    Args:
        name: such as an endpoint's. Letters, digits and `_.:/@-` are kept, others become `_`; at
            most 50 characters, of which the last ones are kept.
        background: nobody waits for these transactions: Spanner takes each request of them at low
            priority, and the tag begins with `late-background:` on every database.
    """
    token = _current.set(tag_of("background", name) if background else clean(name))
    try:
        yield
    finally:
        _current.reset(token)


def use(name: str) -> None:
    """Set the tag for the rest of this context, which is a handler's own copy."""
    _current.set(name)


def current() -> str:
    """Return the tag of this context; empty if there is none."""
    return _current.get()


def clean(name: str) -> str:
    """Return `name` as a tag."""
    return _UNSAFE.sub("_", name)[-TAG_LENGTH_MAX:]


@lru_cache(1024)
def tag_of(role: Role, name: str, *, shadow: bool = False) -> str:
    """Return the tag of a transaction of `late`; its beginning says the class, and a shadow."""
    prefix = f"late-{role}-shadow:" if shadow else f"late-{role}:"
    return prefix + _UNSAFE.sub("_", name)[-(TAG_LENGTH_MAX - len(prefix)) :]


def role_of(tag: str) -> Role | None:
    """Return the class that a tag of `late` says; None for a tag of a service."""
    if tag.startswith("late-background"):
        return "background"
    return "foreground" if tag.startswith("late-foreground") else None


def comment(tag: str) -> str:
    """Return the SQL comment that carries a tag."""
    return f"{MARK}{tag} */ "


def tag_in(statement: str) -> str:
    """Return the tag that a statement carries; empty if it has none."""
    found = _TAG.search(statement)
    return found[1] if found else ""


class Recorder:
    """Tells conflicts as events, within a bound. Safe to use from any thread.

    Args:
        clock: seconds.
    """

    def __init__(
        self, emitter: events.Emitter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tally = ConflictTally(clock)
        """The conflicts of the last twenty minutes, those without a line as well."""
        self._emitter = emitter
        self._clock = clock
        self._lock = threading.Lock()
        self._until = 0.0
        self._lines = 0
        self._left_out: dict[tuple[str, str], tuple[int, float]] = {}

    def record(
        self,
        kind: Kind,
        tag: str,
        *,
        duration_s: float,
        count: int = 1,
        attempt: int = 1,
        tables: str = "",
        key: str = "",
        other: str = "",
        process: str = "",
        statement: str = "",
        other_statement: str = "",
        other_idle: bool = False,
        error: str = "",
    ) -> None:
        """Tell one conflict, or several alike.

        Args:
            duration_s: the time that is lost: since the transaction began.
            attempt: 1 for the first one of this transaction.
            tables: those that the transaction has touched, with commas.
            key: the row, as far as it is known.
            other: the tag of the transaction in its way; empty if it is not known.
            process: the server's process of that one, where that alone is known.
            other_idle: that one held its locks and had no statement running.
            error: the database's words without the values of rows.
        """
        tag, said = tag or "untagged", (statement[:300], other_statement[:300])
        self.tally.add(
            (kind, tag, other, key or tables), duration_s, count, attempt, *said, other_idle
        )
        found = self._admitted(kind, tag, duration_s, count)
        if found is None:
            return
        count, lost_s = found
        self._emitter.emit(
            events.CONFLICT,
            kind=kind,
            tag=tag,
            other=other,
            count=count,
            lost_s=lost_s,
            attempt=attempt,
            tables=tables,
            key=key,
            process=process,
            statement=said[0],
            other_statement=said[1],
            other_idle=other_idle,
            error=error[:300],
        )

    def _admitted(
        self, kind: str, tag: str, duration_s: float, more: int
    ) -> tuple[int, float] | None:
        """Return the number and the time that the line stands for; None if there is no line."""
        with self._lock:
            now = self._clock()
            if now >= self._until:
                self._until, self._lines = now + PERIOD_S, 0
            known = (kind, tag)
            if known not in self._left_out and len(self._left_out) >= _LEFT_OUT_MAX:
                known = (kind, "")
            count, lost_s = self._left_out.pop(known, (0, 0.0))
            count, lost_s = count + more, lost_s + duration_s
            if self._lines >= LINES_MAX:
                self._left_out[known] = (count, lost_s)
                return None
            self._lines += 1
            return count, lost_s


default = Recorder(events.default)
"""The recorder of this process."""
