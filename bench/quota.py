"""Processes that may use a part of a processor only, by Linux's control groups."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
"""Short: with the usual 100 ms a process would stand still for half of it."""


class NoQuota(Exception):
    """This machine has no control groups that we may make."""


@contextlib.contextmanager
def held(cores: float) -> Iterator[Callable[[int], None]]:
    """What `yield`s puts a process, by its id, where it has `cores` of processor time a second.
    It has to be gone when the block ends.

    Raises:
        NoQuota: there is no controller of processor time, or it is not ours to use.
    """
    name, quota_us = f"late-bench-{os.getpid()}-{time.monotonic_ns()}", round(cores * PERIOD_US)
    old = ROOT / "cpu"  # version 1 has a tree per controller
    group = (old if old.is_dir() else ROOT) / name
    try:
        group.mkdir()
        try:
            if old.is_dir():
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        except OSError:
            group.rmdir()
            raise
    except OSError as error:
        raise NoQuota(str(error)) from error

    def put(pid: int) -> None:
        (group / "cgroup.procs").write_text(str(pid))

    try:
        yield put
    finally:
        group.rmdir()
