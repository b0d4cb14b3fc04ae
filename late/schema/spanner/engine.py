"""The SQLAlchemy engine of Spanner. It adds deadlines, and does not repeat after ABORTED."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from google.cloud.spanner_dbapi.connection import (  # type: ignore[import-untyped]
    Connection as Driver,
)
from sqlalchemy import URL, Engine, create_engine, event

from late.errors import TransactionAborted
from late.schema.spanner import deadlines
from late.schema.spanner.address import HOST_VARIABLE, options_of, place_of
from late.schema.spanner.migrate import open_database

STATEMENT_TIMEOUT_S = 30.0
"""The deadline of one statement or commit, as a report over a large backlog may take long. The
first request of a connection has `deadlines.CALL_TIMEOUT_S`."""


def make(parsed: URL) -> Engine:
    """Make an engine for `parsed`. It does not connect yet.

    Raises:
        ConfigError: the URL has another form, or an unknown option.
    """
    url = str(parsed)
    place_of(url)
    options_of(url)
    engine = create_engine(parsed, creator=lambda: _connect(url), pool_size=1, max_overflow=1)

    def start(*_: Any) -> None:
        deadlines.start(STATEMENT_TIMEOUT_S)

    # What the dialect asks past its cursors, such as `has_table`, would have what is left of an
    # earlier call's time: a thread begins with the context of its caller.
    event.listen(engine, "checkout", lambda *_: deadlines.start())
    for moment in ("before_cursor_execute", "commit", "rollback"):
        event.listen(engine, moment, start)
    return engine


def _connect(url: str) -> Driver:
    database = open_database(url)
    make_driver: Any = Driver  # The client has few types.
    driver: Driver = make_driver(database._instance, database)
    # After ABORTED the driver runs the statements again and compares their results. It waits two
    # seconds first, then four, and so on up to fifty times; and a statement that reads the time
    # never returns the same result. So `late.schema.engine.write` repeats the whole work instead.
    driver._transaction_helper.retry_transaction = _aborted
    return driver


def _aborted(*_: Any, **__: Any) -> NoReturn:
    said = "Spanner has aborted the transaction: others hold its locks. Run it again"
    if os.environ.get(HOST_VARIABLE):
        said += "; the emulator takes one transaction at a time, so stop the workers for that"
    raise TransactionAborted(said)
