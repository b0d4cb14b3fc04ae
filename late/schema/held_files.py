"""The files of SQLite that the stores of this process have open.

A file can be replaced under a process: moved away, deleted and made again, or renamed over. What
has it open goes on with the old file, and each new connection gets the new one. A worker would read
tasks in one file and record their effects in the other. So a store that opens a file holds it here,
and every new connection of this process to that path is refused while it leads to another file.
A check costs one `stat`.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from late.errors import DatabaseReplaced

FileId = tuple[int, int]
"""The device and the inode."""

_lock = threading.Lock()
held: dict[str, tuple[FileId, int]] = {}
"""The file that is open under each path, and the number of those that hold it."""


def file_id(path: str | Path) -> FileId | None:
    """Return the identity of the file that has this name now; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def hold(path: str | Path) -> FileId | None:
    """Hold the file at `path`; `release` ends that. Several may hold it.

    Returns:
        The file that is held. None, and it is not held: there is no file, or its file system has no
        inode numbers, so that nothing can be compared.

    Raises:
        DatabaseReplaced: another file is held under this name.
    """
    name, file = os.path.abspath(path), file_id(path)
    if file is None or not file[1]:
        return None
    with _lock:
        known, holders = held.get(name, (file, 0))
        if known != file:
            raise _replaced(name)
        held[name] = file, holders + 1
    return file


def release(path: str | Path) -> None:
    """End one `hold` that has returned a file."""
    name = os.path.abspath(path)
    with _lock:
        file, holders = held[name]
        if holders > 1:
            held[name] = file, holders - 1
        else:
            del held[name]


def listed() -> dict[str, FileId]:
    """Return what is held, for `inherit` in a child process."""
    with _lock:
        return {name: file for name, (file, _) in held.items()}


def inherit(files: dict[str, FileId]) -> None:
    """Hold what the parent of this process holds, for good."""
    with _lock:
        held.update({name: (file, 1) for name, file in files.items()})


READ_ONLY = (
    "; this process may not write the file, or its folder, where SQLite keeps the -wal and -shm"
    " beside it: see whose they are (ls -l), and chown them to its user"
)
"""The advice for SQLITE_READONLY, as after a restore by another user."""


def missing(path: str | Path) -> str:
    """Say that there is no such file, and where it was looked for."""
    if os.path.isabs(path):
        return f"no database file {path}: run `late migrate sqlite:///{path}` to make it"
    return (
        f"no database file {os.path.abspath(path)}: the URL sqlite:///{path} is relative to the"
        f" folder of the process. Start in the folder of the file, or give its whole path"
        f" (sqlite:////...); `late migrate sqlite:///{path}` makes a new one here"
    )


def check(path: str | Path) -> None:
    """Refuse a path that leads to another file than the held one, or to none.

    Call it when a connection is open and before its first statement: in the other order the file
    could be replaced in between.

    Raises:
        DatabaseReplaced: see above.
    """
    if not held:  # Most processes are producers.
        return
    name = os.path.abspath(path)
    found = held.get(name)
    if found is not None and file_id(name) != found[0]:
        raise _replaced(name)


def _replaced(name: str) -> DatabaseReplaced:
    return DatabaseReplaced(
        f"the file {name} was replaced or moved while this process had it open. Stop every process"
        f" that uses it; if it is a restored copy, run `late rebase sqlite:///{name}`; then start"
        " again"
    )
