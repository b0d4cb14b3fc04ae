"""Histories: what every process of a test did, in files that outlive a SIGKILL.

One JSONL file per process, one `os.write` per event, appended: what was written before the
process was killed is in the kernel's hands. Never in the database under test, which could lose
the proof together with the task.

`t` is `CLOCK_MONOTONIC`, which all processes of one machine share: events of different files can
be put into one order. `tests.support.checker` judges the result.

Source: the invoke/ok/fail/info life of an operation is that of Jepsen's histories.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

Kind = Literal[
    "enqueue", "commit", "exec_start", "exec_end", "settle", "expire", "lease", "fault", "depth",
    "drain_begin", "drain_end",
]  # fmt: skip
Type = Literal["invoke", "ok", "fail", "info"]


class Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One event. Which fields mean something depends on `f`."""

    t: int
    """Nanoseconds of the monotonic clock."""
    p: str
    """The process: its id as a text, or a name in a simulation."""
    f: Kind
    type: Type = "ok"
    """`info`: the outcome is not known, as when the answer to a COMMIT was lost."""
    task: str = ""
    tx: str = ""
    """enqueue, commit: the producer's transaction. What is not committed is rolled back."""
    group: str = "default"
    shard: int = -1
    epoch: int = 0
    attempt: int = 0
    at_us: int = 0
    """By the database's clock. enqueue: not to start before; exec_start: when it started."""
    n: int = 0
    """depth: how many tasks of the shard wait."""
    word: str = ""
    """exec_end: the outcome (`done`, `failed`, ...); fault: `kill`, `stop`, `cut`, ..."""
    target: str = ""
    """fault: the process that it was done to; empty: all of them, or the database."""


class Recorder:
    """Appends events of this process to a file of its own below `folder`.

    Safe to use from several threads (a write in append mode is one step) and after a fork.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._files: dict[int, int] = {}
        self._encode = msgspec.json.Encoder().encode

    def write(self, f: Kind, type: Type = "ok", **fields: Any) -> None:
        """Record one event, now. It is safe from a SIGKILL as soon as this returns."""
        pid = os.getpid()
        file = self._files.get(pid)
        if file is None:
            path = self._folder / f"{pid}.jsonl"
            file = self._files[pid] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        event = Event(time.monotonic_ns(), str(pid), f, type, **fields)
        os.write(file, self._encode(event) + b"\n")


def read(folder: Path | str) -> list[Event]:
    """All events of all files below `folder`, in the order of time.

    The last line of a file is left out if its process was killed within the write.

    Raises:
        msgspec.DecodeError: a line that is not the last one is damaged.
    """
    decode = msgspec.json.Decoder(Event).decode
    events: list[Event] = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        events += [decode(line) for line in whole.splitlines() if line]
    events.sort(key=lambda event: event.t)
    return events
