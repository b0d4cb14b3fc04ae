"""The record of every run, outside of the database under test; no crash can undo it.

Each process appends to a file of its own, one line per event in one `write`: what it wrote is in
the kernel's hands and survives its SIGKILL.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import late

VARIABLE = "FULFILMENT_WITNESS"

_files: dict[int, int] = {}


@dataclass(frozen=True, slots=True)
class Run:
    """One event of one run of one task."""

    event: Literal["start", "done", "fail"]
    step: str
    trip: int
    task: str
    attempt: int
    at_ns: int
    """The time of writing, by this machine's monotonic clock."""
    pid: int
    parent: int


def _write(run: dict[str, object]) -> None:
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return
    pid = os.getpid()
    if pid not in _files:  # a forked child must not write to its parent's file
        path = Path(folder) / f"{pid}.jsonl"
        _files[pid] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    run |= {"at_ns": time.monotonic_ns(), "pid": pid, "parent": os.getppid()}
    os.write(_files[pid], json.dumps(run).encode() + b"\n")


@contextmanager
def witnessed(context: late.Context | late.AsyncContext, step: str, trip_id: int) -> Iterator[None]:
    """Record that the step started, and whether it was done or failed."""
    run: dict[str, object] = {
        "step": step,
        "trip": trip_id,
        "task": context.task_id,
        "attempt": context.attempt,
    }
    _write(run | {"event": "start"})
    try:
        yield
    except BaseException:
        _write(run | {"event": "fail"})
        raise
    _write(run | {"event": "done"})


class Reader:
    """Reads what came since the last call, from all files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.runs: list[Run] = []
        """Everything read so far."""

    def read(self) -> list[Run]:
        """Return new runs; a line whose write is still under way waits for the next call."""
        fresh: list[Run] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            fresh += [Run(**json.loads(line)) for line in whole.splitlines()]
        self.runs += fresh
        return fresh
