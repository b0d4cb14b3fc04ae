"""Rows of a store as Arrow batches: one statement, one read-only transaction.

PostgreSQL is read through ADBC, which gets Arrow from the wire without an object per value; other
stores through the drivers that late has for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Engine, Select, text
from sqlalchemy.dialects import postgresql

from late.errors import StoreUnavailable
from late.schema.engine import make_engine, parse, reading, translated

ROWS = 10_000
"""Rows of one batch, where the driver leaves that to us."""


@contextmanager
def snapshot_of(engine: Engine, snapshot: str | None) -> Iterator[Connection]:
    """A connection in one read-only transaction: of the exported `snapshot`, or of now.

    Raises:
        StoreUnavailable: the snapshot's exporter is gone.
    """
    with reading(engine) as connection:
        if snapshot is not None:
            _adopt(connection, snapshot)
        yield connection


def _adopt(connection: Connection, snapshot: str) -> None:
    try:
        # The name comes from pg_export_snapshot(), and it cannot be a parameter.
        quoted = snapshot.replace("'", "''")
        connection.execute(text(f"set transaction snapshot '{quoted}'"))
    except Exception as error:
        raise StoreUnavailable(f"the snapshot {snapshot} is gone: its reader has ended") from error


def batches(
    url: str, statement: Select[Any], schema: pa.Schema, *, snapshot: str | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows of `statement`, as batches of `schema`; lazily, in one transaction."""
    if parse(url).get_backend_name() == "postgresql" and find_spec("adbc_driver_postgresql"):
        yield from _arrow(url, statement, schema, snapshot)
        return
    engine = make_engine(url)
    try:
        with snapshot_of(engine, snapshot) as connection, translated():
            streamed = connection.execution_options(yield_per=ROWS)
            for rows in streamed.execute(statement).partitions():
                columns = zip(*rows, strict=True)
                yield pa.RecordBatch.from_arrays(
                    [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)],
                    schema=schema,
                )
    finally:
        engine.dispose()


def _arrow(
    url: str, statement: Select[Any], schema: pa.Schema, snapshot: str | None
) -> Iterator[pa.RecordBatch]:
    from adbc_driver_postgresql import dbapi

    parsed = parse(url).set(drivername="postgresql")
    # Without a paramstyle of a driver, a `%` in a literal stays what it is.
    make: Any = postgresql.dialect
    dialect = make(paramstyle="named")
    sql = str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    try:
        with (
            dbapi.connect(parsed.render_as_string(hide_password=False)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("set transaction isolation level repeatable read, read only")
            if snapshot is not None:
                cursor.execute("set transaction snapshot '{}'".format(snapshot.replace("'", "''")))
            cursor.execute(sql)
            for batch in cursor.fetch_record_batch():
                arrays = [c.cast(f.type) for c, f in zip(batch.columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            connection.rollback()
    except dbapi.Error as error:
        message = str(error).strip().splitlines()[0][:300]
        raise StoreUnavailable(message) from error
