"""Is this database fit for `late`, and does what it holds make sense?

Each check is one line with a result. `failed` means that workers will not start or that a promise
is in danger; `warning` means that someone should look. No check changes anything, except that a
store's first opening writes the database's identity, as any worker would.
"""

from __future__ import annotations

import asyncio
import platform
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from itertools import pairwise
from typing import Literal

from sqlalchemy import Connection, Engine, func, select

from late.config import member_name
from late.control.doctor import configuration, lane_workers
from late.control.findings.findings import findings
from late.control.groups.shadow import names_of
from late.control.lanes import lanes
from late.control.sql import beyond_cursor
from late.control.sql.last_settlement import Journal, journals
from late.control.sql.rows import COCKROACH, SPANNER, now_us, open_of, seconds
from late.control.sql.shards import groups_of, survey
from late.control.status.disk import disk_of
from late.control.status.snapshot import Snapshot
from late.control.status.write_lock import is_held
from late.control.views import Check
from late.errors import LateError, StoreError
from late.schema.engine import reading, shown
from late.schema.migrate import check_schema
from late.schema.tables import dead, lease, schedule, settlement, timer, worker
from late.schema.version import SCHEMA_VERSION

CLOCK_OFFSET_S = 1.0
OPEN_MAX = 2_000
"""The bound on `open`: beyond it an owner would have had to forget something."""
OVERDUE_S = 60.0
JOURNAL_ROWS = 1_000
"""Rows of each shard's journal that are checked for holes."""
NAMES_SHOWN = 5
SQLITE_WAL_FIXED = (3, 51, 3)


def examine(engine: Engine, url: str, look: Callable[[], Snapshot]) -> list[Check]:
    """Make all checks, in the order in which they build on each other, and last what the overview
    finds in a `look`.

    The first failure of a connection or a schema ends the list, because nothing after it could be
    judged.
    """
    found = [_versions()]
    try:
        with reading(engine) as connection:
            found += _server(connection)
            found.append(_clock(connection))
            found.append(Check("connection", "ok", shown(url)))
            found.append(_schema(connection))
    except LateError as error:
        return [*found, Check("connection", "failed", str(error))]
    if found[-1].result == "failed":
        return found
    place, unread = len(found), False
    try:
        with reading(engine) as connection:
            for part in (
                _leases,
                _times,
                _journals,
                lanes.draining,
                _overdue,
                _dead_letters,
                configuration.examine,
            ):
                found += list(part(connection))
    except LateError as error:
        unread = True
        found.append(Check("tables", "failed", str(error)))
    try:
        seen = look()
        unread = unread or seen.partial
        found += _findings(seen)
    except LateError as error:
        found.append(Check("attention", "failed", str(error)))
    # Where somebody holds the tables the store waits a minute for them, and nothing is learnt.
    held = Check("guards", "warning", "not looked at, as the tables do not answer")
    found.insert(place, held if unread else _guards(url))
    return found


def _findings(seen: Snapshot) -> Iterator[Check]:
    found = findings(seen)
    for each in found:
        text = f"{each.what}. {each.detail}"
        yield Check("attention", "warning", f"{text} Run: {each.command}" if each.command else text)
    if not found:
        yield Check("attention", "ok", "the overview has nothing to show")


def _versions() -> Check:
    names = ("late-queue", "sqlalchemy", "psycopg", "google-cloud-spanner")
    packages = ", ".join(f"{name} {_version(name)}" for name in names)
    return Check("versions", "ok", f"python {platform.python_version()}, {packages}")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _server(connection: Connection) -> Iterator[Check]:
    version = tuple(connection.dialect.server_version_info or ())
    text = ".".join(map(str, version))
    if connection.dialect.name == "postgresql":
        yield Check("server", "ok", f"PostgreSQL {text}")
    elif connection.dialect.name == SPANNER:
        yield Check("server", "ok", "Cloud Spanner, GoogleSQL")
    elif connection.dialect.name == COCKROACH:
        yield Check(
            "server",
            "warning",
            "CockroachDB: this store is experimental, it has never been run on a real node; see "
            "docs/stores.md",
        )
    elif version < SQLITE_WAL_FIXED:
        yield Check(
            "server",
            "warning",
            f"SQLite {text}: two connections that checkpoint and write at the same moment may "
            "corrupt the file (fixed in 3.51.3): upgrade SQLite, keep backups",
        )
    else:
        yield Check("server", "ok", f"SQLite {sqlite3.sqlite_version}")


