"""`Control.dead_letters`: look, throw away, redrive.

A redrive moves the row from `late_dead` to `late_timer`, due now, with its attempts back to zero.
It does not put a new task into the log: the task keeps its id, its history and its place behind
its unique key. The shard's owner stays the only one that decides on the task: it looks through
its overdue timers every few seconds and finds the row there, as it finds any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice

import msgspec
from sqlalchemy import func, select

from late.control.database import Part
from late.control.dead_letters.dry_run import IDS_SHOWN, preview
from late.control.dead_letters.filter import Filter
from late.control.dead_letters.move import Mover, oldest
from late.control.dead_letters.page import DeadLetterPage, read_page, view_of
from late.control.views import DeadView, Moved
from late.errors import ConfigError
from late.model.task import TaskId
from late.schema.engine import reading, write
from late.schema.tables import dead

RATE_MIN, RATE_MAX = 0.001, 100_000.0


class DeadLetterControl(Part):
    """Dead letters. See `Control` for what all methods raise."""

    def find(
        self, which: Filter | None = None, *, limit: int = 100, payload: bool = False
    ) -> list[DeadView]:
        """Up to `limit` dead letters, the latest first."""
        which = which or Filter()
        which.check()
        _check_limit(limit)
        order = (dead.c.dead_at_us.desc(), dead.c.task_id.desc())
        # A payload has up to 1 MiB: a caller who does not want them must not wait for hundreds.
        wanted = [column for column in dead.c if payload or column is not dead.c.payload]
        size = func.length(dead.c.payload).label("payload_bytes")
        with reading(self._database.engine) as connection:
            rows = connection.execute(
                select(*wanted, size).where(*which.clauses()).order_by(*order).limit(limit)
            )
            return [view_of(row._mapping, payload) for row in rows]

    def page(self, which: Filter | None = None, *, limit: int = 100) -> DeadLetterPage:
        """Return one page of what `find` returns, quickly however many there are."""
        return read_page(self._database.engine, which or Filter(), limit=limit)

    def purge(
        self,
        which: Filter,
        *,
        only: Sequence[TaskId] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        exact: bool = False,
    ) -> Moved:
        """Delete dead letters for good, the oldest first, a thousand to a transaction.

        It is the only way to lose one, and always on demand. A dry run looks at ten thousand dead
        letters and says whether there were more; an `exact` one counts all.

        Args:
            only: of those that match, the ones with these ids.
        """
        mover = Mover("dead.purge", which)
        return self._move(mover, only, limit, dry_run=dry_run, exact=exact)

    def redrive(
        self,
        which: Filter,
        *,
        only: Sequence[TaskId] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        exact: bool = False,
    ) -> Moved:
        """Send dead letters back to run again, the oldest first, attempts counted from zero.

        They start within seconds, when their shard's owner next looks at its overdue timers. With
        a `rate` they fall due so many a second from now on: all are moved at once, and nobody has
        to stay for it. A dry run is as that of `purge`.
        """
        if rate is not None and not RATE_MIN <= rate <= RATE_MAX:
            raise ConfigError(f"rate {rate:g}: {RATE_MIN:g} to {RATE_MAX:g} a second")
        mover = Mover("dead.redrive", which, rate=rate or 0.0)
        return self._move(mover, only, limit, dry_run=dry_run, exact=exact)

    def _move(
        self,
        mover: Mover,
        only: Sequence[TaskId] | None,
        limit: int | None,
        *,
        dry_run: bool,
        exact: bool,
    ) -> Moved:
        engine = self._database.engine
        parts = [mover.which] if only is None else list(mover.which.among(only))
        for part in [mover.which, *parts]:
            part.check()
        if limit is not None:
            _check_limit(limit)
        if dry_run:
            return _sum([preview(engine, part, limit, exact=exact) for part in parts], limit)
        moved: list[str] = []
        total, from_us = 0, None
        for part in parts:
            mine = msgspec.structs.replace(mover, which=part)
            # What dies from here on is not meant: a task that fails again at once would otherwise
            # be redriven without end.
            now, keys = oldest(engine, part)
            from_us = now if from_us is None else from_us
            while limit is None or total < limit:
                chosen = list(islice(keys, mine.chunk(engine, limit, total)))
                if not chosen:
                    break
                ids = write(engine, partial(mine.move, chosen, from_us, total))
                total += len(ids)
                moved += ids[: max(0, IDS_SHOWN - len(moved))]
        return Moved(total, False, tuple(moved))


def _sum(parts: Sequence[Moved], limit: int | None) -> Moved:
    """Add up what dry runs of the parts would do."""
    count = sum(each.count for each in parts)
    ids = [task_id for each in parts for task_id in each.task_ids]
    capped = any(each.capped for each in parts)
    if limit is not None and count >= limit:
        count, capped = limit, False
    return Moved(count, True, tuple(ids[: min(count, IDS_SHOWN)]), capped=capped)


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise ConfigError(f"limit {limit}: at least 1")
