"""Record the errors of drivers that are conflicts with other transactions."""

from __future__ import annotations

import re
import sqlite3
import time
from typing import Any

from late.observability import conflicts

KINDS: dict[str, conflicts.Kind] = {
    "40P01": "deadlock",
    "40001": "serialization",
    "55P03": "lock_timeout",
}
"""Kinds of conflicts by SQLSTATE."""
_TUPLE = re.compile(r'tuple \((\d+,\d+)\) in relation "([^"]{1,63})"')
_BLOCKED_BY = re.compile(r"blocked by process (\d+)")


def note(error: BaseException, tag: str, begun: float, *, statement: str = "") -> None:
    """Record the error that ended a transaction, if it is a conflict; else do nothing.

    Of the server's texts only some words are taken: the others may quote a row.

    Args:
        error: of psycopg, psycopg2, asyncpg or sqlite3, maybe wrapped, as SQLAlchemy does.
        begun: monotonic seconds of the transaction's begin.
    """
    found = _of_driver(error)
    if found is None:
        return
    kind, seen = found
    diagnostics: Any = getattr(seen, "diag", None)
    context = getattr(diagnostics or seen, "context", None) or ""
    row = _TUPLE.search(context)
    detail = getattr(diagnostics, "message_detail", None) or getattr(seen, "detail", None) or ""
    blocker = _BLOCKED_BY.search(detail)
    conflicts.default.record(
        kind,
        tag,
        duration_s=time.monotonic() - begun,
        tables=row[2] if row else "",
        key=f"{row[2]} ctid ({row[1]})" if row else "the file" if kind == "busy" else "",
        process=blocker[1] if blocker else "",
        statement=statement,
        error=f"{_state(seen)} {type(seen).__name__}".strip(),
    )


def _of_driver(error: BaseException) -> tuple[conflicts.Kind, BaseException] | None:
    seen: BaseException | None = error
    for _ in range(5):
        if seen is None:
            break
        if (kind := KINDS.get(_state(seen))) is not None:
            return kind, seen
        if isinstance(seen, sqlite3.OperationalError):
            code = getattr(seen, "sqlite_errorcode", 0) & 0xFF
            return ("busy", seen) if code == sqlite3.SQLITE_BUSY else None
        seen = getattr(seen, "orig", None) or seen.__cause__ or seen.__context__
    return None


def _state(error: BaseException) -> str:
    found = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return found if isinstance(found, str) else ""