def _clock(connection: Connection) -> Check:
    """The offset of this machine's clock from the database's: for people, who compare logs."""
    before = time.time()
    database = now_us(connection) / 1_000_000
    after = time.time()
    offset = database - (before + after) / 2
    detail = f"database is {offset:+.3f} s from this machine, give or take {after - before:.3f} s"
    if abs(offset) <= CLOCK_OFFSET_S + (after - before):
        return Check("clock", "ok", detail)
    return Check(
        "clock", "warning", detail + "; due times follow the database, ids and logs this machine"
    )


def _schema(connection: Connection) -> Check:
    try:
        found = check_schema(connection, where="this database")
    except LateError as error:
        return Check("schema", "failed", str(error))
    newer = "" if found == SCHEMA_VERSION else f", newer than {SCHEMA_VERSION} and takes this late"
    return Check("schema", "ok", f"version {found}{newer}")


def _guards(url: str) -> Check:
    """Check what every worker's start refuses: a standby, a copy, an unsafe setting."""

    async def opened() -> None:
        from late.store import open_store

        store = open_store(url)
        try:
            await store.open()
        finally:
            await store.close()

    try:
        # In a thread of its own: the caller may be a coroutine, whose loop cannot run another.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(opened())).result()
    except LateError as error:
        return Check("guards", "failed", f"workers refuse to start: {error}")
    except Exception as error:
        # Rows that somebody damaged may break a store in ways it does not expect: a finding too.
        return Check("guards", "failed", f"workers fail at start: {type(error).__name__}: {error}")
    return Check("guards", "ok", "the store opens")


def _leases(connection: Connection) -> Iterator[Check]:
    now = now_us(connection)
    named = select(worker.c.worker_id, worker.c.address).where(worker.c.expires_at_us > now)
    live = {row.worker_id: row.address for row in connection.execute(named)}
    there = survey(connection)
    used, shadows = there.used, names_of(connection)
    groups = [name for name in groups_of(connection) if name not in shadows]
    rows = connection.execute(select(lease))
    leases = [row for row in rows if row.shard_id in used and row.consumer_group in groups]
    held = [row for row in leases if row.owner in live]
    stale = [row for row in leases if row.owner is not None and row.owner not in live]
    expected = len(used) * len(groups)
    detail = f"{len(live)} live workers hold {len(held)} of {expected} (group, shard)"
    result: Literal["ok", "warning"] = "ok"
    if not live:
        result, detail = "warning", f"{_no_worker(connection.engine)} ({detail})"
    elif stale:
        first = stale[0]
        result, detail = (
            "warning",
            f"{detail}; {len(stale)} belong to dead workers, the first is "
            f"{first.consumer_group}/{first.shard_id} of {first.owner}",
        )
    elif len(held) < expected:
        alone = set(lane_workers.unserved(connection))
        free = {(name, shard_id) for name in groups for shard_id in used}
        free -= {(row.consumer_group, row.shard_id) for row in held}
        explained = all((there.layout.lane_of(shard_id), name) in alone for name, shard_id in free)
        advice = "See lane workers" if explained else _unowned(live.values())
        result, detail = "warning", f"{detail}: the rest has no owner. {advice}"
    yield Check("leases", result, detail)


def _no_worker(engine: Engine) -> str:
    """Say what it means that no worker is listed."""
    disk = disk_of(engine)
    if is_held(engine) or (disk is not None and disk.full):
        return "workers cannot write that they live, so none is listed: see attention"
    return "no live worker: nothing runs"


def _unowned(addresses: Iterable[str]) -> str:
    """Return the advice. Only the workers know a list of members, so no check here can tell."""
    names = sorted({member_name(address.rpartition(":")[0]) for address in addresses})
    more = ", ..." if len(names) > NAMES_SHOWN else ""
    return (
        "If that lasts: is LATE_MEMBERSHIP a list, or a DNS name, without these workers "
        f"({', '.join(names[:NAMES_SHOWN])}{more})? Their logs say not_a_member then, and "
        "settlement_refused or stalled where they gave shards up"
    )


