"""SQLite databases for tests: copies of one that each process migrates once.

A copy takes a hundredth of the processor time of a migration.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

from late.schema import migrate


def database(path: Path) -> str:
    """Return the URL of a database with the current schema; a file that is there stays as it is."""
    if not path.exists():
        shutil.copyfile(_template(), path)
    return f"sqlite:///{path}"


@cache
def _template() -> Path:
    """No store has opened it, so no identity is in it yet."""
    made = Path(tempfile.mkdtemp(prefix="late-template-")) / "template.db"
    migrate.upgrade(f"sqlite:///{made}")
    with closing(sqlite3.connect(made)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    return made


def forget_template() -> None:
    """Remove what was made once for the whole run."""
    if _template.cache_info().currsize:
        shutil.rmtree(_template().parent, ignore_errors=True)
        _template.cache_clear()
