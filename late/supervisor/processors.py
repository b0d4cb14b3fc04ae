"""Counts the processors that this process may use, for `--processes auto`."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup/cpu.max")
"""The limit of a container: quota and period in microseconds, or `max`. Source: the kernel's
admin-guide/cgroup-v2."""


def processors(limit: Path = CGROUP) -> int:
    """Return how many processors this process may use, at least 1: those that it may run on, and
    no more than its container's limit, rounded up."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = limit.read_text().split()
        allowed = math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or `max`
        allowed = mine or 1
    return max(1, min(mine or 1, allowed))
