"""The incidents, and what must be said of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from tests.drills.app import charge, hang, hang_too, note, pay, refund, work
from tests.drills.kit import Deployment


@dataclass(frozen=True)
class Drill:
    """One incident."""

    name: str
    make: Callable[[Deployment], object]
    """Makes it; a context manager that ends it again."""
    said: tuple[str, ...]
    """Patterns that the overview, `late top` and `late doctor` must all match."""
    alert: str
    runbook: str
    within_s: float = 120.0


@contextmanager
def target_fails(on: Deployment, part: float) -> Iterator[None]:
    """A service answers a part of its calls with 500."""
    on.start()
    on.bank.failing = part
    on.commit([charge.call(order=number) for number in range(200)])
    yield


@contextmanager
def handlers_hang(on: Deployment) -> Iterator[None]:
    """Two tasks hang in every slot of the only worker."""
    on.start(1)
    for each in (hang, hang_too):
        on.commit([each.call(number) for number in range(4)])
    on.commit([note.call(number) for number in range(50)])
    yield


@contextmanager
def table_is_locked(on: Deployment, mode: str) -> Iterator[None]:
    """Somebody holds a lock on the journal, and has gone to lunch."""
    on.start()
    on.commit([note.call(number) for number in range(50)])
    with psycopg.connect(on.url, application_name="migration") as other:
        other.execute(f"lock table late_settlement in {mode} mode")
        on.commit([note.call(number) for number in range(50)])
        yield


@contextmanager
def schedule_overlaps(on: Deployment) -> Iterator[None]:
    """A schedule whose task runs longer than its period."""
    on.environment["LATE_DRILL_SCHEDULE"] = "1"
    on.start()
    yield


@contextmanager
def tenant_floods(on: Deployment) -> Iterator[None]:
    """One tenant sends hundreds of tasks, others a few."""
    on.control.queues.change("queue", "shop", {"fair_key": "tenant", "concurrency": 4})
    on.start()
    for name, number in (("small", 10), ("flood", 900), ("other", 10)):
        on.commit([work.options(headers={"tenant": name}).call() for _ in range(number)])
    yield


@contextmanager
def rows_are_fought_for(on: Deployment) -> Iterator[None]:
    """Two kinds of tasks change the same two rows in opposite order."""
    with psycopg.connect(on.url) as tx:
        tx.execute("create table account (id integer primary key, balance integer)")
        tx.execute("insert into account values (7, 0), (8, 0)")
    on.start()
    on.commit([each.call() for _ in range(200) for each in (pay, refund)])
    yield


DRILLS = (
    Drill(
        "a target fails 60 %", lambda on: target_fails(on, 0.6),
        (r"Target bank (fails|is away)", r"\d+% of its last \d+ calls failed", r"500",
         r"tasks wait for it", r"late target list --check"),
        "LateTargetFails", "target-fails",
    ),
    Drill(
        "a target fails 100 %", lambda on: target_fails(on, 1.0),
        (r"Target bank is away", r"100% of its last \d+ calls failed", r"500",
         r"circuit is open for", r"[1-9][\d,]* tasks wait for it", r"late target list --check"),
        "LateBreakerOpen", "breaker-open",
    ),
    Drill(
        "stuck handlers", handlers_hang,
        (r"1 of 1 workers stand still", r"hold every slot \(slots\)", r"hang(_too)? of queue",
         r"late show [0-9a-f-]{36}"),
        "LateWorkerStalls", "worker-stalls",
    ),
    Drill(
        "a schedule skips", schedule_overlaps,
        (r"Schedule minutely skips ticks", r"[1-9]\d* were left out, the last",
         r"of an earlier tick had not ended \(overlap=skip\)", r"late show [0-9a-f-]{36}"),
        "LateTicksSlip", "ticks-slip",
    ),
    Drill(
        "one tenant floods", tenant_floods,
        (r"Tenant flood floods queue shop", r"9\d% of what 3 tenants send",
         r"% of the busy slots", r"late queue set shop fair_share=0.125"),
        "LateTenantFloods", "tenant-floods",
    ),
    Drill(
        "a lock on the journal, writes wait", lambda on: table_is_locked(on, "exclusive"),
        (r"Process \d+ of the database holds a lock on late_settlement",
         r"It is migration, idle in transaction, its transaction open for",
         r"\d+ sessions of late wait for it", r"not recorded",
         r"select pg_terminate_backend\(\d+\)"),
        "LateSettlementUnanswered", "settlement-unanswered",
    ),
    Drill(
        "a lock on the journal, reads wait too", lambda on: table_is_locked(on, "access exclusive"),
        (r"Process \d+ of the database holds a lock on late_settlement",
         r"It is migration, idle in transaction, its transaction open for",
         r"\d+ sessions of late wait for it", r"not recorded",
         r"select pg_terminate_backend\(\d+\)"),
        "LateSettlementUnanswered", "settlement-unanswered",
    ),
    Drill(
        "two kinds of tasks fight for rows", rows_are_fought_for,
        (r"late-foreground:pay and late-foreground:refund are in each other's way",
         r"on account\(id=[78]\)", r"take the rows in one order in both", r"late analyze"),
        "LateConflicts", "conflicts", within_s=240.0,
    ),
)  # fmt: skip
