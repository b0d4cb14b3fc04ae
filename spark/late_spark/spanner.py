"""Spanner read by many tasks at one timestamp, by Data Boost where that is asked for.

A read at a timestamp sees exactly what was committed by then, whoever asks and however often, for
as long as the database keeps its past (`version_retention_period`, an hour by default). So one
timestamp is the snapshot of a whole plan.

Every statement is a partitioned query, the only kind that Data Boost takes, which runs on machines
of its own and takes nothing from the instance. The plan of a table that has no order asks for the
partitions, and each becomes a part (`Token`); a stretch of the journal is a part already, and its
reader asks for its partitions and reads them all.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
from google.cloud.spanner_v1 import param_types
from google.cloud.sqlalchemy_spanner.sqlalchemy_spanner import (  # type: ignore[import-untyped]
    SpannerDialect,
)
from sqlalchemy import Connection, Engine, Select

from late.errors import ConfigError
from late.schema.engine import translated
from late.schema.spanner import deadlines
from late.schema.spanner.migrate import open_database
from late.store.spanner.cursor import moment_of, nanoseconds

PART_TIMEOUT_S = 900.0
"""Until the reader of one part gives up."""


class Token(NamedTuple):
    """A partition of a query, which any machine may read."""

    session: str
    transaction: bytes
    partition: bytes


def timestamp(engine: Engine, as_of_us: int | None, age_us: int | None = None) -> int:
    """The read timestamp of a plan in nanoseconds: `as_of_us`, or `age_us` ago, or now.

    Raises:
        ConfigError: it has not come yet.
    """
    bound = {"exact_staleness": timedelta(microseconds=age_us)} if age_us else {}
    with translated(), engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        deadlines.start()
        with driver.database.snapshot(**bound) as snapshot:
            result = snapshot.execute_sql("SELECT 1")
            list(result)
            now = nanoseconds(result.metadata.transaction.read_timestamp)
    if as_of_us is None:
        return now
    if as_of_us * 1_000 > now:
        raise ConfigError("asOf: that time has not come")
    return as_of_us * 1_000


@contextmanager
def reading(engine: Engine, at_ns: int) -> Iterator[Connection]:
    """A connection in one read-only transaction at a timestamp."""
    options: dict[str, Any] = {"read_only": True, "staleness": {"read_timestamp": moment_of(at_ns)}}
    with (
        translated(),
        engine.connect().execution_options(**options) as connection,
        connection.begin(),
    ):
        yield connection


def divided(url: str, statement: Select[Any], at_ns: int) -> list[Token]:
    """The partitions of a query at a timestamp.

    They stay readable while the database keeps that timestamp and the session lives. On the
    service that is the client's one multiplexed session, which nobody deletes; on the emulator,
    which forgets it when it ends, one of its own.
    """
    with translated():
        database = open_database(url)
        deadlines.start(PART_TIMEOUT_S)
        snapshot = database.batch_snapshot(read_timestamp=moment_of(at_ns))
        found = list(snapshot.generate_query_batches(**_query(statement)))
        of = snapshot.get_batch_transaction_id()
        return [Token(of.session_id, of.transaction_id, each["partition"]) for each in found]


def batches(
    url: str,
    statement: Select[Any],
    schema: pa.Schema,
    *,
    at_ns: int,
    boost: bool,
    rows: int,
    token: Token | None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a query at a timestamp, or of one of its partitions.

    Args:
        boost: by Data Boost; needs the permission `spanner.databases.useDataBoost`.
        rows: of one batch.
    """
    # An order is none that partitions could keep.
    query = _query(statement.order_by(None))
    with translated():
        database = open_database(url)
        deadlines.start(PART_TIMEOUT_S)
        if token is not None:
            snapshot = database.batch_snapshot(
                session_id=token.session, transaction_id=token.transaction
            )
            partitions = [token.partition]
        else:
            snapshot = database.batch_snapshot(read_timestamp=moment_of(at_ns))
            partitions = [each["partition"] for each in snapshot.generate_query_batches(**query)]
        try:
            for each in partitions:
                batch = {"partition": each, "query": {**query, "data_boost_enabled": boost}}
                result = iter(snapshot.process_query_batch(batch))
                while chunk := list(islice(result, rows)):
                    yield _arrow(chunk, schema)
        finally:
            if token is None:
                snapshot.close()


def _query(statement: Select[Any]) -> dict[str, Any]:
    """The statement as the client wants it: its values are parameters, never text."""
    dialect = SpannerDialect(paramstyle="pyformat")
    made = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
    values = dict(made.params)
    sql = str(made) % {name: f"@{name}" for name in values}
    kinds = {
        name: param_types.INT64 if isinstance(value, int) else param_types.STRING
        for name, value in values.items()
    }
    return {"sql": sql, "params": values or None, "param_types": kinds or None}


def _arrow(rows: list[list[Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for values, field in zip(zip(*rows, strict=True), schema, strict=True):
        if pa.types.is_binary(field.type):
            # Bytes come as the service sends them.
            values = tuple(None if each is None else base64.b64decode(each) for each in values)
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
