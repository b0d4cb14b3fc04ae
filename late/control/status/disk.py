"""The disk that a database in a file is on."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
from sqlalchemy import Engine

from late.control.sql.per_shard import EMBEDDED


class Disk(msgspec.Struct, frozen=True):
    """The bytes of a disk."""

    free: int
    total: int


def disk_of(engine: Engine) -> Disk | None:
    """Return the disk of the database's file; None if it has none, or a server has it: no SQL asks
    for the disk of a server."""
    path = engine.url.database
    if engine.dialect.name != EMBEDDED or not path or path.startswith((":", "file:")):
        return None
    try:
        usage = shutil.disk_usage(Path(path).parent)
    except OSError:
        return None
    return Disk(usage.free, usage.total)
