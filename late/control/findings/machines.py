"""Findings about machines: a disk that is nearly full, a clock that is wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from late.control.findings.model import Finding
from late.control.findings.phrases import age
from late.control.status.snapshot import Snapshot

GIB = 1024**3
FREE, FREE_GIB = 0.1, 10.0
"""With less free, as a part of the disk and in GiB, it is a warning."""
BAD, BAD_GIB = 0.03, 2.0
"""With less it is an outage that is near."""


def find(seen: Snapshot) -> Iterator[Finding]:
    """Yield what is wrong with the disk of the database and the clocks of the workers."""
    disk = seen.disk
    if disk is not None and disk.free < min(FREE * disk.total, FREE_GIB * GIB):
        part = disk.free / disk.total
        text = (
            f"{disk.free / GIB:.1f} of {disk.total / GIB:.1f} GiB are free ({part:.1%}). When it is"
            " full nothing can be enqueued or recorded. What a group has not read stays in the log."
        )
        near = disk.free < min(BAD * disk.total, BAD_GIB * GIB)
        what = "The disk of the database is nearly full"
        yield Finding("bad" if near else "warn", what, text, "groups", "late retention")
    for each in seen.reports:
        off_s = each.report.clock_off_s
        if each.fresh and off_s:
            way = "behind" if off_s > 0 else "ahead of"
            text = (
                f"It is {age(abs(off_s))} {way} the database's. What is due follows the database,"
                " so nothing runs early; ids and logs follow the machine and do not match others."
                " What helps: set the clock of that machine, as by NTP."
            )
            what = f"The clock of {each.report.address} is wrong"
            yield Finding("warn", what, text, "workers", "late doctor")
