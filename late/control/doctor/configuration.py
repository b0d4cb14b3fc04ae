"""Find settings that cannot work well and are no fault of the database, for `late doctor`.

Each check says what it saw and what to do. All are bounded: none reads more than the first rows of
a shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sqlalchemy import Connection, func, select, text

from late.control.doctor import bounds, lane_workers, table_sizes
from late.control.doctor.lane_workers import live_workers
from late.control.groups.lag import unread
from late.control.reports import reports
from late.control.schedule_rows import jitters, schedule_of
from late.control.sql.last_settlement import Journal, journals
from late.control.sql.per_shard import EMBEDDED
from late.control.sql.rows import now_us, seconds
from late.control.sql.shards import survey
from late.control.status import old_transactions
from late.control.status.old_transactions import GRANT, OLD_S, Hidden
from late.control.views import Check
from late.errors import InvalidPolicy
from late.model import queue_settings
from late.model.task import SHARDS_MAX
from late.model.ticks import fires_at_us
from late.schema import rights
from late.schema.tables import dead, group, lane, queue, schedule, target, timer, token
from late.store.common.groups import is_shadow, reads_of

ROWS = 1_000
"""Rows of one (group, shard) that are looked at."""
LATE_S = 60.0
PREPARED = "max_prepared_transactions"
PER_WORKER = 9
"""Connections to PostgreSQL that one worker takes at most, its heartbeat's among them. Those of its
handlers, one per slot as a rule, are not: whether they use any is not known here."""


def examine(connection: Connection) -> Iterator[Check]:
    """Every check, in the order of `docs/doctor.md`."""
    yield _groups(connection)
    yield _versions(connection)
    yield _idle(connection)
    yield _lanes(connection)
    yield lane_workers.check(connection)
    yield _handlers(connection)
    yield _held_back(connection)
    yield bounds.check(connection)
    yield _schedules(connection)
    yield _tokens(connection)
    if connection.dialect.name == "postgresql":
        yield _transactions(connection)
        yield _durability(connection)
        yield _connections(connection)
        yield _waking(connection)
        yield _notices(connection)
        yield _rights(connection)
        yield table_sizes.check(connection)
    if connection.dialect.name == EMBEDDED and connection.engine.url.database:
        yield table_sizes.check_file(connection.engine.url.database)


def _rights(connection: Connection) -> Check:
    """Find roles that lack rights since a migration: no pause, no bound of a queue works then."""
    if found := rights.lacking(connection):
        return Check("rights", "warning", rights.told(found))
    return Check("rights", "ok", "no role lacks rights on what a migration has made")


def _groups(connection: Connection) -> Check:
    """A group that nobody works keeps the whole log, for ever; of a shadow a finding says so."""
    served = {name for _, groups in live_workers(connection) for name in groups}
    last, logged = journals(connection), survey(connection).logged
    found = []
    for row in connection.execute(select(group).order_by(group.c.name)):
        if is_shadow(row.paused) or (row.name in served and not row.paused):
            continue
        reads = reads_of(row.queues, row.from_us, row.replay_us)
        cursors = {
            shard_id: last.get((row.name, shard_id), Journal()).cursor for shard_id in logged
        }
        lag, _ = unread(connection, cursors, reads, 1)
        if lag.n:
            found.append(f"{row.name} ({'paused' if row.paused else 'no live worker'})")
    if not found:
        return Check("groups", "ok", "none holds the log back")
    return Check(
        "groups", "warning",
        f"{', '.join(found[:5])}: the log keeps what they have not read. Start workers with "
        "--group (late worker MODULE:APP --group NAME)",
    )  # fmt: skip


def _versions(connection: Connection) -> Check:
    # What follows the + is for other workers.
    versions = sorted({version.partition("+")[0] for version, _ in live_workers(connection)})
    if len(versions) < 2:
        return Check("releases", "ok", "live workers are of one release")
    return Check(
        "releases", "warning",
        f"live workers are of {', '.join(versions)}: fine during a deployment, not for long",
    )  # fmt: skip


def _idle(connection: Connection) -> Check:
    """A worker without a shard runs nothing: shards bound how many workers are of use."""
    shards = connection.execute(select(func.sum(lane.c.shards))).scalar() or 0
    crowded: Counter[str] = Counter()
    for _, groups in live_workers(connection):
        for name in groups:
            crowded[name] += 1
    for name, workers in sorted(crowded.items()):
        if workers > shards:
            return Check(
                "workers", "warning",
                f"{workers} workers of {name} share {shards} shards: {workers - shards} own none. "
                "late shards --resize N, or fewer workers",
            )  # fmt: skip
    return Check("workers", "ok", "no more than shards")


def _lanes(connection: Connection) -> Check:
    """Producers that know of more shards than the lane write beside it. Not in one that was
    resized: there the database tells them, and what it had before is worked off."""
    lanes = connection.execute(select(lane.c.first_shard, lane.c.shards, lane.c.version)).all()
    inside = {n for first, count, _ in lanes for n in range(first, first + count)}
    ends = [*sorted(first for first, _, _ in lanes), SHARDS_MAX]
    for first, _, version in lanes:
        inside.update(range(first, next(end for end in ends if end > first)) if version else ())
    outside = sorted(survey(connection).logged - inside)
    if not outside:
        return Check("lanes", "ok", "every shard with tasks is of a lane")
    return Check(
        "lanes", "warning",
        f"shard {outside[0]} holds tasks and is of no lane: an app has more shards than the "
        f"database. late shards --set {outside[-1] + 1}, or App(shards=...) as late shards says",
    )  # fmt: skip


def _handlers(connection: Connection) -> Check:
    """A name that no worker knows: a typing error, or a deployment that forgot a module."""
    first = select(timer.c.name, timer.c.reason).limit(ROWS).subquery()
    letters = select(dead.c.name, dead.c.reason).limit(ROWS).subquery()
    names: set[str] = set()
    for rows, reason in ((first, "unknown"), (letters, "unknown_task")):
        asked = select(rows.c.name).where(rows.c.reason == reason)
        names.update(connection.execute(asked).scalars())
    if not names:
        return Check("handlers", "ok", "every parked task has one")
    return Check(
        "handlers", "warning",
        f"no worker could run {', '.join(sorted(names)[:5])}: deploy a version that can, or name a "
        'new task after it too: @app.task(aliases=("...",)). late show tells what does not fit,'
        " late check before a deploy",
    )  # fmt: skip


def _held_back(connection: Connection) -> Check:
    """Paused, closed, or a setting that this release cannot read."""
    found = []
    for kind, table in (("queue", queue), ("target", target)):
        for row in connection.execute(select(table).order_by(table.c.name)):
            try:
                each = queue_settings.decode(row.knobs)
            except InvalidPolicy as error:
                return Check("knobs", "failed", f"{kind} {row.name}: {error}")
            for word, isset in (("paused", each.paused), ("closed", each.closed)):
                if isset:
                    age_s = seconds(now_us(connection) - row.updated_at_us)
                    found.append(f"{kind} {row.name} is {word} (changed {age_s:,.0f} s ago)")
    names = select(schedule.c.name).where(schedule.c.paused != 0).order_by(schedule.c.name)
    found += [f"schedule {name} is paused" for name in connection.execute(names).scalars()]
    if not found:
        return Check("knobs", "ok", "nothing is paused or closed")
    return Check("knobs", "warning", "; ".join(found[:5]) + ". late knobs --history")


def _schedules(connection: Connection) -> Check:
    rows = connection.execute(select(schedule).order_by(schedule.c.name)).all()
    due_us = now_us(connection) - int(LATE_S * 1_000_000)
    moved = jitters(connection)
    never = [row.name for row in rows if not row.paused and row.next_due_at_us is None]
    late = [
        each.name
        for each in (schedule_of(row._mapping, moved.get(row.name, 0)) for row in rows)
        if not each.paused
        and each.next_due_at_us
        and fires_at_us(each, each.next_due_at_us) < due_us
    ]
    if never:
        return Check(
            "schedules", "warning",
            f"{', '.join(never[:5])} will never fire again: correct the rule, or "
            "late schedule remove",
        )  # fmt: skip
    if late:
        advice = (
            "no worker serves the lane default, where they fire: see lane workers"
            if lane_workers.stops_schedules(connection)
            else "the default group's workers fire them, and the module that declares them must be"
            " loaded"
        )
        return Check("schedules", "warning", f"{', '.join(late[:5])} should have fired: {advice}")
    return Check("schedules", "ok", f"{len(rows)}, none late")


def _tokens(connection: Connection) -> Check:
    now = now_us(connection)
    rows = connection.execute(select(token).where(token.c.revoked_at_us.is_(None))).all()
    over = sorted(r.name for r in rows if r.expires_at_us is not None and r.expires_at_us <= now)
    if not over:
        return Check("tokens", "ok", f"{len(rows)}, none expired")
    return Check(
        "tokens", "warning",
        f"{', '.join(over[:5])} expired: who uses them is refused. late token create, or revoke",
    )  # fmt: skip


# --- PostgreSQL ----------------------------------------------------------------------------------


def _transactions(connection: Connection) -> Check:
    """Check for old open transactions: the log cannot be pruned past them."""
    old = old_transactions.found(connection)
    if not old:
        return _hidden(old_transactions.hidden(connection))
    row = old[0]
    who = f"{row.application or 'a session'} of {row.user}, {row.state}"
    return Check(
        "transactions", "warning",
        f"process {row.pid} ({who}) has a transaction open for {row.open_s:,.0f} s: the log cannot "
        "be pruned past it, and a resize waits for it. Set idle_in_transaction_session_timeout",
    )  # fmt: skip


def _hidden(of: Hidden) -> Check:
    """No old transaction is seen: say whether all could be seen."""
    if of.writing:
        return Check(
            "transactions", "warning",
            f"open transactions of other roles that have written: {of.writing}, and this login may "
            f"not see for how long: {GRANT}",
        )  # fmt: skip
    detail = f"none that writes is older than {OLD_S:.0f} s"
    if of.sessions:
        detail += f"; sessions of other roles are hidden: {of.sessions}, none of which writes now"
    return Check("transactions", "ok", detail)


_SETTINGS = {
    "fsync": ("on", "a crash of the machine may lose or break the database"),
    "full_page_writes": ("on", "a crash of the machine may break the database"),
    "autovacuum": ("on", "tables only grow"),
    "default_transaction_read_only": (
        "off",
        "nothing can be enqueued or recorded, and no worker can say that it lives",
    ),
    "synchronous_commit": (
        "on local remote_write remote_apply",
        "a crash may lose tasks whose enqueue was answered",
    ),
}


def _durability(connection: Connection) -> Check:
    bad = []
    for name, (good, why) in _SETTINGS.items():
        found = connection.execute(text("select current_setting(:name)"), {"name": name}).scalar()
        if found not in good.split():
            bad.append(f"{name}={found}: {why}")
    if bad:
        return Check("settings", "warning", "; ".join(bad))
    return Check("settings", "ok", ", ".join(_SETTINGS))


_OPEN = (
    "select count(*) from pg_stat_activity"
    " where coalesce(backend_type, 'client backend') = 'client backend'"
)
"""Processes of the server's own are in this view too, and take no connection."""


