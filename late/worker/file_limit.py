"""The limit of open files of this process: connections, handlers and the database share it."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("late.worker")

ENOUGH = 65_536
"""More is not asked for, since some programs walk through all possible files."""
FEW = 4_096


def file_limit() -> int:
    """The number of files that this process may have open."""
    if sys.platform == "win32":
        return ENOUGH
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENOUGH if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> None:
    """Raise the limit as far as this process may, and say it once if it stays low."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if file_limit() < FEW:
        logger.warning(
            "this process may open only %d files, so it serves fewer connections: give it %d",
            file_limit(),
            FEW,
        )
