"""The disk that a database in a file is on, and the room that the file takes of it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import msgspec
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from late.control.sql.per_shard import EMBEDDED
from late.errors import LateError
from late.schema.engine import reading

GIB = 1024**3
FREE, FREE_GIB = 0.1, 10.0
"""With less free, as a part of the disk and in GiB, it is nearly full."""
MEASURED_MAX = 256 * 2**20
"""The sizes of tables are asked for in files up to this size: the answer reads the whole file."""
NONE = 64 * 1024
"""With less free, in bytes, nothing can be written."""
TABLES = 3
# An index counts for its table.
_SIZES = text("""
select m.tbl_name, sum(d.pgsize) from dbstat d join sqlite_schema m on m.name = d.name
 where d.aggregate = true and m.tbl_name like 'late\\_%' escape '\\'
 group by m.tbl_name order by 2 desc limit :most
""")


class Disk(msgspec.Struct, frozen=True):
    """The bytes of a disk."""

    free: int
    total: int
    mount: str = ""
    """The directory at which it is mounted."""
    file: str = ""
    """The name of the database's file."""
    file_bytes: int | None = None
    """The room that the file and its log take; None if it is not known."""
    tables: tuple[tuple[str, int], ...] = ()
    """The biggest tables of late with their indexes, where the database tells it."""

    @property
    def full(self) -> bool:
        """True if nothing can be written."""
        return self.free < NONE

    @property
    def nearly_full(self) -> bool:
        """True if it has less room than a warning needs."""
        return self.free < min(FREE * self.total, FREE_GIB * GIB)


def disk_of(engine: Engine) -> Disk | None:
    """Return the disk of the database's file; None if it has none, or a server has it: no SQL asks
    for the disk of a server. What fills it is looked for only while it is nearly full."""
    path = engine.url.database
    if engine.dialect.name != EMBEDDED or not path or path.startswith((":", "file:")):
        return None
    file = Path(path).absolute()
    try:
        usage = shutil.disk_usage(file.parent)
    except OSError:
        return None
    disk = Disk(usage.free, usage.total, str(_mount(file.parent)), str(file))
    if not disk.nearly_full:
        return disk
    size = _size(file)
    small = size is not None and size <= MEASURED_MAX
    tables = _tables(engine) if small else ()
    return msgspec.structs.replace(disk, file_bytes=size, tables=tables)


def _mount(folder: Path) -> Path:
    """Return the directory at which the disk of a folder is mounted."""
    return next((each for each in (folder, *folder.parents) if each.is_mount()), folder)


def _size(file: Path) -> int | None:
    """Return the bytes of a database: its file and its log of writes."""
    try:
        size = file.stat().st_size
    except OSError:
        return None
    with suppress(OSError):
        size += file.with_name(f"{file.name}-wal").stat().st_size
    return size


def _tables(engine: Engine) -> tuple[tuple[str, int], ...]:
    """Return the biggest tables; none where SQLite was built without `dbstat`."""
    try:
        with reading(engine) as connection:
            rows = connection.execute(_SIZES, {"most": TABLES}).all()
    except (LateError, SQLAlchemyError):
        return ()
    return tuple((name, int(size)) for name, size in rows)