def _connections(connection: Connection) -> Check:
    """Workers that start one after the other until the server takes no more."""
    most = int(connection.execute(text("select current_setting('max_connections')")).scalar_one())
    open_ = connection.execute(text(_OPEN)).scalar_one()
    workers = len(live_workers(connection))
    wanted = PER_WORKER * workers
    detail = f"{open_} of {most} are open"
    if max(open_, wanted) < 0.8 * most:
        return Check("connections", "ok", detail)
    return Check(
        "connections", "warning",
        f"{detail}, and {workers} workers may take {wanted}, those of handlers "
        "on top: raise max_connections, or put PgBouncer between",
    )  # fmt: skip


def _waking(connection: Connection) -> Check:
    """Workers that are not told of commits find the first task after a silence late."""
    prepared, sequence = connection.execute(
        text(
            "select current_setting('max_prepared_transactions')::int,"
            " to_regclass('late_waiting') is not null"
        )
    ).one()
    if not sequence:
        return Check("wake-ups", "warning", "the sequence late_waiting is missing: late migrate")
    told = [each.report for each in reports(connection) if each.live]
    # Where transactions can be prepared, a worker does not ask for notices unless it is told to.
    deaf = [each for each in told if each.deaf and not each.deaf.startswith(PREPARED)]
    if deaf:
        names = ", ".join(f"{each.address} ({each.deaf})" for each in deaf[:5])
        return Check(
            "wake-ups", "warning",
            f"{len(deaf)} live workers are not told of commits and poll, so the first task after a "
            f"silence waits for up to a second: {names}",
        )  # fmt: skip
    if prepared:
        return Check(
            "wake-ups", "ok",
            f"{PREPARED} is {prepared}: only workers with waking=on are told of "
            "commits while they sleep (docs/waking.md)",
        )  # fmt: skip
    return Check("wake-ups", "ok", "workers that sleep are told of commits")


def _notices(connection: Connection) -> Check:
    """Heartbeats send notices as this role, and inserts of tasks as the owner of the trigger."""
    lacking = connection.scalars(
        text(
            "select quote_ident(rolname) from pg_roles"
            " where (rolname = current_user or oid = (select proowner from pg_proc"
            " where oid = to_regproc('late_wake')))"
            " and not has_function_privilege(oid, 'pg_notify(text,text)', 'execute') order by 1"
        )
    ).all()
    if not lacking:
        return Check("notices", "ok", "pg_notify may be executed")
    roles = ", ".join(lacking)
    return Check(
        "notices", "failed",
        f"{roles} may not execute pg_notify: workers of this role cannot beat, or nobody can "
        "enqueue if the owner may not. Run: grant execute on function pg_notify(text, text) to "
        f"{roles}",
    )  # fmt: skip
