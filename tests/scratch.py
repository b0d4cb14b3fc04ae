"""A folder in memory for everything that tests write: databases, servers' data, temporary files.

Each test has databases of its own, of some hundred files on PostgreSQL. On a disk the kernel spends
much processor time on making and removing these, and commits wait. Tests that crash something kill
its processes, never the machine, so what was written survives in memory as well.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # nosec B108
ROOM = 6 * 2**30
"""Bytes that must be free, several times what a run has at once."""
VARIABLE = "TMPDIR"


def has_room(folder: Path) -> bool:
    """Tell whether the folder may take all files of a run, also programs that tests start."""
    try:
        shape = os.statvfs(folder)
        spare = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return False
    free = min(shape.f_bavail * shape.f_frsize, spare)
    return free >= ROOM and not shape.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK)


def use_memory(folder: Path = MEMORY) -> None:
    """Let this process and its children write there, unless `TMPDIR` says another place.

    The first process removes the folder at its end.
    """
    if os.environ.get(VARIABLE) or not has_room(folder):
        return
    made, maker = tempfile.mkdtemp(prefix="late-tests-", dir=folder), os.getpid()
    # A server that runs as another user removes its own folder, as it would in /tmp.
    os.chmod(made, 0o1733)  # nosec B103

    def remove() -> None:
        if os.getpid() == maker:
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    os.environ[VARIABLE] = made
    tempfile.tempdir = None
