"""`make bench-migrations`: how long each revision holds up those who work, on large tables.

A PostgreSQL database is taken back to revision 0006, the earliest with a way to it, and filled: the
log, the journal, the timers and the dead letters have `--rows` rows each. Then each revision is
applied in a transaction of its own, beside a producer that commits a task every few milliseconds.
The stall is the longest time between two of its commits while the revision ran; a lock is one that
keeps readers or writers of a table out, as `pg_locks` shows it every five milliseconds.

    python -m bench.migrations --postgres URL [--rows 1000000]
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from alembic import command

from bench.steady.loop import Beside
from bench.targets import Postgres
from late.schema import migrate
from late.schema.engine import make_engine, writing

FIRST = "0006"
ROWS = 1_000_000
TASK = "insert into late_task (shard_id, task_id, queue, name, payload) "
PAYLOAD = "convert_to('[7,1234567]', 'utf8')"
FROM = " from generate_series(1, %(rows)s) n"
COLUMNS = "consumer_group, shard_id, {due}, task_id, position, sequence, queue, name, payload, "
PARKED = (
    "insert into {table} (" + COLUMNS + "reason, created_at_us, attempts, deaths) "
    "select 'default', mod(n, 8), n, gen_random_uuid(), n, n, 'mail', 'send', " + PAYLOAD + ", "
    "'{reason}', n, 1, 0" + FROM
)
FILL = (
    TASK + "select mod(n, 8), gen_random_uuid(), 'mail', 'send', " + PAYLOAD + FROM,
    "insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch, owner,"
    " cursor, open, settled_at_us) select 'default', mod(n, 8), n, 's' || n, 1, 'w', '', '', n"
    + FROM,
    PARKED.format(table="late_timer", due="due_at_us", reason="retry"),
    PARKED.format(table="late_dead", due="dead_at_us", reason="gave_up"),
    "analyze",
)
KEEPS_OUT = ("AccessExclusiveLock", "ExclusiveLock", "ShareRowExclusiveLock", "ShareLock")
LOCKS = (
    "select distinct c.relname from pg_locks l join pg_class c on c.oid = l.relation"
    " where l.granted and c.relkind in ('r', 'p') and c.relname like 'late%%' and l.pid <> %s"
    " and l.mode = any(%s)"
)


class Watch:
    """Commits of a producer, and locks that keep others out, while a revision runs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self.commits: list[float] = []
        self.locked: dict[str, list[float]] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        threads = [threading.Thread(target=each) for each in (self._produce, self._look)]
        for thread in threads:
            thread.start()
        while not self.commits:
            time.sleep(0.01)
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _produce(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._over.is_set():
                connection.execute(TASK + "values (1, gen_random_uuid(), 'mail', 'send', '')")
                self.commits.append(time.monotonic())
                time.sleep(0.002)

    def _look(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            mine = connection.info.backend_pid
            while not self._over.is_set():
                for (name,) in connection.execute(LOCKS, (mine, list(KEEPS_OUT))):
                    self.locked.setdefault(name, []).append(time.monotonic())
                time.sleep(0.005)

    def stall_ms(self, began: float, ended: float) -> float:
        """Return the longest time between two commits, of which the later came after `began`."""
        pairs = zip(self.commits, self.commits[1:], strict=False)
        return 1e3 * max((b - a for a, b in pairs if b >= began and a <= ended), default=0.0)

    def locks(self) -> str:
        """Return how long each table was seen locked, the longest first."""
        spans = {name: 1e3 * (seen[-1] - seen[0]) for name, seen in self.locked.items()}
        found = sorted(spans.items(), key=lambda each: -each[1])
        return ", ".join(f"`{name}` {ms:.0f} ms" for name, ms in found) or "none seen"


def apply(url: str, revision: str) -> str:
    """Apply one revision beside the producer, and return a line of the table."""
    engine, watch = make_engine(url), Watch(url.replace("+psycopg", ""))
    with watch.on():
        began = time.monotonic()
        with writing(engine) as connection:
            config = migrate._config()
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
        ended = time.monotonic()
        time.sleep(0.1)
    engine.dispose()
    cells = (revision, f"{1e3 * (ended - began):.0f}", f"{watch.stall_ms(began, ended):.0f}")
    return f"| {' | '.join(cells)} | {watch.locks()} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.migrations", description=__doc__)
    parser.add_argument("--postgres", metavar="URL", required=True)
    parser.add_argument("--rows", type=int, default=ROWS)
    asked = parser.parse_args()
    target = Postgres(asked.postgres)
    url = target.fresh()
    try:
        migrate.downgrade(url, FIRST)
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            for statement in FILL:
                connection.execute(statement, {"rows": asked.rows})
        print(f"{asked.rows:,} rows in each of four tables")
        print("| revision | took, ms | longest stall of a producer, ms | locks that keep out |")
        print("|---|--:|--:|---|")
        with Beside() as loop:
            for revision in migrate.revisions():
                if revision > FIRST:
                    print(apply(url, revision), flush=True)
        print(loop.figures())
    finally:
        target.clear()


if __name__ == "__main__":
    main()
