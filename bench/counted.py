"""Runs the command `late` and counts the statements that its drivers are given.

`python -m bench.counted FILE worker module:app` writes the counts to FILE at the end. The hook
costs time, so counted runs are never timed ones. What counts as one: a call of `execute`,
`executemany` or `copy` of psycopg; a statement that SQLite's trace hook reports, PRAGMAs included.
"""

from __future__ import annotations

import atexit
import json
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

counts: Counter[str] = Counter()


def verb(statement: object) -> str:
    """The first word of a statement, in lower case."""
    text = statement.decode() if isinstance(statement, bytes) else str(statement)
    return (text.strip().lstrip("(").split(None, 1) or ["?"])[0].lower()[:20]


def hook_sqlite() -> None:
    connect = sqlite3.connect

    def counting(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(lambda statement: counts.update([verb(statement)]))
        return connection

    setattr(sqlite3, "connect", counting)  # noqa: B010 - an overloaded function has no one type


def hook_psycopg() -> None:
    try:
        import psycopg
    except ModuleNotFoundError:
        return
    for cursor in (psycopg.Cursor, psycopg.AsyncCursor):
        for name in ("execute", "executemany", "copy"):
            _wrap(cursor, name)


def _wrap(cursor: type, name: str) -> None:
    inner = getattr(cursor, name)

    def counting(self: Any, statement: Any, *args: Any, **kwargs: Any) -> Any:
        counts.update([verb(statement)])
        return inner(self, statement, *args, **kwargs)

    setattr(cursor, name, counting)


def main() -> None:
    target = Path(sys.argv[1])
    hook_sqlite()
    hook_psycopg()
    atexit.register(lambda: target.write_text(json.dumps(counts)))
    from late.cli import main as late_main

    sys.argv = ["late", *sys.argv[2:]]
    late_main()


if __name__ == "__main__":
    main()
