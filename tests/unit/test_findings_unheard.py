"""What is found where workers cannot write their heartbeats, and so none is listed."""

from __future__ import annotations

from typing import Any

import msgspec

from late.control.findings.findings import findings
from late.control.status.disk import Disk
from late.control.status.snapshot import Snapshot
from late.control.views import Count
from tests.unit.test_web_views import group, seen, shard

WAITS = group(workers=0, lag=Count(3), lag_s=9.0, lagging=False)
ALONE = shard(owner_live=False, lag=Count(3))


def silent(**changes: Any) -> Snapshot:
    return msgspec.structs.replace(seen(groups=(WAITS,), shards=(ALONE,), workers=()), **changes)


def test_without_a_worker_nothing_runs() -> None:
    whats = {each.what for each in findings(silent())}
    assert {"No worker is alive", "Nobody works group default"} <= whats


def test_a_held_write_lock_stands_in_place_of_workers_that_cannot_be_heard() -> None:
    disk = Disk(2**40, 2**41, "/", "/srv/late q.db")
    first, *rest = findings(silent(write_locked=True, disk=disk))
    assert (first.level, first.what) == (
        "bad",
        "A process holds the write lock of the database's file",
    )
    assert "Workers cannot write their heartbeats" in first.detail
    assert first.command == "fuser -v '/srv/late q.db'"
    assert not [each for each in rest if "worker" in each.what or "Nobody" in each.what]


def test_a_full_disk_says_why_no_worker_is_heard_and_one_with_room_does_not() -> None:
    full = Disk(0, 2**33, "/srv", "/srv/late.db", 2**20)
    [found] = [each for each in findings(silent(disk=full)) if each.level == "bad"]
    assert found.what == "The disk of the database is full"
    assert "Workers cannot write their heartbeats" in found.detail
    heard = findings(msgspec.structs.replace(seen(groups=(group(),)), disk=full))
    assert "heartbeats" not in heard[0].detail
    nearly = msgspec.structs.replace(full, free=2**20)
    assert "No worker is alive" in {each.what for each in findings(silent(disk=nearly))}


def test_workers_that_are_heard_make_a_held_lock_no_finding() -> None:
    assert findings(msgspec.structs.replace(seen(groups=(group(),)), write_locked=True)) == []
