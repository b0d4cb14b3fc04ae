"""How many shards are asked in one statement, without a database."""

from __future__ import annotations

from typing import Any, cast

import pytest
from google.cloud import spanner_dbapi
from google.cloud.sqlalchemy_spanner.sqlalchemy_spanner import SpannerDialect
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from late.control.sql import positions
from late.control.status import backlog
from late.model.task import Reads
from late.store.spanner.cursor import cursor_at

SHARDS = 64


class Statements:
    """Compiles what is sent, and finds nothing."""

    def __init__(self, dialect: Any) -> None:
        self.dialect = dialect
        self.sent: list[Any] = []

    def execute(self, statement: Any, parameters: Any = None) -> Statements:
        whole = {"render_postcompile": True}
        self.sent.append(statement.compile(dialect=self.dialect, compile_kwargs=whole))
        return self

    def all(self) -> list[Any]:
        return []


def spanner() -> Statements:
    return Statements(SpannerDialect(dbapi=spanner_dbapi))


@pytest.mark.parametrize(("queues", "statements"), [(1, 4), (24, 4), (60, 7), (800, SHARDS)])
def test_statements_of_spanner_have_no_more_parameters_than_it_takes(
    queues: int, statements: int
) -> None:
    fake = spanner()
    connection = cast(Connection, fake)
    reads = Reads(frozenset(f"q{n}" for n in range(queues)), 5, 0)
    among = positions.taken(connection, reads)
    cursor = cursor_at(1_700_000_000_000_000_000)
    asked = [backlog.Ahead(n, cursor, among) for n in range(SHARDS)]
    backlog.per_queue(connection, asked, 1_000)
    assert len(fake.sent) == statements
    assert max(len(each.positiontup) for each in fake.sent) <= 950


def test_a_planner_is_not_told_how_few_rows_of_the_log_are_asked_for() -> None:
    """It guesses at what is beyond a cursor, and would sort all of it where it guesses less."""
    texts = []
    for shards in (3, 30):
        fake = Statements(PGDialect_psycopg())
        asked = [backlog.Ahead(n, "") for n in range(shards)]
        backlog.per_queue(cast(Connection, fake), asked, 200)
        texts.append(str(*fake.sent))
    assert texts[0] == texts[1]
    assert "LIMIT asked.v6" in texts[0]


def test_a_few_journals_are_looked_through_in_one_statement() -> None:
    """A moment that no journal reaches back to costs a walk through each of them."""
    fake = Statements(SQLiteDialect_pysqlite())
    found = positions.before(cast(Connection, fake), range(SHARDS), 1_000, ["default"])
    assert found == dict.fromkeys(range(SHARDS), "")
    assert len(fake.sent) == 2 * (SHARDS // 4), "one for the last rebase, one for the cursor"
