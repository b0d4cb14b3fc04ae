"""`Control`: the operators' view of one database, and the commands that change it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from late.control import cleanup, misfits, workers
from late.control.analyze import analyze, postgres
from late.control.analyze.postgres import Sampler
from late.control.analyze.reported import Conflicts, conflicts
from late.control.audit import AuditControl
from late.control.autoscale_journal import AutoscalerControl
from late.control.database import Database
from late.control.dead_letters.commands import DeadLetterControl
from late.control.doctor import doctor
from late.control.groups import lag, shadow
from late.control.groups.commands import GroupControl
from late.control.lanes.commands import LaneControl
from late.control.offers import OfferControl
from late.control.past.moment import moment_of
from late.control.queue_settings import QueueControl
from late.control.reports import ReportControl
from late.control.schedules import ScheduleControl
from late.control.sql.rows import now_us
from late.control.status import snapshot
from late.control.status.queries import StatusControl
from late.control.status.snapshot import Snapshot
from late.control.subject_keys import SubjectKeyControl
from late.control.task_commands import TaskControl
from late.control.tokens import TokenControl
from late.control.verify import verify
from late.control.verify.verify import Verified
from late.control.views import Check
from late.control.workers import EndpointControl
from late.control.workflows import WorkflowControl
from late.schema.engine import parse, reading, shown


class Control(AbstractContextManager["Control"]):
    """Status, dead letters, schedules and lanes of one database. Synchronous, with one engine.

    Each subject has a field: `control.groups.create(...)`, `control.dead_letters.redrive(...)`.
    Several threads may use one instance. It connects at the first call, and every call opens and
    ends its own transaction. No task waits for anything here.

    Args:
        alarm_s: a consumer group whose oldest unread record is older is `lagging`, seconds; with
            0 no group is.
        stale_s: the age of all that is read, on Spanner alone: a replica near by answers.

    Raises (all methods): `ConfigError` for an argument that is not valid, `StoreUnavailable` and
    `TransactionAborted` (transient), `SchemaMismatch`, other `StoreError`.
    """

    def __init__(self, url: str, *, alarm_s: float = lag.ALARM_S, stale_s: float = 0.0) -> None:
        self._database = database = Database(url, stale_s=stale_s)
        self.audit = AuditControl(database)
        self.autoscalers = AutoscalerControl(database)
        self.dead_letters = DeadLetterControl(database)
        self.endpoints = EndpointControl(database)
        self.groups = GroupControl(database, alarm_s=alarm_s)
        self.lanes = LaneControl(database)
        self.offers = OfferControl(database)
        self.queues = QueueControl(database)
        self.reports = ReportControl(database)
        self.schedules = ScheduleControl(database)
        self.status = StatusControl(database, self.groups)
        self.subject_keys = SubjectKeyControl(database)
        self.tasks = TaskControl(database)
        self.tokens = TokenControl(database)
        self.workflows = WorkflowControl(database)

    @property
    def url(self) -> str:
        """The URL without its password, for display."""
        return shown(self._database.url)

    @property
    def store(self) -> str:
        """The kind of database: `sqlite`, `postgresql`, `spanner` or `cockroachdb`."""
        return parse(self._database.url).get_backend_name()

    def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self._database.unchecked.dispose()

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Check that the schema has the version that this code needs; only the first call looks.

        Raises:
            SchemaMismatch: the schema is missing, older or newer; the message says what to do.
        """
        _ = self._database.engine

    def now(self) -> int:
        """Read the database's clock, in microseconds since the Unix epoch."""
        with reading(self._database.unchecked) as connection:
            return now_us(connection)

    def doctor(self) -> list[Check]:
        """Check connection, versions, schema, guards, clock, leases and journal. Raises nothing."""
        return doctor.examine(self._database.unchecked, self._database.url, self.look)

    def look(self) -> Snapshot:
        """Look at queues, groups, shards, workers and their reports, once."""
        return snapshot.look(self)

    def verify(
        self, *, group: str | None = None, shard_id: int | None = None, as_of: str | None = None
    ) -> Verified:
        """Check that every task of the log is in exactly one place. This reads all tables.

        Args:
            as_of: a past moment, as a time or an age; see `moment_of` for what it raises. Where
                the database keeps no versions, only the journal of then is judged.
        """
        engine = self._database.engine
        moment = None if as_of is None else moment_of(engine, as_of)
        return verify.verify(engine, group_name=group, shard_id=shard_id, moment=moment)

    def conflicts(self, for_s: float) -> analyze.Seen:
        """Ask the server who waits for whom; see `late.control.analyze.analyze.look`."""
        return analyze.look(self._database.unchecked, for_s)

    def reported_conflicts(self) -> Conflicts:
        """Return the conflicts of the last ten minutes that workers have reported."""
        return conflicts(self.reports.all())

    def lock_sampler(self) -> Sampler:
        """Return what adds up samples of `lock_waits`; PostgreSQL only."""
        return postgres.sampler_of(self._database.unchecked)

    def lock_waits(self) -> Sequence[Any]:
        """Return who waits for whose lock now, for `Sampler.take`; PostgreSQL only."""
        return postgres.waiting(self._database.unchecked)

    def misfits(
        self,
        tasks: Mapping[str, misfits.Decoder],
        routed: Iterable[str] = (),
        *,
        limit: int = misfits.LIMIT,
    ) -> misfits.Misfits:
        """Find what waits and these `tasks` (of an app, by name) could not run."""
        return misfits.find(self._database.engine, tasks, routed, limit=limit)

    def compare_handlers(self, mine: Mapping[str, str], *, group: str) -> workers.Fleet:
        """Compare the handlers of an app with what the live workers of `group` have declared."""
        return workers.compare(self._database.engine, mine, group)

    def sweep(
        self, *, keep_s: float = cleanup.KEEP_S, history_keep_s: float = cleanup.HISTORY_KEEP_S
    ) -> cleanup.Swept:
        """Remove inbox rows that are no longer needed, unique keys whose period is over, and old
        results and histories, and shadows whose time is over. Workers do this every ten minutes."""
        shadow.end_old(self._database.engine)
        return cleanup.sweep(self._database.engine, keep_s=keep_s, history_keep_s=history_keep_s)
