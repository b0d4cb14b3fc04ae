"""Usage for DuckDB: Parquet files where they lie, and the journal read into a table beside them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from late_spark import parts, schema
from late_spark.bounds import Bounds
from late_spark.relation import OnDuckDB, explained

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from late_spark.live import Plan

MEMORY = "2GiB"
"""What does not fit goes to a file for as long as it is needed."""
COLUMNS = [name for name in schema.USAGE if name != "settled_at"]
"""All columns of usage but the one that says `settled_us` once more."""


def opened(files: Iterable[Path], url: str | None = None, behind: Plan | None = None) -> OnDuckDB:
    """Open the usage of Parquet files, and with `url` that of a journal.

    Args:
        behind: the plan of the read of the journal (`live.plan`).

    Raises:
        JournalPruned: retention has taken settlements of the plan meanwhile.
        StoreError: a file is gone or damaged.
    """
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"set memory_limit = '{MEMORY}'")
    connection.execute(
        "set temp_directory = ?", [str(Path(tempfile.gettempdir(), f"late-{id(connection):x}"))]
    )
    connection.execute("set TimeZone = 'UTC'")
    columns = ", ".join(f'"{name}" {_kind(name)}' for name in COLUMNS)
    connection.execute(f"create table journal ({columns})")
    if url is not None and behind is not None:
        _read(connection, url, behind)
    chosen = ", ".join(f'"{name}"' for name in COLUMNS)
    found = "select * from journal"
    paths = ", ".join("'" + str(each).replace("'", "''") + "'" for each in files)
    if paths:
        # By name, and what a file of an older version lacks is null.
        found += (
            f" union all by name select * from read_parquet([{paths}], union_by_name = true,"
            " hive_partitioning = false)"
        )
    with explained():
        connection.execute(f"create view usage as select {chosen} from ({found})")
    return OnDuckDB(connection)


def _kind(name: str) -> str:
    return schema.USAGE[name].replace("<", "(").replace(">", ")")


def _read(connection: DuckDBPyConnection, url: str, plan: Plan) -> None:
    for part in plan.parts:
        for batch in parts.read(
            url, "usage", part, COLUMNS, Bounds(), plan.owners, moment=plan.moment
        ):
            connection.register("batch", pa.Table.from_batches([batch]))
            connection.execute("insert into journal by name select * from batch")
            connection.unregister("batch")
