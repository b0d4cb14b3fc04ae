"""The page at size: `python -m bench.page --store sqlite --tasks 1000000` fills a database with a
thousand queues, looks at every screen, and says what each has cost.

Half of the tasks wait in the log, the others are parked or dead. For each screen: the slowest
statement, all statements together, the server's time, the bytes, and with Chromium the first paint
of a browser that has the scripts already and of one that has not.

Times are by the clock on the wall, which on a machine with other work is an upper bound; beside
them (`_cpu_ms`) is the processor time: of the page's process, and for a statement that of the
database's one, where it can be seen (SQLite; PostgreSQL on this machine).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, event, text

from late.control import Control
from late.model.histogram import bucket
from late.model.ids import new_id
from late.model.task import Usage
from late.schema import migrate
from late.schema.engine import make_engine, writing
from late.schema.tables import queue as queue_table
from late.schema.tables import schedule as schedule_table
from late.testing.servers.databases import postgres
from late.worker.assembly import freeze_gc
from scripts import browser
from tests.web.chromium import Chromium, Person
from tests.web.serving import Served

QUEUES = 1_000
SHARDS = 64
JOURNAL = 500
"""Settlements of each shard; a look reads the last fifty."""
CHUNK = 250_000
PAYLOAD = '{"order": 1234567, "customer": "c-1234567", "amount": "12.50"}'
_RANDOM_ID = (
    "lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-7' || substr(hex(randomblob(2)), 2)"
    " || '-8' || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))"
)
SLOWEST_MS, PAGE_BYTES, PAINT_MS = 100.0, 100 * 1024, 300.0
"""The limits for the page."""
RECORD = "position, sequence, queue, name, payload, created_at_us, attempts, deaths"


class Took(NamedTuple):
    """One statement: milliseconds by the wall's clock and of processors, and its text."""

    ms: float
    cpu_ms: float
    sql: str


class Timed:
    """The duration of each statement of one engine."""

    def __init__(self, control: Control) -> None:
        self.found: list[Took] = []
        event.listen(control._database.engine, "before_cursor_execute", self._before)
        event.listen(control._database.engine, "after_cursor_execute", self._after)

    def _before(self, *arguments: Any) -> None:
        arguments[0].info["late_begun"] = _processor_s(arguments[0]), time.perf_counter()

    def _after(self, *arguments: Any) -> None:
        spent_s, began = arguments[0].info["late_begun"]
        took_ms = (time.perf_counter() - began) * 1_000
        cpu_ms = (_processor_s(arguments[0]) - spent_s) * 1_000
        self.found.append(Took(took_ms, cpu_ms, " ".join(arguments[2].split())))


def _processor_s(connection: Connection) -> float:
    """Return the processor time of this thread and of its PostgreSQL process, without the helpers
    of a parallel plan."""
    spent = time.thread_time()
    if connection.dialect.name == "postgresql":
        pid = connection.connection.dbapi_connection.info.backend_pid  # type: ignore[union-attr]
        with suppress(OSError):  # on another machine
            spent += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return spent


