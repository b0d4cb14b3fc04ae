"""Rows of a store as Arrow batches: one statement, at one moment.

PostgreSQL is read through ADBC, which gets Arrow from the wire without an object per value; Spanner
by partitioned queries (`spanner.py`); other stores through the drivers that late has for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlalchemy import Connection, Engine, Select, text
from sqlalchemy.dialects import postgresql

from late.errors import ConfigError, StoreUnavailable
from late.schema.engine import is_spanner, make_engine, parse, reading, translated

if TYPE_CHECKING:
    from late_spark.spanner import Token

ROWS = 10_000
"""Rows of one batch, where the driver leaves that to us."""


@dataclass(frozen=True)
class Moment:
    """The moment and manner of a read, which all parts of a plan share."""

    snapshot: str | None = None
    """The name of a snapshot that PostgreSQL has exported."""
    as_of_us: int | None = None
    """A time that has passed; of Spanner."""
    age_us: int | None = None
    """The same as an age: a replica near by chooses the time, without a word to the leader."""
    boost: bool = False
    """By Spanner's Data Boost."""
    at_ns: int | None = None
    """The read timestamp on Spanner, once a plan has it (`settled`)."""
    in_one: bool = False
    """Each statement is read as one stream, in its order, and not by partitions."""

    @property
    def by_partitions(self) -> bool:
        """Return True if rows come by partitions of Spanner, in no order."""
        return self.at_ns is not None and not self.in_one


NOW = Moment()


def settled(engine: Engine, moment: Moment, *, changing: bool) -> Moment:
    """The moment as all parts of a plan can read it: on Spanner, with its timestamp.

    Args:
        changing: whether rows may change. The journal's do not: nobody needs a timestamp for it,
            which Spanner would forget while a long export goes on.

    Raises:
        ConfigError: one that this database cannot read.
    """
    name = engine.dialect.name
    if not is_spanner(str(engine.url)):
        past = moment.as_of_us is not None or moment.age_us is not None
        for option, given in (("asOf", past), ("dataBoost", moment.boost)):
            if given:
                raise ConfigError(f"{option} is of Spanner; this database is {name}")
        return moment
    if moment.snapshot is not None:
        raise ConfigError("a snapshot is of PostgreSQL; Spanner has asOf")
    if moment.at_ns is not None or (not changing and moment == NOW):
        return moment
    from late_spark import spanner

    return replace(moment, at_ns=spanner.timestamp(engine, moment.as_of_us, moment.age_us))


@contextmanager
def snapshot_of(engine: Engine, moment: Moment) -> Iterator[Connection]:
    """A connection in one read-only transaction: of the moment, which is `settled`.

    Raises:
        StoreUnavailable: the snapshot's exporter is gone.
    """
    if moment.at_ns is not None:
        from late_spark import spanner

        with spanner.reading(engine, moment.at_ns) as connection:
            yield connection
        return
    with reading(engine) as connection:
        if moment.snapshot is not None:
            _adopt(connection, moment.snapshot)
        yield connection


def _adopt(connection: Connection, snapshot: str) -> None:
    try:
        # The name comes from pg_export_snapshot(), and it cannot be a parameter.
        quoted = snapshot.replace("'", "''")
        connection.execute(text(f"set transaction snapshot '{quoted}'"))
    except Exception as error:
        raise StoreUnavailable(f"the snapshot {snapshot} is gone: its reader has ended") from error


def batches(
    url: str,
    statement: Select[Any],
    schema: pa.Schema,
    *,
    moment: Moment = NOW,
    token: Token | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read all rows of `statement`, or of one partition of it, as batches of `schema`.

    Lazily, in one transaction; in the statement's order, but for a moment `by_partitions`."""
    if moment.by_partitions:
        from late_spark import spanner

        assert moment.at_ns is not None
        yield from spanner.batches(
            url, statement, schema, at_ns=moment.at_ns, boost=moment.boost, rows=ROWS, token=token
        )
        return
    if parse(url).get_backend_name() == "postgresql" and find_spec("adbc_driver_postgresql"):
        yield from _arrow(url, statement, schema, moment.snapshot)
        return
    engine = make_engine(url)
    try:
        with snapshot_of(engine, moment) as connection, translated():
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
