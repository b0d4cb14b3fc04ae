"""The audit: one row per action of an operator, written in the transaction of the change."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, insert, select

from late.control.database import Part
from late.control.sql.rows import now_us
from late.model.ids import made_at_us, new_id
from late.schema.engine import reading, write
from late.schema.tables import audit

ACTOR_VARIABLE = "LATE_ACTOR"
_ACTOR_MAX, _LOGIN_MAX = 256, 128
SESSION_END = "session.end"
SESSIONS_MS = 26 * 3_600_000
"""The longest session, and an hour for clocks that differ."""
CLOCKS_MS = 3_600_000
"""A producer's clock may be ahead of an operator's by so much."""
NAMED = 3
_acting: ContextVar[str | None] = ContextVar("late_actor", default=None)


class Entry(msgspec.Struct, frozen=True):
    """One row of `late_audit`."""

    audit_id: str
    at_us: int
    actor: str
    action: str
    subject: str
    before: str | None
    """The former value as JSON; None if there was none."""
    after: str | None
    """The new value as JSON; None if there is none."""


@contextmanager
def acting(name: str) -> Iterator[None]:
    """Record `name` as the actor of every change that is made inside the block.

    The name is a context variable, so `asyncio.to_thread` takes it into its thread. An interface
    that has many callers in one process uses this.
    """
    token = _acting.set(name)
    try:
        yield
    finally:
        _acting.reset(token)


def actor() -> str:
    """Return the actor: the name of `acting`, else that of `LATE_ACTOR` and the login, user@host.

    Anybody may write anything into the variable, so the login is there too where it is another
    name: `ada (login:rosa@desk)`.
    """
    named = _acting.get()
    if named:
        return named[:_ACTOR_MAX]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        user = str(os.getuid())
    login, asked = f"{user}@{socket.gethostname()}"[:_LOGIN_MAX], os.environ.get(ACTOR_VARIABLE)
    if not asked or asked in (login, user):
        return asked or login
    known = f" (login:{login})"
    return asked[: _ACTOR_MAX - len(known)] + known


def record(
    connection: Connection,
    *,
    action: str,
    subject: str,
    by: str | None = None,
    before: Any = None,
    after: Any = None,
    at_us: int | None = None,
) -> str:
    """Add one row in the caller's transaction, and return its id.

    Args:
        action: a stable pair of words such as `queue.set`.
        subject: the thing that was changed, such as `queue:payments`.
        by: the name of the actor; `actor()` when None.
        before, after: values that JSON can carry; None if there was no value. Never a payload.
        at_us: the database's time, if the caller has read it already.
    """
    audit_id = new_id(0)
    connection.execute(
        insert(audit).values(
            audit_id=audit_id,
            at_us=now_us(connection) if at_us is None else at_us,
            actor=(by or actor())[:_ACTOR_MAX],
            action=action,
            subject=subject,
            before=_json(before),
            after=_json(after),
        )
    )
    return audit_id


def entries(
    connection: Connection,
    *,
    subject: str | None = None,
    action: str | None = None,
    limit: int = 50,
) -> list[Entry]:
    """Read the latest `limit` actions, newest first."""
    query = select(audit).order_by(audit.c.at_us.desc(), audit.c.audit_id.desc()).limit(limit)
    if subject is not None:
        query = query.where(audit.c.subject == subject)
    if action is not None:
        query = query.where(audit.c.action == action)
    return [Entry(**row._mapping) for row in connection.execute(query)]


def shortened(text: str | None) -> str | None:
    """Return a value of an entry as people read it: of many ids the first, and the number of the
    others."""
    if text is None or 'ids"' not in text:
        return text
    try:
        fields = msgspec.json.decode(text)
    except msgspec.MsgspecError:  # an operator may insert a row by SQL
        return text
    if not isinstance(fields, dict):
        return text
    which = fields.get("filter")
    for of, name in ((fields, "ids"), (which if isinstance(which, dict) else {}, "task_ids")):
        if isinstance(of.get(name), list):
            of[name] = named(of[name])
    return _json(fields)


def named(values: list[Any]) -> str:
    """Name the first three, and say how many more there are."""
    more = len(values) - NAMED
    return ", ".join(map(str, values[:NAMED])) + (f" and {more:,} more" if more > 0 else "")


def _first_id(since_ms: int) -> str:
    """Return a text below every id that is made from then on: ids ascend with time."""
    return f"{max(0, since_ms) >> 16:08x}-{max(0, since_ms) & 0xFFFF:04x}"


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


class AuditControl(Part):
    """Read and write the audit. See `Control` for what all methods raise."""

    def entries(self, *, subject: str | None = None, limit: int = 50) -> list[Entry]:
        """Read the latest `limit` actions, newest first."""
        with reading(self._database.engine) as connection:
            return entries(connection, subject=subject, limit=limit)

    def of_task(self, task_id: str) -> list[Entry]:
        """Read what was asked for one task alone, the latest ten, the earliest first."""
        query = (
            select(audit)
            .where(
                audit.c.audit_id >= _first_id(made_at_us(task_id) // 1_000 - CLOCKS_MS),
                audit.c.subject == f"task:{task_id}",
            )
            .order_by(audit.c.audit_id.desc())
            .limit(10)
        )
        with reading(self._database.engine) as connection:
            return [Entry(**row._mapping) for row in connection.execute(query)][::-1]

    def ended_sessions(self) -> list[str]:
        """The sessions of the page that were signed out of in the last day or so, by their keys."""
        # Ids ascend with the clocks of who writes, so this is a range of the primary key. Whatever
        # is older is of sessions that are over.
        since_ms = time.time_ns() // 1_000_000 - SESSIONS_MS
        query = select(audit.c.subject).where(
            audit.c.audit_id >= _first_id(since_ms),
            audit.c.action == SESSION_END,
        )
        with reading(self._database.engine) as connection:
            return [row.subject.partition(":")[2] for row in connection.execute(query)]

    def record(self, action: str, subject: str) -> None:
        """Record an action that no other method carries out."""
        write(self._database.engine, partial(record, action=action, subject=subject))
