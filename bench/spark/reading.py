"""The speed of reading a live PostgreSQL store into Spark: late's source against the JDBC reader.

    python scripts/with_postgres.py python -m bench.spark.reading --postgres '{url}' --jar FILE

Both read the same rows of the journal, all columns, divided by shard or `seq`, into nothing
(`noop`); the first run of each warms up and is not counted. Without `--jar` (PostgreSQL's JDBC
driver) there is no comparison. The target is a third of JDBC's rate, without a jar. `usage` is
what reports read: the same rows, taken apart into counts and histograms.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from late.model.task import Usage
from late.schema.engine import parse
from late.schema.migrate import upgrade

SHARDS = 8
TARGET = 1 / 3
_HISTOGRAM = tuple((200 + 3 * number, 1 + number % 5) for number in range(12))
_USAGE = [
    Usage(f"queue{number % 3}", f"task{number}", "local", outcome, 40, 40, 80_000, 90_000, 4_000,
          2, 100, 3, _HISTOGRAM, _HISTOGRAM)
    for number, outcome in enumerate(("done", "done", "retried", "enqueued", "done"))
]  # fmt: skip


def fill(url: str, settlements: int) -> None:
    """A journal of so many settlements, with usage of the size that a busy worker writes."""
    text = msgspec.json.encode(_USAGE).decode()
    copy = ("copy late_settlement (consumer_group, shard_id, seq, settlement_id, epoch, owner,"
            " cursor, open, usage, settled_at_us) from stdin")  # fmt: skip
    with (
        psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        with cursor.copy(copy) as rows:
            for number in range(settlements):
                seq, shard = number // SHARDS + 1, number % SHARDS
                rows.write_row(
                    ("default", shard, seq, f"w/{shard}/{seq}", 1, "w", "1:1:", "[]", text,
                     1_790_000_000_000_000 + number * 1_000)
                )  # fmt: skip
        cursor.execute("analyze late_settlement")


def rate(rows: int, read: Callable[[], Any], runs: int) -> float:
    """Rows a second of the best of `runs`, after one that warms up."""
    best = float("inf")
    for number in range(runs + 1):
        began = time.perf_counter()
        read().write.format("noop").mode("overwrite").save()
        if number:
            best = min(best, time.perf_counter() - began)
    return rows / best


def measure(url: str, settlements: int, jar: Path | None, runs: int) -> dict[str, Any]:
    """The rates, and their ratio where there is a jar."""
    if jar is not None:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jar} pyspark-shell"
    from late_spark import session

    spark = session.start(cores=2)

    def late(table: str) -> Any:
        reader = spark.read.format("late").option("url", url).option("parts", "4")
        return reader.option("table", table).load()

    def jdbc() -> Any:
        parsed = psycopg.conninfo.conninfo_to_dict(url.replace("+psycopg", ""))
        host, port, name = (parsed.get(key) for key in ("host", "port", "dbname"))
        reader = spark.read.format("jdbc").option("driver", "org.postgresql.Driver")
        for key, value in (
            ("url", f"jdbc:postgresql://{host}:{port}/{name}"), ("dbtable", "late_settlement"),
            ("user", parsed.get("user")), ("password", parsed.get("password", "")),
            ("partitionColumn", "shard_id"), ("lowerBound", 0), ("upperBound", SHARDS),
            ("numPartitions", 4), ("fetchsize", 10_000),
        ):  # fmt: skip
            reader = reader.option(key, value)
        return reader.load()

    try:
        found: dict[str, Any] = {
            "settlements": settlements,
            "load_average": round(os.getloadavg()[0], 1),
            "late_journal_per_s": round(rate(settlements, lambda: late("journal"), runs)),
            "late_usage_rows_per_s": round(
                rate(settlements * len(_USAGE), lambda: late("usage"), runs)
            ),
        }
        if jar is not None:
            found["jdbc_per_s"] = round(rate(settlements, jdbc, runs))
            found["ratio"] = round(found["late_journal_per_s"] / found["jdbc_per_s"], 2)
            found["ok"] = found["ratio"] >= TARGET
        return found
    finally:
        session.stop(spark)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", required=True, metavar="URL",
                        help="a server in which a database may be made")  # fmt: skip
    parser.add_argument("--jar", type=Path, help="PostgreSQL's JDBC driver")
    parser.add_argument("--settlements", type=int, default=400_000)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    admin = options.postgres.replace("+psycopg", "")
    name = f"late_bench_{os.getpid()}"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"create database {name}")
        try:
            url = parse(options.postgres).set(database=name).render_as_string(hide_password=False)
            upgrade(url)
            fill(url, options.settlements)
            found = measure(url, options.settlements, options.jar, options.runs)
            print(json.dumps(found, indent=2))
        finally:
            connection.execute(f"drop database {name} with (force)")


if __name__ == "__main__":
    main()
