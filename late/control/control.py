"""`Control`: the operators' view of one database, and the few things they may change."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import msgspec

from late.control import (
    audit,
    schedules,
)
from late.control import (
    cleanup as sweep,
)
from late.control import (
    queue_settings as knobs,
)
from late.control import (
    task_commands as commands,
)
from late.control.autoscale_journal import AutoscaleCommands
from late.control.dead_letters import dead_letters as dead
from late.control.dead_letters import latest
from late.control.dead_letters.dead_letters import Filter
from late.control.doctor import doctor
from late.control.endpoints import EndpointCommands
from late.control.groups import lag
from late.control.groups.commands import GroupControl
from late.control.lanes import lanes
from late.control.lanes import resize as resizing
from late.control.queue_settings import Live, Set, Turned
from late.control.sql.rows import now_us
from late.control.status import owners, server, status, timers
from late.control.status import task as tasks
from late.control.status import usage as today
from late.control.status.owners import Refused
from late.control.tokens import TokenCommands
from late.control.verify import verify
from late.control.verify.verify import Verified
from late.control.views import (
    Check,
    DeadView,
    LaneView,
    Moved,
    Owners,
    Status,
    TaskView,
    TimerView,
)
from late.model.lanes import Lane, Layout
from late.model.queue_settings import Kind
from late.model.task import Schedule, TaskId
from late.payload.command import Command
from late.schema.engine import make_engine, reading, shown, write
from late.schema.migrate import version_of
from late.schema.version import check


class Control(AutoscaleCommands, EndpointCommands, GroupControl, TokenCommands):
    """Status, dead letters, schedules, lanes. Synchronous, SQLAlchemy Core, one engine.

    Safe to use from several threads. Nothing is connected before the first call, and every call
    opens and ends a transaction of its own. Nothing here is on the path of a task.

    Args:
        alarm_s: a consumer group whose oldest unread record is older is `lagging`; 0: none is.

    Raises (all methods): `ConfigError` for an argument that can mean nothing, `StoreUnavailable`
    and `TransactionAborted` (transient), `SchemaMismatch`, other `StoreError`.
    """

    def __init__(self, url: str, *, alarm_s: float = lag.ALARM_S) -> None:
        self._url = url
        self._alarm_s = alarm_s or math.inf
        self._engine = make_engine(url)
        self._checked = False

    @property
    def url(self) -> str:
        """The URL for people: without its password."""
        return shown(self._url)

    def close(self) -> None:
        """Close all connections. Twice is fine."""
        self._engine.dispose()

    def __enter__(self) -> Control:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def check(self) -> None:
        """Make sure, once, that the schema is the one this code knows.

        Raises:
            SchemaMismatch: missing, older or newer; the message says what to do.
        """
        if self._checked:
            return
        with reading(self._engine) as connection:
            check(version_of(connection), where=self.url)
        self._checked = True

    def sweep(
        self, *, keep_s: float = sweep.KEEP_S, history_keep_s: float = sweep.HISTORY_KEEP_S
    ) -> sweep.Swept:
        """Remove rows of the inbox that no delivery can ask for, unique keys whose period is over,
        and old results and histories. Workers do it every ten minutes."""
        self.check()
        return sweep.sweep(self._engine, keep_s=keep_s, history_keep_s=history_keep_s)

    def now(self) -> int:
        """The database's clock, microseconds since the Unix epoch."""
        with reading(self._engine) as connection:
            return now_us(connection)

    # --- looking

    def status(self, *, queue: str | None = None, limit: int = status.LIMIT) -> Status:
        """Queues, groups, shards and workers; each count stops at `limit` per group and shard."""
        self.check()
        found = status.status(self._engine, queue=queue, limit=limit)
        groups = [
            msgspec.structs.replace(each, stale_s=found.stale_s(each.name))
            for each in self.groups(seen=found)
        ]
        return msgspec.structs.replace(found, groups=tuple(groups))

    def server(self) -> server.Server:
        """What the database server says of itself: sizes, transactions, rows."""
        return server.look(self._engine)

    def owners(self, *, limit: int = owners.LIMIT, only: tuple[str, int] | None = None) -> Owners:
        """Every shard's owner, its former ones, and how often those were refused; looks at the
        last `limit` settlements per group and shard, or of `only` one (group, shard)."""
        self.check()
        return owners.owners(self._engine, limit=limit, only=only)

    def usage_since(
        self, since_us: int, read: Mapping[today.Key, int], *, rows: int = today.ROWS
    ) -> today.Counted:
        """What settlements have counted since a moment, beyond those that were `read`."""
        self.check()
        return today.usage_since(self._engine, since_us, read, rows=rows)

    def add_refused(self, counts: Mapping[tuple[str, int], Refused]) -> None:
        """For workers: settlements that were fenced and results that came too late."""
        self.check()
        owners.add_refused(self._engine, counts)

    def show(
        self,
        task_id: str,
        *,
        payload: bool = False,
        group: str | None = None,
        everywhere: bool = False,
    ) -> TaskView:
        """What is known of one task; its state is `unknown` if nothing is, or if there is no such
        group. No whole table is read; see `docs/control.md` for what it costs. `group`: only there.
        `everywhere`: look through its shard's whole log, if its id does not lead to it.

        Raises:
            InvalidName: not a task id.
        """
        self.check()
        return tasks.show(
            self._engine, task_id, payload=payload, group=group, everywhere=everywhere
        )

    def result(self, task_id: str, *, group: str) -> bytes | None:
        """How a task ended and what its handler returned, as `late.app.results` keeps it: one read
        by key. None while it has not ended, and where nothing is kept (any more)."""
        self.check()
        return tasks.result(self._engine, task_id, group)

    def doctor(self) -> list[Check]:
        """Connection, versions, schema, guards, clock, leases, journal. Raises nothing."""
        return doctor.examine(self._engine, self._url)

    def verify(self, *, group: str | None = None, shard_id: int | None = None) -> Verified:
        """Whether every task of the log is in exactly one place; reads all of the tables."""
        self.check()
        return verify.verify(self._engine, group_name=group, shard_id=shard_id)

    def timers(
        self, *, group: str | None = None, from_us: int = 0, limit: int = timers.LIMIT
    ) -> list[TimerView]:
        """Parked tasks, the next to come due first, none due before `from_us`."""
        self.check()
        return timers.listed(self._engine, group=group, from_us=from_us, limit=limit)

    # --- dead letters

    def dead_letters(
        self, which: Filter | None = None, *, limit: int = 100, payload: bool = False
    ) -> list[DeadView]:
        """Up to `limit` dead letters, the latest first."""
        self.check()
        return dead.listed(self._engine, which or Filter(), limit=limit, payload=payload)

    def latest_dead(self, which: Filter | None = None, *, limit: int = 100) -> latest.Latest:
        """As `dead_letters`, a page at a time, and quick however many there are."""
        self.check()
        return latest.latest(self._engine, which or Filter(), limit=limit)

    def purge(
        self,
        which: Filter,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        exact: bool = False,
    ) -> Moved:
        """Delete dead letters for good, the oldest first, a thousand to a transaction.

        A dry run looks at ten thousand dead letters and says whether there were more; an `exact`
        one counts all.
        """
        self.check()
        return dead.purge(self._engine, which, limit=limit, dry_run=dry_run, exact=exact)

    def redrive(
        self,
        which: Filter,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        exact: bool = False,
    ) -> Moved:
        """Send dead letters back to run again, the oldest first, attempts counted from zero.

        They start within seconds, when their shard's owner next looks at its overdue timers; with
        a `rate`, so many a second from now on. A dry run as that of `purge`.
        """
        self.check()
        return dead.redrive(
            self._engine, which, limit=limit, dry_run=dry_run, rate=rate, exact=exact
        )

    # --- commands

    def cancel(self, task_id: str, *, group: str | None = None) -> TaskId:
        """Ask that no attempt of a task starts any more: `late.App.cancel`, in a transaction of
        its own. Returns the command's id."""
        self.check()
        return commands.send(self._engine, Command("cancel", TaskId(task_id), group))

    def reschedule(self, task_id: str, due_at_us: int, *, group: str | None = None) -> TaskId:
        """Give a task another due time, by the database's clock: `late.App.reschedule`."""
        self.check()
        command = Command("reschedule", TaskId(task_id), group, at_us=due_at_us)
        return commands.send(self._engine, command)

    def edit(self, task_id: str, payload: bytes, *, group: str | None = None) -> list[TaskId]:
        """Send a dead letter back with another payload: a JSON object. One command per group in
        which it is dead; their ids.

        Raises:
            ConfigError: it is no dead letter, or its payload is not plain JSON.
            InvalidPayload: not a JSON object.
        """
        self.check()
        return commands.edit(self._engine, TaskId(task_id), payload, group)

    # --- schedules

    def sync_schedules(self, specs: Sequence[Schedule]) -> list[str]:
        """Insert or update what the code declares; returns the names that were written."""
        self.check()
        return schedules.sync(self._engine, specs)

    def schedules(self, shards: Collection[int] | None = None) -> list[Schedule]:
        """The recurring tasks that live in `shards` (all when None), ascending by name."""
        self.check()
        return schedules.listed(self._engine, shards)

    def pause_schedule(self, name: str) -> Schedule:
        """Fire no more ticks until it is resumed; owners hear of it within seconds."""
        self.check()
        return schedules.pause(self._engine, name)

    def resume_schedule(self, name: str) -> Schedule:
        """Fire again from the next due time after now; what was missed in the pause is left out."""
        self.check()
        return schedules.resume(self._engine, name)

    def run_schedule(self, name: str) -> TaskId:
        """Enqueue its task now, besides its ticks."""
        self.check()
        return schedules.run(self._engine, name)

    def remove_schedule(self, name: str) -> None:
        """Forget a schedule that is no longer in the code."""
        self.check()
        schedules.remove(self._engine, name)

    # --- knobs

    def live_knobs(self) -> Live:
        """For workers: every knob that is set."""
        self.check()
        return knobs.live(self._engine)

    def knobs(self, kind: Kind | None = None) -> list[Set]:
        """Queues and targets that have knobs set, ascending by name."""
        self.check()
        return knobs.listed(self._engine, kind)

    def turn_knobs(
        self, kind: Kind, name: str, changes: Mapping[str, Any], *, dry_run: bool = False
    ) -> Turned:
        """Change knobs: name -> value, None for the default; workers follow within 5 s."""
        self.check()
        return knobs.turn(self._engine, kind, name, changes, dry_run=dry_run)

    def publish_held(self, held: Mapping[str, int]) -> None:
        """For workers: how many tasks the bounded queues hold, for producers in SQL."""
        self.check()
        knobs.publish(self._engine, held)

    def rollback_knobs(self, audit_id: str) -> Turned:
        """Undo one change of knobs, and leave those that it did not touch."""
        self.check()
        return knobs.rollback(self._engine, audit_id)

    def audit(self, *, subject: str | None = None, limit: int = 50) -> list[audit.Entry]:
        """What operators did, the latest first."""
        self.check()
        return knobs.history(self._engine, subject=subject, limit=limit)

    def audited(self, action: str, subject: str) -> None:
        """Write down what an operator did that no other method does."""
        self.check()
        write(self._engine, partial(audit.record, action=action, subject=subject))

    # --- lanes

    def lanes(self) -> list[LaneView]:
        """The named ranges of shards."""
        self.check()
        return lanes.lanes(self._engine)

    def set_shards(self, lane: str, shards: int) -> LaneView:
        """Make a lane wider that was never resized; it never shrinks."""
        self.check()
        return lanes.set_shards(self._engine, lane, shards)

    def resize(self, lane: str, shards: int) -> Lane:
        """Give a lane another width while it works; order by key is kept."""
        self.check()
        return resizing.resize(self._engine, lane, shards)

    def layout(self) -> Layout:
        """The lanes as workers and producers follow them."""
        self.check()
        return resizing.layout(self._engine)

    def keep_lanes(self) -> None:
        """Go on with what resizes have begun. Workers do this every few seconds."""
        self.check()
        resizing.keep(self._engine)
