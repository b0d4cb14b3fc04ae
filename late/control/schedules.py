"""Recurring tasks: the declarations of the code, stored in the database, and commands about them.

A deployment never changes whether a schedule is paused, as an operator decides that. It does not
remove a schedule that the code no longer has, as another service may have declared it. A schedule
that has no name of its own but its task's keeps its name when the task is renamed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, RowMapping, delete, insert, select, update

from late.control import audit, schedule_changes
from late.control import backfill as backfills
from late.control.database import Part, on_engine
from late.control.schedule_rows import (
    DECLARED,
    jitters,
    one,
    put_jitter,
    schedule_of,
    stored,
)
from late.control.sql.rows import COCKROACH, SPANNER, log_table_of, now_us
from late.errors import ConfigError
from late.model.cron import check, next_due_us
from late.model.ids import new_id
from late.model.task import Options, Schedule, TaskId
from late.model.ticks import in_order
from late.payload.terms import is_bound
from late.schema.engine import reading, write
from late.schema.tables import schedule


class ScheduleControl(Part):
    """Recurring tasks. See `Control` for what all methods raise."""

    def sync(self, specs: Sequence[Schedule], *, by: str | None = None) -> list[str]:
        """Insert missing schedules, update changed ones, and return the names that were written.

        A schedule keeps its shard for ever, as a task does. Its next due time is computed again,
        from the database's time, only when its rule, zone or anchor has changed. Several workers
        may do this at the same time; the rows are locked in the order of their names.

        A schedule that is stored under a former name of its task keeps that name, so that no tick
        is fired under both: see `as_stored`.

        Args:
            by: the worker whose code declares them, for the audit, which has what was written.

        Raises:
            ConfigError: a name is declared twice.
            InvalidCron: a rule or zone is not valid; nothing is written.
        """
        names = [spec.name for spec in specs]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ConfigError(f"schedule {twice[0]!r} is declared twice")
        for spec in specs:
            check(spec.rule, spec.zone)
        if not specs:
            return []
        # Usually nothing has changed, and this read takes no lock.
        with reading(self._database.engine) as connection:
            known, had = stored(connection, _names(specs)), jitters(connection)
            if all(
                spec.name in known
                and not _changes(spec, known[spec.name])
                and spec.jitter_us == had.get(spec.name, 0)
                for spec in as_stored(specs, known)
            ):
                return []
        ordered = sorted(specs, key=lambda spec: spec.name)
        return write(self._database.engine, lambda connection: _sync(connection, ordered, by))

    def all(self, shards: Collection[int] | None = None) -> list[Schedule]:
        """Read the schedules of these shards, or all when None, ascending by name."""
        statement = select(schedule).order_by(schedule.c.name)
        if shards is not None:
            statement = statement.where(schedule.c.shard_id.in_(sorted(shards)))
        with reading(self._database.engine) as connection:
            moved = jitters(connection)
            return [
                schedule_of(row._mapping, moved.get(row.name, 0))
                for row in connection.execute(statement)
            ]

    def doubles(self, specs: Sequence[Schedule]) -> list[tuple[str, str]]:
        """Find stored schedules that are not in `specs` and run a task of theirs at its times.

        Such a pair is a schedule of which the name was changed, and the task then runs twice.

        Returns:
            the name of the declared schedule, and the name of the other one.
        """
        rows = self.all() if specs else []
        with reading(self._database.engine) as connection:
            wanted = as_stored(specs, stored(connection, _names(specs)))
        names = {spec.name for spec in wanted}
        ran = {spec.name: {spec.task_name, *(old.name for old in spec.former)} for spec in specs}
        return [
            (spec.name, row.name)
            for spec in wanted
            for row in rows
            if row.name not in names
            and row.task_name in ran.get(spec.name, {spec.task_name})
            and (row.rule, row.zone) == (spec.rule, spec.zone)
        ]

    def pause(self, name: str) -> Schedule:
        """Fire no more ticks until `resume`. Tasks of earlier ticks continue.

        A shard's owner reads its schedules every few seconds, and a tick may fire until then.
        Pausing a paused schedule changes nothing.

        Raises:
            ConfigError: there is no such schedule.
        """
        return _switch(self._database.engine, name, paused=True)

    def resume(self, name: str) -> Schedule:
        """Fire again, from the next due time after now.

        Ticks that came due during the pause are left out with every catch-up policy, because an
        operator decided that they should not run. Resuming a schedule that is not paused changes
        nothing.

        Raises:
            ConfigError: there is no such schedule.
        """
        return _switch(self._database.engine, name, paused=False)

    def run(self, name: str) -> TaskId:
        """Enqueue the schedule's task now, besides its ticks, and return the task's id.

        The due time stays as it is. The task does not count as a tick, so overlap `skip` ignores
        it; with overlap `queue` it runs in order with the ticks. A paused schedule can be run too.

        Raises:
            ConfigError: there is no such schedule, or its payload is sealed for its due times
                alone.
        """

        def enqueue(connection: Connection) -> TaskId:
            row = one(connection, name)
            if is_bound(row["payload"]):
                raise ConfigError(
                    f"schedule {name!r} is sealed for its due times and nothing else: enqueue task "
                    f"{row['task_name']!r} from the application"
                )
            task_id = new_id(row["shard_id"])
            connection.execute(
                insert(log_table_of(connection)).values(
                    shard_id=row["shard_id"],
                    task_id=task_id,
                    queue=row["queue"],
                    name=row["task_name"],
                    payload=row["payload"],
                    options=_options(row),
                )
            )
            _audited(connection, "run", name, task_id)
            return task_id

        return write(self._database.engine, enqueue)

    backfill = on_engine(backfills.backfill)

    def remove(self, name: str) -> None:
        """Remove a schedule that is no longer in the code. Tasks of its ticks continue.

        Raises:
            ConfigError: there is no such schedule.
        """

        def forget(connection: Connection) -> None:
            one(connection, name)
            connection.execute(delete(schedule).where(schedule.c.name == name))
            put_jitter(connection, name, 0)
            _audited(connection, "remove", name)

        write(self._database.engine, forget)


def as_stored(specs: Sequence[Schedule], known: Mapping[str, RowMapping]) -> list[Schedule]:
    """Return the declared schedules under the names that the database has for them.

    Most have one name. The name of a schedule that declares none is its task's, and a task may be
    renamed: then the row under a former name stays in use, with its ticks, its shard and its pause.
    A row that runs another task, or that has a declaration of its own, is not meant.
    """
    declared = {spec.name for spec in specs}

    def kept(spec: Schedule) -> Schedule:
        names = {spec.task_name, *(old.name for old in spec.former)}
        if spec.name not in known:
            for old in spec.former:
                row = known.get(old.name)
                if row is not None and row["task_name"] in names and old.name not in declared:
                    return old
        return spec

    return [kept(spec) for spec in specs]


def _names(specs: Sequence[Schedule]) -> list[str]:
    return [each.name for spec in specs for each in (spec, *spec.former)]


def _sync(connection: Connection, specs: Sequence[Schedule], by: str | None) -> list[str]:
    written = []
    known = stored(connection, _names(specs), lock=True)
    # The clock is read after the lock. Every settled tick was due before this time, so a due time
    # that is computed from it cannot fire the same tick again.
    now = now_us(connection)
    had = jitters(connection)
    for spec in as_stored(specs, known):
        row, moves = known.get(spec.name), spec.jitter_us != had.get(spec.name, 0)
        if row is None:
            if _insert(connection, spec, now):
                written.append(spec.name)
                put_jitter(connection, spec.name, spec.jitter_us)
                new = {"rule": spec.rule, "zone": spec.zone, "queue": spec.queue}
                schedule_changes.record(connection, spec, None, new, 0, by=by, at_us=now)
            continue
        changed = _changes(spec, row)
        if not changed and not moves:
            continue
        if moves:  # `updated_at_us`, which workers follow, changes below
            put_jitter(connection, spec.name, spec.jitter_us)
        jitter_us = had.get(spec.name, 0)
        schedule_changes.record(connection, spec, row, changed, jitter_us, by=by, at_us=now)
        if {"rule", "zone", "anchor_us"} & changed.keys():
            anchor = spec.anchor_us or now
            changed["anchor_us"] = anchor
            changed["next_due_at_us"] = _next(spec, anchor, now)
        connection.execute(
            update(schedule)
            .where(schedule.c.name == spec.name)
            .values(**changed, updated_at_us=now)
        )
        written.append(spec.name)
    return written


def _changes(spec: Schedule, row: RowMapping) -> dict[str, Any]:
    fields = (*DECLARED, "anchor_us") if spec.anchor_us else DECLARED
    return {field: getattr(spec, field) for field in fields if getattr(spec, field) != row[field]}


def _next(spec: Schedule, anchor_us: int, after_us: int) -> int | None:
    return next_due_us(spec.rule, spec.zone, anchor_us=anchor_us, after_us=after_us)


def _insert(connection: Connection, spec: Schedule, now: int) -> bool:
    anchor = spec.anchor_us or now
    values = {
        **{field: getattr(spec, field) for field in DECLARED},
        "name": spec.name,
        "shard_id": spec.shard_id,
        "anchor_us": anchor,
        "next_due_at_us": _next(spec, anchor, now),
        "updated_at_us": now,
    }
    # Another worker may insert the same schedule. The first insert wins; both are equal.
    if connection.dialect.name == SPANNER:
        # `_stored` has read the name in this transaction, which locks the name on Spanner even
        # without a row. The second transaction is aborted and tries again.
        connection.execute(insert(schedule).values(**values))
        return True
    if connection.dialect.name in ("postgresql", COCKROACH):
        from sqlalchemy.dialects.postgresql import insert as insert_or
    else:
        from sqlalchemy.dialects.sqlite import insert as insert_or  # type: ignore[assignment]
    statement = insert_or(schedule).values(**values).on_conflict_do_nothing()
    return connection.execute(statement.returning(schedule.c.name)).first() is not None


def _switch(engine: Engine, name: str, *, paused: bool) -> Schedule:
    def switch(connection: Connection) -> Schedule:
        row = one(connection, name)
        now = now_us(connection)
        changed: dict[str, Any] = {"paused": int(paused), "updated_at_us": now}
        if row["paused"] and not paused:
            changed["next_due_at_us"] = next_due_us(
                row["rule"], row["zone"], anchor_us=row["anchor_us"], after_us=now
            )
        connection.execute(update(schedule).where(schedule.c.name == name).values(**changed))
        if bool(row["paused"]) != paused:
            _audited(connection, "pause" if paused else "resume", name)
        return schedule_of(one(connection, name), jitters(connection).get(name, 0))

    return write(engine, switch)


def _audited(connection: Connection, word: str, name: str, after: object = None) -> None:
    subject = f"schedule:{name}"
    audit.record(connection, action=f"schedule.{word}", subject=subject, after=after)


def _options(row: RowMapping) -> str:
    """Return the template's options with the schedule's name, which a signature covers."""
    given = msgspec.json.decode(row["options"], type=Options) if row["options"] else Options()
    options = in_order(given, row["name"], row["overlap"])
    options = msgspec.structs.replace(options, schedule=row["name"])
    return msgspec.json.encode(options).decode()
