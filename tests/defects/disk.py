"""Defects in what is handed out before it is on disk, and after a crash of the server."""

from __future__ import annotations

import contextlib
from typing import Any

from late.errors import PlaceInDoubt
from late.store.postgres.disk_gate import DiskGate
from late.store.postgres.tail import PostgresTail
from late.tailer.lease_keeper import LeaseKeeper
from tests.defects.components import replace
from tests.defects.defect import Defect

GATE = "tests/integration/test_postgres_disk_gate.py::"


def asynchronous_at_once() -> None:
    """A task starts although its transaction did not wait for the disk."""

    async def durable_pages(self: Any, *pages: Any, waits: bool) -> Any:
        return await old(self, *pages, waits=False)

    old = replace(PostgresTail, "_durable_pages", durable_pages)


def crash_unnoticed() -> None:
    """After a crash of the server the log is read on from the cursors in memory."""

    async def check(self: Any, connection: Any) -> None:
        with contextlib.suppress(PlaceInDoubt):
            await old(self, connection)

    old = replace(DiskGate, "check", check)


def doubt_unheeded() -> None:
    """A worker that hears of a crash goes on with what it has in memory."""
    replace(LeaseKeeper, "drop_all", lambda self: None)


DEFECTS = (
    Defect(
        "disk-asynchronous", "a task starts whose transaction is not on disk",
        asynchronous_at_once, GATE + "test_a_task_of_a_commit_that_does_not_wait_does",
        r"assert ",
    ),
    Defect(
        "disk-crash", "a cursor in memory is used after a crash of the server",
        crash_unnoticed, GATE + "test_after_a_crash_the_places_in_memory_are_in_doubt",
        r"DID NOT RAISE",
    ),
    Defect(
        "disk-doubt", "a worker keeps what it has in memory when the server has crashed",
        doubt_unheeded, GATE + "test_a_worker_reads_its_shards_anew_after_a_crash",
        r"TimeoutError",
    ),
)  # fmt: skip
