"""What is most often set up wrong, made on purpose: the doctor finds each, and nothing in a fleet
that is as it should be."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, insert, update

import late
from late.control import Control
from late.control.doctor import configuration as misconfigured
from late.control.findings.findings import findings
from late.control.status import old_transactions
from late.control.status.snapshot import look
from late.control.views import Check
from late.outbox import connect
from late.schema.engine import make_engine, reading, write
from late.schema.tables import group, lane, lease, schedule, token, worker
from late.store import open_store
from late.tailer.placement import announced
from tests.conformance.kit import own, parked
from tests.integration.control_kit import execute

pytestmark = pytest.mark.usefixtures("fsync_not_asked")

FAR_US = 4_000_000_000_000_000
NAMES = {
    "groups", "releases", "workers", "lanes", "handlers", "knobs", "bounds", "schedules", "tokens",
}  # fmt: skip


def found(url: str) -> dict[str, Check]:
    with Control(url) as control:
        return {check.name: check for check in control.doctor()}


def live(name: str, version: str) -> dict[str, object]:
    return {
        "worker_id": name, "expires_at_us": FAR_US, "started_at_us": 1, "address": "a:1",
        "consumer_groups": '["default"]', "capacity": 1.0, "version": version,
    }  # fmt: skip


def test_a_new_database_has_nothing_to_find(url: str) -> None:
    checks = found(url)
    assert {name for name in NAMES if checks[name].result != "ok"} == set()
    assert checks.get("settings", Check("settings", "ok", "")).result == "ok"


async def test_each_mistake_is_found_and_named(url: str) -> None:
    app = late.App(url, shards=8)

    @app.task
    def note() -> None: ...

    store = open_store(url)
    await store.open()
    owner = await own(store, 0)
    await owner.settle(parked=(parked(await store.now() + 10**9),))
    await store.close()
    execute(url, "update late_timer set reason = 'unknown'")
    with connect(url) as tx:
        app.enqueue_many(tx, [note.call() for _ in range(8)])
    with Control(url) as control:
        control.queues.change("queue", "payments", {"paused": True, "max_backlog": 9})
    engine = make_engine(url)

    def spoil(tx: object) -> None:
        run = tx.execute  # type: ignore[attr-defined]
        run(insert(group), {"name": "forgotten", "created_at_us": 1})
        run(insert(worker), [live("w-1", "0.1.0"), live("w-2", "0.2.0")])
        run(update(lane).values(shards=1))
        run(insert(schedule), {
            "name": "nightly", "shard_id": 0, "rule": "0 0 30 2 *", "zone": "UTC",
            "catch_up": "skip", "catch_up_max": 1, "overlap": "allow", "queue": "q",
            "task_name": "n", "payload": b"{}", "anchor_us": 1, "updated_at_us": 1,
        })  # fmt: skip
        run(insert(token), {
            "name": "shop", "digest": "x", "scopes": '["enqueue"]', "queues": '["*"]',
            "created_at_us": 1, "expires_at_us": 2,
        })  # fmt: skip

    write(engine, spoil)
    engine.dispose()

    checks = found(url)
    assert {name for name in NAMES if checks[name].result == "ok"} == set()
    assert "forgotten (no live worker)" in checks["groups"].detail
    assert "0.1.0, 0.2.0" in checks["releases"].detail
    assert "workers of default share 1 shards" in checks["workers"].detail
    assert "late shards --set 8" in checks["lanes"].detail
    assert "@app.task(aliases=" in checks["handlers"].detail
    assert "queue payments is paused" in checks["knobs"].detail
    assert "max_backlog of queue payments in group forgotten" in checks["bounds"].detail
    assert "nightly will never fire" in checks["schedules"].detail
    assert "shop expired" in checks["tokens"].detail


def test_a_lane_that_no_worker_serves_is_named_with_the_command(url: str) -> None:
    def check(*versions: str, groups: str = '["default"]') -> Check:
        rows = [
            live(f"w-{number}", version) | {"consumer_groups": groups}
            for number, version in enumerate(versions)
        ]

        def change(tx: object) -> None:
            tx.execute(delete(worker))  # type: ignore[attr-defined]
            if rows:
                tx.execute(insert(worker), rows)  # type: ignore[attr-defined]

        engine = make_engine(url)
        write(engine, change)
        engine.dispose()
        return found(url)["lane workers"]

    execute(url, "insert into late_lane (name, first_shard, shards, version)"
                 " values ('bulk', 1024, 2, 0)")  # fmt: skip
    bulk, default = (announced("1", lanes=[name]) for name in ("bulk", "default"))
    good = Check("lane workers", "ok", "every lane has one, or nobody works at all")
    for fine in ([], [announced("1")], [bulk, default], [bulk, announced("1")], [bulk, "0.1.0"]):
        assert check(*fine) == good
        assert found(url)["releases"].result == ("warning" if "0.1.0" in fine else "ok")
    assert check(default, default) == Check(
        "lane workers",
        "warning",
        "no worker serves lane bulk in group default: its tasks stand still. Start late worker "
        "MODULE:APP --lanes bulk, or one without --lanes",
    )
    assert check(bulk, groups='["audit"]').detail == (
        "no worker serves lane default in group audit: its tasks stand still. Start late worker "
        "MODULE:APP --group audit --lanes default, or one without --lanes"
    )


def test_a_paused_schedule_is_named(url: str) -> None:
    row = {
        "name": "nightly", "shard_id": 0, "rule": "0 0 1 1 *", "zone": "UTC", "catch_up": "skip",
        "catch_up_max": 1, "overlap": "allow", "queue": "q", "task_name": "n", "payload": b"{}",
        "anchor_us": 1, "updated_at_us": 1, "paused": 1,
    }  # fmt: skip
    engine = make_engine(url)
    write(engine, lambda tx: tx.execute(insert(schedule), row))
    engine.dispose()
    assert found(url)["knobs"].detail == "schedule nightly is paused. late knobs --history"


def test_what_follows_from_a_lane_without_a_worker_says_so(url: str) -> None:
    def checks(served: str) -> tuple[str, str]:
        def change(tx: object) -> None:
            run = tx.execute  # type: ignore[attr-defined]
            run(delete(worker))
            run(delete(lease))
            run(insert(worker), live("w-1", announced("1", lanes=[served])))
            owned = {"default": range(8), "bulk": (1024, 1025)}[served]
            held = {"consumer_group": "default", "owner": "w-1", "epoch": 1, "taken_at_us": 1}
            run(insert(lease), [held | {"shard_id": each} for each in owned])

        write(engine, change)
        all_checks = found(url)
        return all_checks["leases"].detail, all_checks["schedules"].detail

    engine = make_engine(url)
    with Control(url) as control:
        control.lanes.create("bulk", 2)
    write(engine, lambda tx: tx.execute(insert(schedule), {
        "name": "hourly", "shard_id": 0, "rule": "0 * * * *", "zone": "UTC", "catch_up": "skip",
        "catch_up_max": 1, "overlap": "allow", "queue": "q", "task_name": "n", "payload": b"{}",
        "anchor_us": 1, "updated_at_us": 1, "next_due_at_us": 1,
    }))  # fmt: skip
    leases, schedules = checks("default")
    assert leases.endswith(": the rest has no owner. See lane workers")
    assert schedules.startswith("hourly should have fired: the default group's workers fire them")
    leases, schedules = checks("bulk")
    assert leases.endswith(": the rest has no owner. See lane workers")
    assert schedules == (
        "hourly should have fired: no worker serves the lane default, where they fire: see lane"
        " workers"
    )
    write(engine, lambda tx: tx.execute(delete(lease).where(lease.c.shard_id == 1024)))
    assert "LATE_MEMBERSHIP" in found(url)["leases"].detail, "one of its own lane is free too"
    engine.dispose()


async def test_a_bound_that_nobody_counts_for_is_named_with_the_command(url: str) -> None:
    with Control(url) as control:
        control.queues.change("queue", "mail", {"max_backlog": 10, "key_backlog": 2})
        control.queues.change("queue", "bulk", {"max_backlog": 5, "rate": 1.0})
        control.groups.create("audit", queues=["bulk"], start="now")
        control.groups.create("other", queues=["pay"], start="now")
        control.groups.shadow("trial", of="default", start="now")
        # `other` reads no such queue, and a shadow counts for nobody.
        assert found(url)["bounds"].detail == (
            "no live worker counts for max_backlog of queue bulk in group audit, max_backlog of "
            "queue bulk in group default, max_backlog and key_backlog of queue mail in group "
            "default: what waits there is not counted, and more tasks come in than the bound lets. "
            "Run: late worker MODULE:APP --group audit; late worker MODULE:APP"
        )
        store = open_store(url)
        await store.open()
        await own(store, 1)
        said = found(url)["bounds"].detail
        assert "mail in group default" in said, "a live worker that does not own the lowest shard"
        await own(store, 0)
        control.groups.pause("audit")
        assert found(url)["bounds"].detail.endswith("Run: late group resume audit")
        control.groups.resume("audit")
        await own(store, 0, name="w2", group="audit")
        await store.close()
        assert found(url)["bounds"].result == "warning", "w2 says that it serves default alone"
        execute(url, """update late_worker set consumer_groups = '["audit"]'"""
                     " where worker_id = 'w2'")  # fmt: skip
        assert found(url)["bounds"] == Check(
            "bounds", "ok", "of 2 queues, and a worker counts for each"
        )


async def test_a_worker_of_some_lanes_counts_for_bounds(url: str) -> None:
    with Control(url) as control:
        control.queues.change("queue", "mail", {"max_backlog": 10})
    execute(url, "insert into late_lane (name, first_shard, shards, version)"
                 " values ('bulk', 1024, 2, 0)")  # fmt: skip
    store = open_store(url)
    await store.open()
    await own(store, 1025)
    await store.close()
    assert found(url)["bounds"].result == "warning", "it is not the owner of the lowest shard"
    execute(url, f"update late_worker set version = '{announced('1', lanes=['bulk'])}'")
    assert found(url)["bounds"].result == "ok", "nobody serves what is below"


def test_a_knob_of_another_release_is_a_fault(url: str) -> None:
    with Control(url) as control:
        control.queues.change("queue", "payments", {"rate": 5.0})
    execute(url, """update late_queue set knobs = '{"colour": "red"}'""")
    check = found(url)["knobs"]
    assert check.result == "failed"
    assert "queue payments" in check.detail


def test_a_long_transaction_and_unsafe_settings_are_seen(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "transactions" not in found(url):
        return  # embedded, or one that keeps no connection's transaction
    monkeypatch.setattr(old_transactions, "OLD_S", 0.0)
    monkeypatch.setitem(misconfigured._SETTINGS, "fsync", ("never", "it is on"))
    monkeypatch.setattr(misconfigured, "PER_WORKER", 10**6)
    engine = make_engine(url)
    with engine.connect() as connection, connection.begin():
        connection.execute(update(lane).values(shards=lane.c.shards))
        checks = found(url)
        with Control(url) as control:
            [told] = [each for each in findings(look(control)) if "transaction" in each.what]
    engine.dispose()
    assert "has a transaction open" in checks["transactions"].detail
    assert told.level == "warn"
    assert "idle in transaction. Until it ends" in told.detail
    assert "select pg_terminate_backend(" in told.command
    assert "fsync=o" in checks["settings"].detail
    engine = make_engine(url)
    write(engine, lambda tx: tx.execute(insert(worker), live("w-1", "1")))
    with reading(engine) as connection:
        assert misconfigured._connections(connection).result == "warning"
    engine.dispose()


def test_a_database_that_is_read_only_by_default_is_seen(url: str) -> None:
    if not url.startswith("postgresql"):
        return
    only = f"{url}{'&' if '?' in url else '?'}options=-c%20default_transaction_read_only%3Don"
    check = found(only)["settings"]
    assert check.result == "warning"
    assert "default_transaction_read_only=on: nothing can be enqueued or recorded" in check.detail
