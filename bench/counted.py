"""Runs the command `late` and counts the statements that its drivers are given.

`python -m bench.counted FILE worker module:app` writes the counts to FILE every half second and at
the end. The hook costs time, so counted runs are never timed ones. What counts as one: a call of
`execute`, `executemany` or `copy` of psycopg; a statement that SQLite's trace hook reports, PRAGMAs
included; a call to Spanner's API, and each value of a row that a commit there writes (`mutation`).
"""

from __future__ import annotations

import atexit
import json
import os
import sqlite3
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

counts: Counter[str] = Counter()
EVERY_S = 0.5


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


def hook_spanner() -> None:
    try:
        from late.store.spanner.grpc_calls import GrpcCall
    except ModuleNotFoundError:
        return
    inner = GrpcCall.__init__

    def counting(self: Any, pool: Any, method: str, request: Any, *args: Any) -> None:
        counts.update([method.rpartition("/")[2]])
        for mutation in getattr(request, "mutations", ()):
            counts["mutation"] += values_in(getattr(mutation, "_pb", mutation))
        inner(self, pool, method, request, *args)

    setattr(GrpcCall, "__init__", counting)  # noqa: B010 - a method cannot be assigned


def values_in(mutation: Any) -> int:
    """Count the values that a mutation writes; a deleted range counts as one."""
    write = getattr(mutation, mutation.WhichOneof("operation"))
    return len(write.columns) * len(write.values) if hasattr(write, "columns") else 1


def _wrap(cursor: type, name: str) -> None:
    inner = getattr(cursor, name)

    def counting(self: Any, statement: Any, *args: Any, **kwargs: Any) -> Any:
        counts.update([verb(statement)])
        return inner(self, statement, *args, **kwargs)

    setattr(cursor, name, counting)


def _write(target: Path) -> None:
    draft = target.with_name(f"{target.name}.draft")
    draft.write_text(json.dumps(dict(counts)))
    os.replace(draft, target)


def _keep_writing(target: Path) -> None:
    while True:
        time.sleep(EVERY_S)
        _write(target)


def main() -> None:
    target = Path(sys.argv[1])
    hook_sqlite()
    hook_psycopg()
    hook_spanner()
    atexit.register(_write, target)
    threading.Thread(target=_keep_writing, args=(target,), daemon=True).start()
    from late.cli import main as late_main

    sys.argv = ["late", *sys.argv[2:]]
    late_main()


if __name__ == "__main__":
    main()
