"""Drop the keys of subjects, and wrap them anew when the keys of the codec are rotated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from sqlalchemy import Connection, select, update

from late.control.audit import record
from late.control.database import Part
from late.control.sql.rows import now_us
from late.errors import ConfigError, DecodeError
from late.model import validation as validate
from late.payload.subject_keys import SubjectKeys, subject_id
from late.schema.engine import reading, write
from late.schema.tables import subject_key

BATCH = 500


class Dropped(msgspec.Struct, frozen=True):
    """A key that is gone."""

    subject: str
    """The id of the subject, which its tasks have in their options."""
    at_us: int
    now: bool
    """False if it had been dropped before."""


class Rewrapped(msgspec.Struct, frozen=True):
    """The numbers of keys after a rotation."""

    wrapped: int
    """Keys that were wrapped by an older key and are now wrapped by the current one."""
    kept: int
    """Keys that were wrapped by the current key already."""
    refused: int
    """Keys that no key of the app opens."""


def _replace(changed: Sequence[tuple[str, str, str]], connection: Connection) -> int:
    """Write (subject, old, new), and return how many were written."""
    count = 0
    for subject, old, new in changed:
        # Only what was read: a key that was dropped since stays dropped.
        same = subject_key.c.subject == subject, subject_key.c.wrapped == old
        count += connection.execute(update(subject_key).where(*same).values(wrapped=new)).rowcount
    if count:
        record(connection, action="keys.rewrap", subject="keys", after={"keys": count})
    return count


def _again(rings: Sequence[SubjectKeys], subject: str, text: str) -> str | None:
    """Return the key wrapped anew, or None if that is not needed."""
    last = DecodeError("there is no ring")
    for ring in rings:
        try:
            return ring.rewrap(subject, text)
        except DecodeError as error:
            last = error
    raise last


class SubjectKeyControl(Part):
    """The keys of subjects. See `Control` for what all methods raise."""

    def drop(self, name: str) -> Dropped:
        """Delete the key of a subject for good. A second call changes nothing.

        Raises:
            ConfigError: no subject of this name has a key.
        """
        subject = subject_id(validate.name(name, "subject"))
        column = subject_key.c

        def end(connection: Connection) -> Dropped:
            if connection.dialect.name == "sqlite":  # Else a freed part of the file keeps the key.
                connection.exec_driver_sql("pragma secure_delete = on")
            now = now_us(connection)
            mine, whole = column.subject == subject, column.wrapped.is_not(None)
            done = update(subject_key).where(mine, whole).values(wrapped=None, dropped_at_us=now)
            if connection.execute(done).rowcount:
                record(connection, action="keys.drop", subject=f"subject:{subject}")
                return Dropped(subject, now, now=True)
            row = connection.execute(select(column.dropped_at_us).where(mine)).first()
            if row is None:
                raise ConfigError(f"no subject {name!r} has a key here: nothing was dropped")
            return Dropped(subject, row[0], now=False)

        engine = self._database.engine
        found = write(engine, end)
        if engine.dialect.name == "sqlite":
            with engine.connect() as connection:
                connection.exec_driver_sql("pragma wal_checkpoint(truncate)")
        return found

    def rewrap(self, rings: Sequence[SubjectKeys]) -> Rewrapped:
        """Wrap all keys by the current key of the ring that opens them. It may run at any time."""
        column = subject_key.c
        wrapped, kept, refused, after = 0, 0, 0, ""
        while True:
            page = (
                select(column.subject, column.wrapped)
                .where(column.subject > after, column.wrapped.is_not(None))
                .order_by(column.subject)
                .limit(BATCH)
            )
            with reading(self._database.engine) as connection:
                rows = connection.execute(page).all()
            if not rows:
                return Rewrapped(wrapped, kept, refused)
            after = rows[-1].subject
            changed: list[tuple[str, str, str]] = []
            for subject, text in rows:
                try:
                    new = _again(rings, subject, text)
                except DecodeError:
                    refused += 1
                    continue
                if new is None:
                    kept += 1
                else:
                    changed.append((subject, text, new))

            if changed:
                wrapped += write(self._database.engine, partial(_replace, changed))
