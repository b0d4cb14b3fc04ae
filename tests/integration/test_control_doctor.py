"""Each finding of the doctor, made on purpose."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import psycopg
import pytest

from late.control import Control
from late.control.doctor import doctor
from late.control.views import Check
from late.schema.tables import timer
from late.store import open_store
from late.store.base import WorkerInfo
from tests.conformance.kit import dead, own, parked
from tests.integration import postgres_kit
from tests.integration.control_kit import execute, rekey

pytestmark = pytest.mark.usefixtures("fsync_not_asked")


def checks_of(url: str) -> dict[str, Check]:
    with Control(url) as control:
        return {check.name: check for check in control.doctor()}


async def test_a_healthy_database_has_no_fault(url: str) -> None:
    store = open_store(url)
    await store.open()
    for shard in range(8):
        owner = await own(store, shard)
        await owner.settle()
    checks = checks_of(url)
    await store.close()
    assert [check for check in checks.values() if check.result == "failed"] == []
    assert checks["leases"].result == "ok"
    assert checks["leases"].detail == "1 live workers hold 8 of 8 (group, shard)"
    assert checks["journal"].detail == "8 journals without a hole"
    assert {"versions", "server", "clock", "connection", "schema", "guards"} <= checks.keys()
    assert "late-queue " in checks["versions"].detail


DAMAGE: dict[str, tuple[str, str, str]] = {
    "a hole": ("delete from late_settlement where seq = 2", "journal", "has a hole between"),
    "an epoch back": ("update late_settlement set epoch = 9 where seq = 2", "journal", "goes back"),
    "a lease behind": ("update late_lease set epoch = 0", "journal", "its lease has 0"),
    "open unreadable": ("update late_settlement set open = '{'", "journal", "unreadable `open`"),
    "no journal": ("delete from late_settlement", "journal", "lease and no settlement"),
    "a clock that went back": (
        "update late_settlement set settled_at_us = settled_at_us + 600000000",
        "times",
        r"went back by (600|5\d\d) s at least",
    ),
    "dead owner": ("update late_lease set owner = 'gone'", "leases", "dead workers"),
    "no worker": ("delete from late_worker", "leases", "no live worker"),
    "free shards": ("delete from late_lease", "leases", "the rest has no owner"),
    "overdue": ("", "timers", "default/0, is overdue by"),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_is_found(url: str, damage: str) -> None:
    statement, name, words = DAMAGE[damage]
    store = open_store(url)
    await store.open()
    owner = await own(store, 0)
    due = await store.now() + 10**9
    for _ in range(3):
        await owner.settle()
    await owner.settle(parked=(parked(due),), dead=(dead(),))
    await store.close()
    if statement:
        execute(url, statement)
    else:  # the due time is part of the key
        rekey(url, timer, lambda row: {"due_at_us": 5})
    checks = checks_of(url)
    assert checks[name].result in ("warning", "failed"), checks[name]
    assert re.search(words, checks[name].detail), checks[name]
    assert checks["dead letters"].result == "warning"


async def test_shards_without_owner_name_the_list_of_members_as_a_cause(url: str) -> None:
    """No worker is on its list: the database shows live workers and nothing else."""
    store = open_store(url)
    await store.open()
    for name in ("Web-2.local", "web-1"):
        await store.heartbeat(WorkerInfo(name, f"{name}:71", ("default",)), 60.0)
    await store.close()
    detail = checks_of(url)["leases"].detail
    assert "LATE_MEMBERSHIP" in detail
    assert "(web-1, web-2.local)" in detail, "as a list would have to name them"
    assert "not_a_member" in detail


async def test_tables_that_somebody_holds_keep_the_store_unopened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def guards(url: str) -> Check:
        raise AssertionError("it waits a minute for the tables")

    monkeypatch.setattr(doctor, "_guards", guards)
    with postgres_kit.database() as url, psycopg.connect(url) as rival:
        store = open_store(url)
        await store.open()
        await (await own(store, 0)).settle()
        await store.close()
        rival.execute("lock table late_settlement in access exclusive mode")
        checks = checks_of(url)
        assert checks["guards"] == Check(
            "guards", "warning", "not looked at, as the tables do not answer"
        )
        assert checks["tables"].result == "failed"


async def test_the_biggest_tables_are_named_with_what_empties_them() -> None:
    with postgres_kit.database() as url, psycopg.connect(url, autocommit=True) as service:
        service.execute("create table late_night_shop as select 1")  # It counts, and has no advice.
        service.execute("create schema other; create table other.late_task (note text)")
        service.execute(
            "insert into other.late_task select repeat('x', 100) from generate_series(1, 20000)"
        )
        store = open_store(url)
        await store.open()
        await store.close()
        service.execute(
            "insert into late_audit (audit_id, at_us, actor, action, subject)"
            " select n::text, n, 'me', 'x', repeat('x', 200) from generate_series(1, 3000) n"
        )
        found = checks_of(url)["sizes"]
        assert found.result == "ok"
        assert re.search(
            r"late has [\d.,]+ [KM]iB of [\d.,]+ MiB of the database: late_audit", found.detail
        )
        assert "(who has changed what)" in found.detail
        assert "the log: `late retention`" in found.detail


def test_the_stores_refusal_is_reported(url: str) -> None:
    checks_of(url)  # the first look writes the identity
    execute(url, "update late_meta set value = 'another' where key = 'identity'")
    guards = checks_of(url)["guards"]
    assert guards.result == "failed"
    assert "refuse" in guards.detail


def test_a_clock_that_is_off_is_seen(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The doctor's own look at the clock only: a driver's deadlines count from the same one.
    off = SimpleNamespace(time=lambda: time.time() - 3600)
    monkeypatch.setattr(doctor, "time", off)
    clock = checks_of(url)["clock"]
    assert clock.result == "warning"
    seen = re.search(r"database is ([+-]\d+\.\d+) s", clock.detail)
    assert seen is not None
    # SQLite's clock shows whole milliseconds: it may be just short of an hour.
    assert float(seen[1]) == pytest.approx(3600, abs=1.0)
