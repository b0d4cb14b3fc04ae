"""Findings about machines: a disk that is nearly full, a clock that is wrong. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from late.control.findings import workers
from late.control.findings.model import Finding
from late.control.findings.phrases import age, size
from late.control.status.disk import GIB, Disk
from late.control.status.snapshot import Snapshot

BAD, BAD_GIB = 0.03, 2.0
"""With less free, as a part of the disk and in GiB, it is an outage that is near."""


def find(seen: Snapshot) -> Iterator[Finding]:
    """Yield what is wrong with the disk of the database and the clocks of the workers."""
    if seen.disk is not None and seen.disk.nearly_full:
        yield _full(seen.disk, unheard=workers.unheard(seen))
    for each in seen.reports:
        off_s = each.report.clock_off_s
        if each.running and off_s:
            way = "behind" if off_s > 0 else "ahead of"
            text = (
                f"It is {age(abs(off_s))} {way} the database's. What is due follows the database,"
                " so nothing runs early; ids and logs follow the machine and do not match others."
                " What helps: set the clock of that machine, as by NTP."
            )
            what = f"The clock of {each.report.address} is wrong"
            yield Finding("warn", what, text, "workers", "late doctor")


def _full(disk: Disk, *, unheard: bool) -> Finding:
    """Say which disk it is, how much room it has, and what takes it."""
    text = (
        f"{size(disk.free)} of {size(disk.total)} are free ({disk.free / disk.total:.1%})"
        f" on {disk.mount}. When it is full nothing can be enqueued or recorded."
    )
    if unheard:
        text += f" {workers.UNHEARD}"
    used = disk.total - disk.free
    others = disk.file_bytes is not None and disk.file_bytes < used / 2
    if disk.file_bytes is not None:
        text += (
            f" The database {disk.file} takes {size(disk.file_bytes)},"
            f" other files take {size(max(0, used - disk.file_bytes))}."
        )
    if disk.tables:
        biggest = ", ".join(f"{name} {size(n)}" for name, n in disk.tables)
        text += f" The biggest tables of late: {biggest}."
    if others:
        text += " What helps: delete or move other files; the command lists the biggest."
    else:
        text += (
            " What a group has not read stays in the log, and so does what a retention keeps: the"
            " command says how long that is."
        )
    near = disk.free < min(BAD * disk.total, BAD_GIB * GIB)
    command = f"du -xah {shlex.quote(disk.mount)} | sort -h | tail" if others else "late retention"
    how = "full" if disk.full else "nearly full"
    what = f"The disk of the database is {how}"
    return Finding("bad" if near else "warn", what, text, "" if others else "groups", command)
