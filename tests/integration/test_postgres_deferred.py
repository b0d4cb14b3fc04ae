"""Statements between two handlers go with the first one of the next handler, however it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from late.observability.conflicts import tag
from late.outbox.adapters.psycopg_shared import (
    PREPARE_AFTER,
    PsycopgShared,
    PsycopgSharedTransactions,
)
from tests.integration.postgres_kit import database

INSERT = "insert into effect values (%s)"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with database() as made:
        with psycopg.connect(made) as tx:
            tx.execute("create table effect (number int)")
        yield made


@pytest.fixture
def shared(url: str) -> Iterator[PsycopgShared]:
    made = PsycopgSharedTransactions(url, 1)
    tx = made.begin()
    yield tx
    tx.roll_back()
    tx.close()
    made.close()


def numbers(shared: PsycopgShared) -> set[int]:
    """Return what is in the table, by the next handler."""
    shared.next()
    return {number for (number,) in shared.connection.execute("select number from effect")}


def repeated(shared: PsycopgShared, *arguments: Any) -> Any:
    """Run a statement in one handler after the other, and return the last cursor."""
    for _ in range(PREPARE_AFTER + 1):
        shared.connection.execute(*arguments)
        shared.next()
    return shared.connection.execute(*arguments)


def execute(tx: Any) -> None:
    tx.execute(INSERT, (7,))


def by_cursor(tx: Any) -> None:
    with tx.cursor() as cursor:
        cursor.execute(INSERT, (7,))


def many(tx: Any) -> None:
    tx.cursor().executemany(INSERT, [(7,)])


def in_block(tx: Any) -> None:
    with tx.transaction():
        tx.execute(INSERT, (7,))


def in_pipeline(tx: Any) -> None:
    with tx.pipeline():
        tx.execute(INSERT, (7,))


def copied(tx: Any) -> None:
    with tx.cursor().copy("copy effect from stdin") as copy:
        copy.write_row((7,))


def by_session(tx: Any) -> None:
    tx.pgconn.exec_(b"insert into effect values (7)")


def several(tx: Any) -> None:
    tx.execute("insert into effect values (7); select 1")


def declared(tx: Any) -> None:
    with tx.cursor("name") as cursor:
        cursor.execute("select 7")
        cursor.fetchall()
    tx.execute(INSERT, (7,))


WAYS = [execute, by_cursor, many, in_block, in_pipeline, copied, by_session, several, declared]


@pytest.mark.parametrize("way", WAYS)
def test_each_use_of_a_connection_begins_the_part_of_its_handler(
    shared: PsycopgShared, way: Callable[[Any], None]
) -> None:
    repeated(shared, INSERT, (1,))
    shared.connection.execute("set local search_path = nowhere")
    shared.connection.execute("select set_config('late.who', 'another', true)")
    shared.next()
    way(shared.connection)  # Finds its table: the setting of the one before is taken back.
    [found] = shared.connection.execute("select current_setting('late.who', true)").fetchone()
    assert not found
    assert numbers(shared) == {1, 7}
    shared.next()
    way(shared.connection)
    shared.connection.execute("insert into effect values (8)")
    assert shared.undo()
    assert numbers(shared) == {1, 7}


def test_a_statement_that_is_prepared_costs_one_message(
    shared: PsycopgShared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_prepare_after", PREPARE_AFTER)
    with tag("late-foreground:pay"):
        repeated(shared, INSERT, (1,))
        shared.next()
        waits: list[object] = []
        wait = psycopg.Connection.wait

        def counting(*arguments: Any) -> Any:
            waits.append(arguments)
            return wait(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(psycopg.Connection, "wait", counting)
            cursor = shared.connection.execute(INSERT, (2,))
            assert (cursor.rowcount, cursor.statusmessage, waits) == (1, "INSERT 0 1", [])
            shared.connection.execute(INSERT, (3,))
            assert len(waits) == 1
        who = "select current_query() where 1 = %s"
        [shown] = repeated(shared, who, (1,)).fetchone()
    assert shown.startswith(f"/* tag=late-foreground:pay */ /* {who} */ release")
    assert shown.endswith("_pg3_1(1)")


def test_no_text_of_a_handler_stands_in_a_message(shared: PsycopgShared) -> None:
    who = "select current_query() where %s::text is not null and 1 = %s"
    [shown] = repeated(shared, who, ("a secret", 1)).fetchone()
    assert shown == who.replace("%s", "$1", 1).replace("%s", "$2")


VALUES = [
    None, True, 0, -7, 2**31, 2**62, 1.5, float("-inf"), Decimal("12.50"), "", "it's 100 %",
    "back\\slash", "ü */ /* é", b"\x00\xff'", date(2026, 2, 28), datetime(2026, 1, 1, tzinfo=UTC),
    timedelta(days=-1, seconds=5), UUID(int=7), [1, 2, None], ["a'b", "c,d"], Jsonb({"a": "'\\"}),
]  # fmt: skip

CASTS = {bool: "::bool", bytes: "::bytea", float: "::float8", type(None): "::text", str: "::text"}


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_arrive_as_they_do_in_any_statement(shared: PsycopgShared, value: object) -> None:
    query = f"select %(value)s{CASTS.get(type(value), '')}, %(more)s"
    given = {"more": 3, "value": value}
    [expected] = psycopg.Cursor(shared.connection).execute(query, given).fetchall()
    [found] = repeated(shared, query, given).fetchall()
    assert found == expected
    assert [type(one) for one in found] == [type(one) for one in expected]


def test_a_handler_that_fails_before_its_first_statement_takes_nothing_back(
    shared: PsycopgShared,
) -> None:
    shared.connection.execute(INSERT, (1,))
    shared.next()
    assert shared.undo()
    assert numbers(shared) == {1}


def test_an_error_of_the_first_statement_is_the_handler_s(shared: PsycopgShared) -> None:
    divide = "select 1 / %s"
    repeated(shared, divide, (1,))
    shared.connection.execute(INSERT, (1,))
    shared.next()
    with pytest.raises(psycopg.errors.DivisionByZero):
        shared.connection.execute(divide, (0,))
    assert shared.error is not None
    assert shared.undo()
    assert numbers(shared) == {1}
