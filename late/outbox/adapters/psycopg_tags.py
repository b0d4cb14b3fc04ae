"""Tags on the statements of psycopg's connections.

The tag is a comment before the statement. PostgreSQL shows it in `pg_stat_activity`, in its log and
with both statements of a deadlock, and a pooler passes it on. A setting of the session
(`application_name`) would need a statement more in each transaction.
"""

from __future__ import annotations

import time
from typing import Any, Self

import psycopg
from psycopg import sql

from late.observability import conflicts


def with_tag(cursor: Any, query: Any) -> Any:
    """Return a statement with the tag of the cursor's connection, else with that of the context."""
    tag = getattr(cursor.connection, "late_tag", "") or conflicts.current()
    if not tag:
        return query
    if isinstance(query, str):
        return conflicts.comment(tag) + query
    if isinstance(query, bytes):
        return conflicts.comment(tag).encode() + query
    return sql.SQL(conflicts.comment(tag)) + query if isinstance(query, sql.Composable) else query


class TaggedCursor(psycopg.Cursor[Any]):
    """A cursor whose statements carry the tag of its connection, else that of the context."""

    def execute(self, query: Any, params: Any = None, **more: Any) -> Self:
        return super().execute(with_tag(self, query), params, **more)

    def executemany(self, query: Any, params_seq: Any, **more: Any) -> None:
        super().executemany(with_tag(self, query), params_seq, **more)


class TaggedAsyncCursor(psycopg.AsyncCursor[Any]):
    """The same for a connection that is awaited."""

    async def execute(self, query: Any, params: Any = None, **more: Any) -> Self:
        return await super().execute(with_tag(self, query), params, **more)

    async def executemany(self, query: Any, params_seq: Any, **more: Any) -> None:
        await super().executemany(with_tag(self, query), params_seq, **more)


def tagged(tx: Any, tag: str = "") -> float:
    """Give a connection cursors that tag, and return the monotonic time.

    Args:
        tag: for all statements of the connection; without one, the context's at each statement.
    """
    tx.late_tag = tag
    tx.cursor_factory = (
        TaggedAsyncCursor if isinstance(tx, psycopg.AsyncConnection) else TaggedCursor
    )
    return time.monotonic()
