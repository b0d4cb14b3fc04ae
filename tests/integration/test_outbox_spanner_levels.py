"""Spanner's isolation levels, and what an enqueue needs of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud.spanner_v1 import DefaultTransactionOptions, TransactionOptions
from sqlalchemy import create_engine

import late
from late.errors import InvalidTask, SchemaMismatch
from late.store.spanner.client import close_database, open_database
from tests.integration import spanner_kit as kit

app = late.App("sqlite:///unused.db")


@app.task
def greet(name: str) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    with kit.emulator() as host, kit.environment(host):
        yield kit.fresh(*kit.TABLES)


def test_an_order_is_refused_under_repeatable_read(url: str) -> None:
    """A snapshot does not see that the lane is resized before its commit."""
    level: Any = TransactionOptions.IsolationLevel
    ordered = greet.options(ordering_key="k")

    def body(tx: Any) -> None:
        ordered.enqueue(tx, "Ada")

    def refused() -> Any:
        return pytest.raises(InvalidTask, match="serializable")

    engine = create_engine(url)
    connected = engine.connect().execution_options(isolation_level="REPEATABLE READ")
    with connected as connection, refused():
        body(connection)
    engine.dispose()
    database = open_database(url, priority="foreground")
    try:
        with refused():
            database.run_in_transaction(body, isolation_level=level.REPEATABLE_READ)
        database.default_transaction_options = DefaultTransactionOptions(level.REPEATABLE_READ)
        with refused():
            database.run_in_transaction(body)
        # It came to the look at the lane, which these tables lack.
        with pytest.raises(SchemaMismatch):
            database.run_in_transaction(body, isolation_level=level.SERIALIZABLE)
    finally:
        close_database(database)
