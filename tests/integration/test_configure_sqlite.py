"""What a service sets up on the connections of SQLite that are opened for its handlers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import late
from late.outbox import configure_sqlite, connect, connections
from late.testing import drain
from tests.support import sqlite


@pytest.fixture
def checked() -> Iterator[None]:
    @configure_sqlite
    def check(connection: sqlite3.Connection) -> None:
        connection.execute("pragma foreign_keys = on")

    yield
    connections._configured.remove(check)


@pytest.mark.parametrize("transaction", [False, True])
def test_foreign_keys_are_checked_in_every_transaction_of_a_handler(
    tmp_path: Path, checked: None, transaction: bool
) -> None:
    url = sqlite.database(tmp_path / "x.db")
    app, seen = late.App(url), list[int]()

    def look(tx: sqlite3.Connection) -> None:
        seen.append(tx.execute("pragma foreign_keys").fetchone()[0])

    if transaction:

        @app.task(transaction=True)
        def job(ctx: late.Context) -> None:
            look(ctx.tx)
    else:

        @app.task
        def job(ctx: late.Context) -> None:
            with ctx.once() as tx:
                look(tx)
            with ctx.begin() as tx:
                look(tx)

    with connect(url) as tx:
        look(tx)
        job.enqueue(tx)
    drain(app)
    assert seen == [1] * (2 if transaction else 3)


def test_one_that_fails_leaves_no_connection_open(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "x.db")

    @configure_sqlite
    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("pragma foreign_keys = on")
        raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError), connect(url):
            pass
    finally:
        connections._configured.remove(fail)
    with connect(url) as tx:
        assert tx.in_transaction
