"""`Control.dead_letters`: look, throw away, send back."""

from __future__ import annotations

from late.control.database import Database
from late.control.dead_letters import dead_letters, latest
from late.control.dead_letters.dead_letters import Filter
from late.control.views import DeadView, Moved


class DeadLetterControl:
    """Dead letters. See `Control` for what all methods raise."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(
        self, which: Filter | None = None, *, limit: int = 100, payload: bool = False
    ) -> list[DeadView]:
        """Up to `limit` dead letters, the latest first."""
        engine = self._database.engine
        return dead_letters.listed(engine, which or Filter(), limit=limit, payload=payload)

    def page(self, which: Filter | None = None, *, limit: int = 100) -> latest.Latest:
        """As `find`, a page at a time, and quick however many there are."""
        return latest.latest(self._database.engine, which or Filter(), limit=limit)

    def purge(
        self,
        which: Filter,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        exact: bool = False,
    ) -> Moved:
        """Delete dead letters for good, the oldest first, a thousand to a transaction.

        A dry run looks at ten thousand dead letters and says whether there were more; an `exact`
        one counts all.
        """
        engine = self._database.engine
        return dead_letters.purge(engine, which, limit=limit, dry_run=dry_run, exact=exact)

    def redrive(
        self,
        which: Filter,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        exact: bool = False,
    ) -> Moved:
        """Send dead letters back to run again, the oldest first, attempts counted from zero.

        They start within seconds, when their shard's owner next looks at its overdue timers; with
        a `rate`, so many a second from now on. A dry run as that of `purge`.
        """
        engine = self._database.engine
        return dead_letters.redrive(
            engine, which, limit=limit, dry_run=dry_run, rate=rate, exact=exact
        )