def _times(connection: Connection) -> Iterator[Check]:
    """Compare what was recorded last with now: it is ahead if the clock went back since."""
    now = now_us(connection)
    times = [last.settled_at_us for last in journals(connection).values()]
    # Journals go on by the new clock. What is written once still tells of the old one.
    for column in (worker.c.started_at_us, lease.c.taken_at_us, schedule.c.updated_at_us):
        times += connection.execute(select(func.max(column))).scalars()
    # A restart of all workers leaves only what waits to tell of it.
    some = select(timer.c.created_at_us).limit(JOURNAL_ROWS).subquery()
    times += connection.execute(select(func.max(some.c.created_at_us))).scalars()
    ahead_s = (max(time or 0 for time in times) - now) / 1_000_000
    if ahead_s <= CLOCK_OFFSET_S:
        yield Check("times", "ok", "nothing was recorded later than now")
        return
    yield Check(
        "times", "warning",
        f"the database's clock went back by {ahead_s:,.0f} s at least: so far ahead is what was "
        "recorded before. Tasks that were put off before start so much later. If the clock was "
        "right before, set it again; else late reschedule moves a task",
    )  # fmt: skip


def _journals(connection: Connection) -> Iterator[Check]:
    last = journals(connection)
    epochs = {
        (row.consumer_group, row.shard_id): row.epoch for row in connection.execute(select(lease))
    }
    faults = [
        fault
        for key, journal in sorted(last.items())
        for fault in _faults(connection, key, journal, epochs[key])
    ]
    faults += [
        f"{name}/{shard_id} has a lease and no settlement"
        for name, shard_id in sorted(epochs.keys() - last.keys())
    ]
    if faults:
        yield Check("journal", "failed", f"{len(faults)} faults: " + "; ".join(faults[:5]))
    else:
        yield Check("journal", "ok", f"{len(last)} journals without a hole")


def _faults(
    connection: Connection, key: tuple[str, int], journal: Journal, epoch: int
) -> Iterator[str]:
    name = f"{key[0]}/{key[1]}"
    recent = (
        select(settlement.c.seq, settlement.c.epoch, settlement.c.first_seq)
        .where(settlement.c.consumer_group == key[0], settlement.c.shard_id == key[1])
        .order_by(settlement.c.seq.desc())
        .limit(JOURNAL_ROWS)
    )
    rows = connection.execute(recent).all()
    # The oldest are pruned, so a journal may begin anywhere; a hole inside is a lost settlement. A
    # row may stand for those from its `first_seq` on.
    if any((newer.first_seq or newer.seq) != older.seq + 1 for newer, older in pairwise(rows)):
        yield f"{name} has a hole between settlements {rows[-1].seq} and {rows[0].seq}"
    if any(newer.epoch < older.epoch for newer, older in pairwise(rows)):
        yield f"{name} has an epoch that goes back"
    if journal.epoch > epoch:
        yield f"{name} was settled under epoch {journal.epoch}, its lease has {epoch}"
    try:
        beyond_cursor.beyond(connection, key[1], journal.cursor)
    except StoreError as error:
        yield f"{name}: settlement {journal.seq}: {error}"
    opened = open_of(journal.open)
    if not opened and journal.open != "[]":
        yield f"{name} has an unreadable `open` in settlement {journal.seq}"
    if len(opened) > OPEN_MAX:
        yield f"{name} has {len(opened)} open tasks, more than {OPEN_MAX}"


def _overdue(connection: Connection) -> Iterator[Check]:
    now = now_us(connection)
    row = connection.execute(
        select(timer.c.consumer_group, timer.c.shard_id, timer.c.due_at_us)
        .where(
            timer.c.due_at_us < now - int(OVERDUE_S * 1_000_000),
            timer.c.consumer_group.not_in(names_of(connection)),
        )
        .order_by(timer.c.due_at_us)
        .limit(1)
    ).first()
    if row is None:
        yield Check("timers", "ok", f"none overdue by {OVERDUE_S:.0f} s")
        return
    late_s = seconds(now - row.due_at_us)
    yield Check(
        "timers",
        "warning",
        f"the oldest, in {row.consumer_group}/{row.shard_id}, is overdue by {late_s:,.0f} s",
    )


def _dead_letters(connection: Connection) -> Iterator[Check]:
    some = select(dead.c.task_id).limit(10_000).subquery()
    n = int(connection.execute(select(func.count()).select_from(some)).scalar_one())
    if n == 0:
        yield Check("dead letters", "ok", "none")
    else:
        more = " or more" if n == 10_000 else ""
        yield Check("dead letters", "warning", f"{n:,}{more}: see `late dead list`")
