"""The reports of workers, in their rows. See `late.model.worker_report`."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, literal, select, union_all, update

from late.control.database import Part
from late.control.sql.rows import now_us, seconds
from late.control.views import Reported
from late.model import worker_report as report
from late.model.worker_report import Death, WorkerReport
from late.schema.engine import reading, write
from late.schema.tables import worker, worker_report

SHOWN_US = 600_000_000
"""A report that is older is of nobody who lives."""
REPORTS_MAX = 1_000
DEATHS_MAX = 200


class ReportControl(Part):
    """Reports of workers. See `Control` for what all methods raise."""

    def write(self, told: WorkerReport) -> None:
        """Write the report of one worker in place of its last one."""
        text = report.encode(told)

        def put(connection: Connection) -> None:
            values = {"at_us": now_us(connection), "report": text}
            mine = update(worker_report).where(worker_report.c.worker_id == told.worker_id)
            if not connection.execute(mine.values(values)).rowcount:
                connection.execute(insert(worker_report).values(worker_id=told.worker_id, **values))

        write(self._database.engine, put)

    def all(self) -> tuple[Reported, ...]:
        """Return the reports of the last ten minutes, the latest first, ended workers included."""
        return self.all_and_deaths()[0]

    def all_and_deaths(self) -> tuple[tuple[Reported, ...], tuple[Death, ...]]:
        """Return them, and the workers that died in the last ten minutes, the latest first."""
        with reading(self._database.engine) as connection:
            return reports_and_deaths(connection)


def sweep(connection: Connection) -> None:
    """Remove the reports that nobody is shown any more."""
    old = worker_report.c.at_us < now_us(connection) - SHOWN_US
    connection.execute(delete(worker_report).where(old))


def reports(connection: Connection) -> tuple[Reported, ...]:
    """See `ReportControl.all`; those that cannot be read are left out."""
    return reports_and_deaths(connection)[0]


def reports_and_deaths(
    connection: Connection,
) -> tuple[tuple[Reported, ...], tuple[Death, ...]]:
    """See `ReportControl.all_and_deaths`. By one statement: a screen has many of them."""
    now = now_us(connection)
    told = (
        select(
            worker_report.c.worker_id, worker_report.c.at_us, worker_report.c.report,
            worker.c.expires_at_us, literal("").label("address"), worker.c.started_at_us,
        )
        .join(worker, worker.c.worker_id == worker_report.c.worker_id, isouter=True)
        .where(worker_report.c.at_us > now - SHOWN_US)
        .order_by(worker_report.c.at_us.desc())
        .limit(REPORTS_MAX)
        .subquery()
    )  # fmt: skip
    # A worker that goes by itself removes its row, and one that is about to go takes no more work.
    died = (
        select(
            worker.c.worker_id, worker.c.expires_at_us.label("at_us"), literal("").label("report"),
            worker.c.expires_at_us, worker.c.address, worker.c.started_at_us,
        )
        .where(
            worker.c.expires_at_us > now - SHOWN_US,
            worker.c.expires_at_us <= now,
            worker.c.capacity > 0,
        )
        .order_by(worker.c.expires_at_us.desc())
        .limit(DEATHS_MAX)
        .subquery()
    )  # fmt: skip
    rows = connection.execute(union_all(select(told), select(died))).all()
    found = [(row, report.decode(row.report)) for row in rows if row.report]
    return (
        tuple(
            Reported(told, row.at_us, seconds(now - row.at_us), (row.expires_at_us or 0) > now)
            for row, told in sorted(found, key=lambda each: -each[0].at_us)
            if told is not None
        ),
        tuple(
            Death(row.worker_id, row.address, row.at_us, row.started_at_us)
            for row in sorted(rows, key=lambda row: -row.at_us)
            if not row.report
        ),
    )
