"""Settings in the database: read, change, undo. Each change is audited in its own transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from late.control import audit, queue_deletion
from late.control.database import Part, on_engine
from late.control.groups.settings import with_queues as settings_and_queues
from late.control.sql import deleted_queues, full_rows
from late.control.sql.knob_rows import TABLES, locked
from late.control.sql.rows import now_us
from late.control.status import key_counts
from late.errors import ConfigError
from late.model import queue_settings
from late.model import validation as validate
from late.model.admission import Full
from late.model.group_settings import GroupSettings
from late.model.queue_settings import Kind, QueueSettings
from late.schema.engine import reading, write
from late.schema.tables import audit as audit_table


class Settings(msgspec.Struct, frozen=True):
    """The settings of one queue or target."""

    kind: Kind
    name: str
    knobs: QueueSettings
    version: int
    updated_at_us: int


class SettingsChange(msgspec.Struct, frozen=True):
    """One change, or with a dry run the change that would be made."""

    kind: Kind
    name: str
    before: QueueSettings
    after: QueueSettings
    audit_id: str | None
    """None for a dry run, and when nothing changes."""


class Live(msgspec.Struct, frozen=True):
    """The settings that a worker follows, by name of queue, of target and of group."""

    queues: Mapping[str, QueueSettings]
    targets: Mapping[str, QueueSettings]
    groups: Mapping[str, GroupSettings] = {}
    reads: Mapping[str, Collection[str]] = {}
    """By group: the queues that it reads. A group that reads all is left out."""


class QueueControl(Part):
    """Settings of queues and targets. See `Control` for what all methods raise."""

    def live(self) -> Live:
        """Read every setting that is set.

        Raises:
            InvalidPolicy: this version cannot read a row.
        """
        with reading(self._database.engine) as connection:
            rows = {kind: connection.execute(select(table)).all() for kind, table in TABLES.items()}
            groups, reads = settings_and_queues(connection)
        queues, targets = (
            {row.name: queue_settings.decode(row.knobs) for row in rows[k]} for k in TABLES
        )
        return Live(queues, targets, groups, reads)

    def settings(self, kind: Kind | None = None, name: str | None = None) -> list[Settings]:
        """Read every setting that is set, queues before targets, each ascending by name.

        Args:
            name: only those of this queue or target.
        """
        found = []
        with reading(self._database.engine) as connection:
            for each, table in TABLES.items():
                if kind in (None, each):
                    asked = select(table).order_by(table.c.name)
                    asked = asked if name is None else asked.where(table.c.name == name)
                    for row in connection.execute(asked):
                        value = queue_settings.decode(row.knobs)
                        found.append(
                            Settings(each, row.name, value, row.version, row.updated_at_us)
                        )
        return found

    def change(
        self, kind: Kind, name: str, changes: Mapping[str, Any], *, dry_run: bool = False
    ) -> SettingsChange:
        """Change some settings of a queue or a target. Workers follow within 5 s.

        Args:
            changes: setting -> value; None sets the default.

        Raises:
            InvalidName, InvalidPolicy: nothing was changed; the message names the setting.
        """
        if kind == "queue":
            validate.old_queue(name)
        validate.name(name, kind)

        def change(connection: Connection) -> SettingsChange:
            before = locked(connection, kind, name)
            after = queue_settings.changed(before, changes, kind)
            if dry_run or after == before:
                return SettingsChange(kind, name, before, after, None)
            return _put(connection, kind, name, before, after, f"{kind}.set")

        return write(self._database.engine, change)

    def first_rates(self, rates: Mapping[str, float]) -> dict[str, float | None]:
        """Set the rate of each queue that has no settings at all.

        Returns:
            The rate of each queue that has settings with another one; None is no rate.

        Raises:
            InvalidName, InvalidPolicy: nothing was changed.
        """

        def change(connection: Connection) -> dict[str, float | None]:
            others: dict[str, float | None] = {}
            for name, rate in sorted(rates.items()):
                before = locked(connection, "queue", name)
                after = queue_settings.changed(before, {"rate": rate}, "queue")
                if before == QueueSettings():
                    _put(connection, "queue", name, before, after, "queue.set")
                elif before.rate != after.rate:
                    others[name] = before.rate
            return others

        return write(self._database.engine, change)

    def rollback(self, audit_id: str) -> SettingsChange:
        """Undo one change: set its settings to the values that they had before it.

        Other settings keep their present values, so a later change of another setting is not lost.

        Raises:
            ConfigError: there is no such change, or it did not change settings.
        """

        def change(connection: Connection) -> SettingsChange:
            row = connection.execute(
                select(audit_table).where(audit_table.c.audit_id == audit_id)
            ).first()
            if row is None:
                raise ConfigError(f"no change {audit_id[:64]!r}: `late knobs --history` lists them")
            kind, _, name = row.subject.partition(":")
            if kind not in TABLES or row.before is None or row.after is None:
                raise ConfigError(f"{row.action} of {row.subject} was no change of knobs")
            old, new = queue_settings.decode(row.before), queue_settings.decode(row.after)
            touched = {
                field: getattr(old, field)
                for field in queue_settings.NAMES
                if getattr(old, field) != getattr(new, field)
            }
            before = locked(connection, _kind(kind), name)
            after = queue_settings.changed(before, touched, _kind(kind))
            if row.action == queue_deletion.ACTION:
                deleted_queues.unmark(connection, name)
            if after == before:
                return SettingsChange(_kind(kind), name, before, after, None)
            return _put(connection, _kind(kind), name, before, after, f"{kind}.rollback")

        return write(self._database.engine, change)

    delete = on_engine(queue_deletion.remove)

    def publish_full(self, found: Mapping[str, Full], closed: Collection[str]) -> None:
        """Store what takes no new tasks, for all producers. It is not audited: no operator does it.

        Args:
            found: queues and limit keys that have reached their bound, by name.
            closed: the queues that are closed.
        """
        engine = self._database.engine
        with reading(engine) as connection:
            asked = full_rows.changes(connection, found, closed, now_us(connection))
        if any(asked):
            write(engine, lambda connection: full_rows.publish(connection, found, closed))

    def held_by_keys(
        self, queues: Collection[str], groups: Collection[str], *, limit: int
    ) -> dict[str, int]:
        """Count the tasks of each limit key of `queues`; see `late.control.status.key_counts`."""
        return key_counts.held_by_keys(self._database.engine, queues, groups, limit=limit)

    def full(self) -> list[Full]:
        """Read what takes no new tasks, ascending by name."""
        with reading(self._database.engine) as connection:
            return full_rows.read(connection)


def _kind(text: str) -> Kind:
    kind: Literal["queue", "target"] = "queue" if text == "queue" else "target"
    return kind


def _put(
    connection: Connection,
    kind: Kind,
    name: str,
    before: QueueSettings,
    after: QueueSettings,
    action: str,
) -> SettingsChange:
    table, here = TABLES[kind], now_us(connection)
    values = {"knobs": queue_settings.encode(after), "updated_at_us": here}
    known = connection.execute(select(table.c.version).where(table.c.name == name)).scalar()
    if kind == "queue":
        deleted_queues.unmark(connection, name)
        full_rows.follow(connection, name, after)
    if known is None:
        connection.execute(insert(table).values(name=name, version=1, **values))
    elif after == QueueSettings():
        connection.execute(delete(table).where(table.c.name == name))
    else:
        connection.execute(
            update(table).where(table.c.name == name).values(version=known + 1, **values)
        )
    audit_id = audit.record(
        connection, action=action, subject=f"{kind}:{name}", before=before, after=after
    )
    return SettingsChange(kind, name, before, after, audit_id)
