"""Findings on a database that answers, and refuses."""

from __future__ import annotations

import msgspec

from late.control.findings.findings import findings
from tests.unit.test_findings import reported
from tests.unit.test_web_views import NOW_US, seen


def test_a_database_that_refuses_settlements_is_named_with_its_error() -> None:
    full = "PostgreSQL: could not extend file: No space left on device (53100)"
    waits = reported(settling_since_us=NOW_US - 40_000_000, unrecorded=12, settling_error=full)
    [found] = findings(msgspec.structs.replace(seen(), reports=(waits,)))
    assert found.what == "The database refuses the settlements of 1 workers"
    assert found.detail == (
        f"host:1, for 40 s: {full}. 12 ends of tasks are not recorded: the death of a worker "
        "repeats its part of them, so do not restart it. What helps: free space on the disk of the "
        "database; they are then recorded."
    )


def test_settlements_that_are_refused_are_named_with_the_missing_right() -> None:
    denied = "StoreRefused: PostgreSQL: permission denied for table late_dead (42501)"
    [found] = findings(msgspec.structs.replace(seen(), reports=(reported(refusal=denied),)))
    assert found.what == "The database refuses settlements of 1 workers"
    assert found.detail.startswith(f"host:1: {denied}. What such a shard has run is kept for ten")
    assert (found.level, found.command) == ("bad", "late roles sql")
    row = reported(refusal="StoreError: PostgreSQL: new row violates check constraint (23514)")
    [found] = findings(msgspec.structs.replace(seen(), reports=(row,)))
    assert found.command == "late doctor"