def fill(url: str, tasks: int) -> list[str]:
    """Returns ids of a task that waits, one that is parked and one that is dead."""
    migrate.upgrade(url)
    with Control(url) as control:
        control.lanes.set_shards("default", SHARDS)
        now = control.now()
    engine = make_engine(url)
    ids = []
    try:
        for table, count in (("late_task", tasks // 2), ("late_timer", tasks // 4),
                             ("late_dead", tasks - tasks // 2 - tasks // 4)):  # fmt: skip
            began = time.monotonic()
            for start in range(0, count - 1, CHUNK):
                with writing(engine) as connection:
                    statement = _bulk(table, connection.dialect.name)
                    bounds = {"a": start, "b": min(start + CHUNK, count - 1) - 1, "now": now}
                    connection.execute(text(statement), bounds)
            row = _row(table, count, now)
            with writing(engine) as connection:
                connection.execute(text(_insert(table)), row)
            ids.append(row["task_id"])
            print(f"[fill] {table}: {count:,} rows in {time.monotonic() - began:.0f} s", flush=True)
        with writing(engine) as connection:
            _around(connection, now)
        if url.startswith("postgresql"):
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text("analyze"))
    finally:
        engine.dispose()
    return ids


def _columns(table: str) -> list[str]:
    if table == "late_task":
        return ["shard_id", "task_id", "queue", "name", "payload", "created_at_us"]
    due = "due_at_us" if table == "late_timer" else "dead_at_us"
    columns = ["consumer_group", "shard_id", due, "task_id", "reason", *RECORD.split(", ")]
    return columns + (["errors"] if table == "late_dead" else [])


def _insert(table: str) -> str:
    columns = _columns(table)
    return f"insert into {table} ({', '.join(columns)}) values (:{', :'.join(columns)})"


def _bulk(table: str, dialect: str) -> str:
    """Rows :a to :b, made by the database itself: a million in seconds. Their ids are random, for
    nobody looks for them by id."""
    postgres = dialect == "postgresql"
    values = {
        "consumer_group": "'default'", "shard_id": f"n % {SHARDS}",
        "task_id": "gen_random_uuid()" if postgres else _RANDOM_ID,
        "due_at_us": ":now + n * 1000", "dead_at_us": ":now - n * 1000",
        "reason": "'delay'" if table == "late_timer" else "'failed'",
        "position": "n + 1", "sequence": "n + 1", "name": "'work'",
        "queue": f"'queue-' || substr('000' || (n * 7 % {QUEUES}), -4)",
        "payload": f"convert_to('{PAYLOAD}', 'UTF8')" if postgres else f"cast('{PAYLOAD}' as blob)",
        "created_at_us": ":now - 60000000 + n", "attempts": "1", "deaths": "0",
        "errors": "'[[1, 1, \"w-1\", \"TimeoutError: no answer from host ' || n || '\"]]'",
    }  # fmt: skip
    if postgres:
        values["queue"] = f"'queue-' || lpad((n * 7 % {QUEUES})::text, 4, '0')"
        series = "select generate_series(cast(:a as bigint), cast(:b as bigint)) n"
    else:
        series = "with recursive s(n) as (select :a union all select n + 1 from s where n < :b)"
        series += " select n from s"
    columns = _columns(table)
    made = ", ".join(values[name] for name in columns)
    return f"insert into {table} ({', '.join(columns)}) select {made} from ({series}) made"


def _row(table: str, n: int, now: int) -> dict[str, Any]:
    """One with a real id, to be looked at."""
    shard = 5
    return {
        "consumer_group": "default", "shard_id": shard, "task_id": str(new_id(shard)),
        "due_at_us": now + n * 1_000, "dead_at_us": now - n * 1_000,
        "reason": "delay" if table == "late_timer" else "failed", "position": n + 1,
        "sequence": n + 1, "queue": "queue-0500", "name": "work", "payload": PAYLOAD.encode(),
        "created_at_us": now, "attempts": 1, "deaths": 0, "errors": None,
    }  # fmt: skip


def _around(connection: Connection, now: int) -> None:
    """Workers, leases, a journal with usage, knobs of every queue, schedules."""
    names = [f"w-{n:02}" for n in range(16)]
    for name in names:
        connection.execute(text(
            "insert into late_worker (worker_id, expires_at_us, started_at_us, address,"
            " consumer_groups, capacity, version) values (:id, :until, :now, 'host:1',"
            " '[\"default\"]', 1, '1')"), {"id": name, "until": now + 10**13, "now": now}
        )  # fmt: skip
    for shard in range(SHARDS):
        owner = names[shard % len(names)]
        connection.execute(text(
            "insert into late_lease (consumer_group, shard_id, owner, epoch)"
            " values ('default', :shard, :owner, 1)"), {"shard": shard, "owner": owner}
        )  # fmt: skip
        connection.execute(text(
            "insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch,"
            " owner, cursor, open, usage, settled_at_us) values ('default', :shard, :seq, :id, 1,"
            " :owner, '', '[]', :usage, :at)"),
            [{"shard": shard, "seq": seq, "id": f"{shard}-{seq}", "owner": owner,
              "usage": _usage(shard, seq), "at": now - (JOURNAL - seq) * 100_000}
             for seq in range(1, JOURNAL + 1)],
        )  # fmt: skip
    for n in range(QUEUES):
        connection.execute(queue_table.insert().values(
            name=f"queue-{n:04}", version=1, knobs=f'{{"rate":50.0,"owner":"team-{n % 20}"}}',
            updated_at_us=now,
        ))  # fmt: skip
    for n in range(200):
        connection.execute(schedule_table.insert().values(
            name=f"tick-{n:03}", shard_id=n % SHARDS, rule="every 60s", zone="UTC",
            catch_up="latest", catch_up_max=1, overlap="skip", queue="queue-0001", task_name="tick",
            payload=b"{}", anchor_us=0, next_due_at_us=now + n * 10**6, updated_at_us=now,
        ))  # fmt: skip


def _usage(shard: int, seq: int) -> str:
    times = ((bucket(9_000), 3), (bucket(40_000), 2))
    counts = [
        Usage(f"queue-{(shard * 37 + seq * 11 + k) % QUEUES:04}", "work", "local", "done", 5, 5,
              60_000, payload_bytes=300, waiting=times, busy=times)
        for k in range(8)
    ]  # fmt: skip
    return msgspec.json.encode(counts).decode()


def screens(ids: Sequence[str]) -> list[str]:
    return [
        "", "queues", "queues?text=99", "queues/queue-0500", "queues/queue-0500?span=7d",
        "targets", "groups", "groups/default", "shards", "shards/default/7",
        *(f"tasks/{each}" for each in ids),
        "dead", "dead?queue=queue-0500&group=default", "tasks?state=parked", "schedules", "workers",
        "autoscaler", "cost",
    ]  # fmt: skip


def measure(url: str, ids: Sequence[str], *, times: int) -> list[dict[str, Any]]:
    """One line for each screen, and one for the look that they share."""
    program = browser.find()
    found = []
    with (
        Served(url, every_s=None) as served,
        Chromium(program) if program else nullcontext() as chromium,
    ):
        freeze_gc()  # as `late serve` does when it has started
        control = served.site._context.control
        timed = Timed(control)
        look = [_look(control, timed) for _ in range(times)]
        found.append({"screen": "(look)", **_worst([each[0] for each in look]),
                      "server_ms": _median(each[1] for each in look),
                      "server_cpu_ms": _median(each[2] for each in look)})  # fmt: skip
        print(json.dumps(found[-1]), flush=True)
        urllib.request.urlopen(served.root).close()  # Our own server. # nosec B310
        for path in screens(ids):
            spent, cpu, runs, size = [], [], [], 0
            for _ in range(times):
                timed.found.clear()
                began, used = time.perf_counter(), time.process_time()
                with urllib.request.urlopen(served.root + path) as answer:  # nosec B310
                    size = len(answer.read())
                spent.append((time.perf_counter() - began) * 1_000)
                cpu.append((time.process_time() - used) * 1_000)
                runs.append(list(timed.found))
            line = {"screen": path, **_worst(runs), "bytes": size,
                    "server_ms": _median(spent), "server_cpu_ms": _median(cpu)}  # fmt: skip
            if isinstance(chromium, Chromium):
                line |= _painted(chromium, served.root + path, times)
            found.append(line)
            print(json.dumps(line), flush=True)
    return found


def _look(control: Control, timed: Timed) -> tuple[list[Took], float, float]:
    from late.web.snapshot import SnapshotReader

    timed.found.clear()
    began, used = time.perf_counter(), time.process_time()
    SnapshotReader(control)._read()
    spent, cpu = time.perf_counter() - began, time.process_time() - used
    return list(timed.found), spent * 1_000, cpu * 1_000


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 1)


def _worst(runs: Sequence[Sequence[Took]]) -> dict[str, Any]:
    """Summarise all runs: the slowest statement, the number of statements and their time."""
    statements = [each for run in runs for each in run]
    slowest = max(statements, default=Took(0.0, 0.0, ""))
    return {"slowest_ms": round(slowest.ms, 1), "statements": len(statements) // len(runs),
            "slowest_cpu_ms": round(max((each.cpu_ms for each in statements), default=0.0), 1),
            "together_ms": _median(sum(each.ms for each in run) for run in runs),
            "together_cpu_ms": _median(sum(each.cpu_ms for each in run) for run in runs),
            "slowest": slowest.sql[:160] if slowest.ms > SLOWEST_MS else ""}  # fmt: skip


def _painted(chromium: Chromium, url: str, times: int) -> dict[str, Any]:
    """Milliseconds from the start of the navigation to the first contentful paint."""
    person = Person(chromium)
    paints, bytes_ = [], 0
    try:
        for _ in range(times + 1):
            tab = person.tab()
            tab.go(url)
            script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
            paints.append(float(tab.wait(script)))
            bytes_ = max(bytes_, tab.received)
            tab.close()
    finally:
        person.leave()
    return {"first_paint_cold_ms": round(paints[0]), "all_bytes": bytes_,
            "first_paint_ms": round(statistics.median(paints[1:]))}  # fmt: skip


@contextmanager
def store(name: str, folder: str) -> Iterator[str]:
    if name == "postgres":
        with postgres() as url:
            yield url
    else:
        yield f"sqlite:///{folder}/page.db"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--tasks", type=int, default=200_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, store(asked.store, folder) as url:
        ids = fill(url, asked.tasks)
        load = os.getloadavg()[0]
        found = measure(url, ids, times=asked.times)
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True,
                              text=True, check=False).stdout.strip()  # fmt: skip
    result = {"store": asked.store, "tasks": asked.tasks, "queues": QUEUES, "shards": SHARDS,
              "load": round(load, 1), "revision": revision, "screens": found}  # fmt: skip
    if asked.output:
        asked.output.write_text(json.dumps(result, indent=1) + "\n")
    for what, name, limit in (("slowest statement, ms", "slowest_ms", SLOWEST_MS),
                              ("the same, processor ms", "slowest_cpu_ms", SLOWEST_MS),
                              ("bytes with all that is loaded", "all_bytes", PAGE_BYTES),
                              ("first paint, ms", "first_paint_ms", PAINT_MS)):  # fmt: skip
        worst = max(found, key=lambda line: line.get(name, 0))
        print(f"{what}: {worst.get(name)} ({worst['screen'] or 'overview'}), limit {limit:g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
