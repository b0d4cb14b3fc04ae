"""Record a rollout that a report can be tried on: `python scripts/record_rollout.py FOLDER`.

Real workers run the tasks of 28 days, each day in some seconds, on a database of SQLite. From the
15th day on the worker has release 2 of the handler `checkout`. That one is wrong in two known ways:
it takes 12 ms more, and the first attempt of every fifth task fails. `mail` and `images` are the
same in both.

After each day its settlements get the time of that day at noon, and `late lake export` brings them
into a lake. Nothing else of what the workers wrote is changed. FOLDER gets `usage.parquet`, the
rows of the lake, and `releases.yaml`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from late_spark import lake
from late_spark.export import export
from sqlalchemy import update

import late
from late.outbox import connect
from late.schema.engine import make_engine, writing
from late.schema.tables import settlement
from late.testing import drain

FIRST = datetime(2026, 3, 2, 12, tzinfo=UTC)  # a Monday
DAYS = 28
RELEASED = 14
"""The days of release 1."""
STARTED_US = time.time_ns() // 1_000 - 86_400_000_000
"""What the workers settle is younger than this, and the days that are recorded are older."""
SLOWER_S = 0.012
FAILS_ONE_IN = 5


def made(url: str, release: int) -> late.App:
    """Return the service with this release of its code."""
    app = late.App(url)
    soon = late.Retry(base=0.01, jitter="none")

    @app.task(queue="checkout", retry=soon)
    def checkout(ctx: late.Context, n: int) -> None:
        time.sleep(0.004)
        if release == 2:
            time.sleep(SLOWER_S)
            if n % FAILS_ONE_IN == 0 and ctx.attempt == 1:
                raise TimeoutError("the bank did not answer")
        ctx.count("orders")

    @app.task(queue="mail", retry=soon)
    def mail(n: int) -> None:
        time.sleep(0.002)

    @app.task(queue="images", retry=soon)
    def images(n: int) -> None:
        time.sleep(0.02)

    return app


def tasks(day: int) -> dict[str, int]:
    """Return the number of tasks of each queue on a day: fewer at the weekend, never alike."""
    busy = 0.6 if day % 7 > 4 else 1.0
    return {
        "checkout": round(busy * (40 + 3 * day % 7)),
        "mail": round(busy * (60 + 5 * day % 11)),
        "images": round(busy * (15 + 2 * day % 5)),
    }


def record(url: str, place: Path) -> Iterator[str]:
    """Run each day, export it, and say what came of it."""
    engine = make_engine(url)
    subprocess.run([sys.executable, "-m", "late", "migrate", url], check=True)
    for day in range(DAYS):
        at = FIRST + timedelta(days=day)
        app = made(url, 1 if day < RELEASED else 2)
        with connect(url) as tx:
            for name, count in tasks(day).items():
                app.enqueue_many(tx, [app.tasks[name].call(n=n) for n in range(count)])
        ended = drain(app, wait_s=5.0)
        with writing(engine) as connection:
            # What an earlier day has written has its time already, which is in the past.
            connection.execute(
                update(settlement)
                .where(settlement.c.settled_at_us > STARTED_US)
                .values(settled_at_us=round(at.timestamp()) * 1_000_000)
            )
        export(url, place)
        yield f"{at:%a %Y-%m-%d}: {ended}"
    engine.dispose()


def keep(place: Path, folder: Path) -> None:
    """Write the rows of the lake as one file, and the times of the releases."""
    manifest = lake.load(place)
    assert manifest is not None
    rows = [pq.read_table(place / file.path, partitioning=None) for file in manifest.files]
    whole = pa.concat_tables(rows).sort_by([("settled_us", "ascending"), ("shard_id", "ascending")])
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(whole, folder / "usage.parquet", compression="zstd")
    first, second = (FIRST + timedelta(days=day) for day in (0, RELEASED))
    (folder / "releases.yaml").write_text(f'"1": {first:%Y-%m-%d}\n"2": {second:%Y-%m-%d}\n')


def main(folder: Path) -> None:
    """Record it anew."""
    with tempfile.TemporaryDirectory() as scratch:
        for line in record(f"sqlite:///{scratch}/rollout.db", Path(scratch) / "lake"):
            print(line, flush=True)
        keep(Path(scratch) / "lake", folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
