"""The incidents, and what must be said of each."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg

from late.schema import migrate
from tests.drills.app import charge, crash, hang, hang_too, note, pay, refund, work
from tests.drills.kit import Deployment
from tests.integration.stall_kit import free_port
from tests.integration.waking_kit import database


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
    group: str = "default"
    database: Callable[[], AbstractContextManager[str]] = database


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


@contextmanager
def workers_die(on: Deployment) -> Iterator[None]:
    """A task kills each worker that runs it; others are started in their place."""
    on.start()
    with on.supervised():
        on.commit([crash.call()])
        yield


@contextmanager
def nobody_is_listed(on: Deployment) -> Iterator[None]:
    """The workers are not on the list of members, and tasks wait."""
    on.environment["LATE_MEMBERSHIP"] = "static:worker-of-last-year"
    on.run("metrics", health="--port")
    for _ in range(2):
        on.start_one()
    on.until(lambda: len(on.control.status.read(limit=1).workers) == 2)
    on.commit([note.call(number) for number in range(50)])
    yield


@contextmanager
def workers_are_gone(on: Deployment) -> Iterator[None]:
    """All workers were killed, and tasks come."""
    on.run("metrics", health="--port")
    on.start()
    for process in on.processes[1:]:
        process.kill()
    on.commit([note.call(number) for number in range(50)])
    yield


@contextmanager
def consumer_is_silent(on: Deployment) -> Iterator[None]:
    """A consumer fetches tasks and never answers."""
    port, over = free_port(), threading.Event()
    on.run("serve", "--url", on.url, "--pull", "errands", "--http-port", str(port),
           health="--health-port")  # fmt: skip
    at = f"http://127.0.0.1:{port}/v1/queues/errands"
    on.until(lambda: _answers(at))
    for number in range(60):
        httpx.post(f"{at}/tasks", json={"name": "run", "payload": {"errand": number}})

    def fetch() -> None:
        asked = {"limit": 10, "wait_s": 1, "visibility_s": 5, "consumer": "courier-17"}
        while not over.is_set():
            httpx.post(f"{at}/receive", json=asked, timeout=60)
            over.wait(0.2)

    fetching = threading.Thread(target=fetch)
    fetching.start()
    try:
        yield
    finally:
        over.set()
        fetching.join()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def group_falls_behind(on: Deployment) -> Iterator[None]:
    """A group's only worker is too slow for what arrives; the other group is not."""
    on.control.groups.create("search", start="beginning")
    on.environment["LATE_CONCURRENCY"] = "16"
    on.start(1)
    on.environment["LATE_CONCURRENCY"] = "1"
    on.start(1, group="search")
    on.commit([work.call() for _ in range(1_000)])
    yield


@contextmanager
def clock_is_wrong(on: Deployment) -> Iterator[None]:
    """The clock of a worker is 90 s ahead."""
    on.environment["LATE_DRILL_CLOCK_S"] = "90"
    on.start(1)
    yield


@contextmanager
def disk_is_full(on: Deployment) -> Iterator[None]:
    """Something else has filled the disk on which the file of the database is."""
    on.start(1)
    disk = Path(on.url.removeprefix("sqlite:///")).parent
    free = shutil.disk_usage(disk).free
    (disk / "somebody-elses").write_bytes(bytes(free - 2**20))
    yield


@contextmanager
def small_disk() -> Iterator[str]:
    """A database in a file on a small disk of its own, which takes the right to mount one."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(("mount", "-t", "tmpfs", "-o", "size=64m", "none", folder), check=True)
        try:
            url = f"sqlite:///{folder}/late.db"
            migrate.upgrade(url)
            yield url
        finally:
            subprocess.run(("umount", "--lazy", folder), check=True)


HOST = socket.gethostname()
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
         r"circuit is open for", r"[1-9][\d,]* tasks wait for it: \d", r"late target list --check"),
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
         r"of an earlier tick had not ended \(overlap=skip\)",
         r"It fires every 2\.0 s, and that task has run for", r"late show [0-9a-f-]{36}"),
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
         r"It is migration of user \w+, idle in transaction, its transaction open for",
         r"\d+ sessions of late wait for it", r"not recorded",
         r"psql '?postgresql://\S+ -c 'select pg_terminate_backend\(\d+\)'"),
        "LateSettlementUnanswered", "settlement-unanswered",
    ),
    Drill(
        "a lock on the journal, reads wait too", lambda on: table_is_locked(on, "access exclusive"),
        (r"Process \d+ of the database holds a lock on late_settlement",
         r"It is migration of user \w+, idle in transaction, its transaction open for",
         r"\d+ sessions of late wait for it", r"not recorded",
         r"psql '?postgresql://\S+ -c 'select pg_terminate_backend\(\d+\)'"),
        "LateSettlementUnanswered", "settlement-unanswered",
    ),
    Drill(
        "two kinds of tasks fight for rows", rows_are_fought_for,
        (r"late-foreground:pay and late-foreground:refund are in each other's way",
         r"on account\(id=[78]\)", r"take the rows in one order in both", r"late analyze"),
        "LateConflicts", "conflicts",
    ),
    Drill(
        "a task kills its workers", workers_die,
        (r"Workers die under task [0-9a-f-]{36}|Workers died under 1 of them \(killed_worker\)",
         r"late show [0-9a-f-]{36}|late dead list --queue imports"),
        "LateWorkersDie", "workers-die",
    ),
    Drill(
        "no owner", nobody_is_listed,
        (r"Shards of default are not worked", r"shards have no live owner",
         rf"2 workers are not on their list of members \(LATE_MEMBERSHIP\): {re.escape(HOST)}",
         r"late status --owners"),
        "LateShardsUnowned", "shards-unowned",
    ),
    Drill(
        "no worker", workers_are_gone,
        (r"No worker is alive", r"Nobody works group default", r"50 wait",
         r"late worker MODULE:APP --group default"),
        "LateNoWorkers", "no-workers",
    ),
    Drill(
        "a consumer never acks", consumer_is_silent,
        (r"Consumer \S*courier-17 does not answer",
         r"let the time of \d+ attempts at tasks of queue errands pass",
         r"late queue pause errands"),
        "LateConsumersSilent", "consumers-silent",
    ),
    Drill(
        "a group falls behind", group_falls_behind,
        (r"Group search is stale", r"Only what is older than",
         r"wait, and [\d.]+/s end: that takes",
         r"What helps: more workers, or more tasks at once in each",
         r"late worker MODULE:APP --group search"),
        "LateGroupFallsBehind", "group-falls-behind", group="search",
    ),
    Drill(
        "the disk is nearly full", disk_is_full,
        (r"The disk of the database is nearly full",
         r"[KM]iB of 64\.0 MiB are free \(\d\.\d%\) on /\S+\.", r"other files take 6\d\.\d MiB",
         r"The biggest tables of late: late_\w+ \d", r"du -xah /\S+ \| sort -h \| tail"),
        "LateDiskNearlyFull", "disk-nearly-full", database=small_disk,
    ),
    Drill(
        "a clock is wrong", clock_is_wrong,
        (r"The clock of \S+ is wrong", r"It is (1.5 min|9\d s) ahead of the database's",
         r"late doctor"),
        "LateClockIsOff", "clock-is-off",
    ),
)  # fmt: skip
