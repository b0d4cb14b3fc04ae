"""Measures the memory of a child and of the processes that it has started, for
`process_memory_mb`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
SESSION, RESIDENT_PAGES = 3, 21
"""Places in `/proc/PID/stat` behind the name. Source: proc(5), fields 6 and 24."""


def memory_mb(session: int, proc: Path = PROC) -> float:
    """Return the resident memory of all processes of a session in MB; 0 where the system does not
    tell. Each child of the parent has a session of its own, with its child processes.

    What two processes share counts twice: the children of a worker are not forked, so they share
    the pages of libraries and no others.
    """
    pages = 0
    for process in proc.glob("[0-9]*"):
        with suppress(OSError):  # It has ended meanwhile.
            # The name is in parentheses, and may have spaces and parentheses itself.
            stat = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(stat[SESSION]) == session:
                pages += int(stat[RESIDENT_PAGES])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1_000_000
