"""The modes of drivers, on stand-ins: not every driver, nor every version of Python, is here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from late.outbox.adapters.sqlalchemy import connection as through_sqlalchemy
from late.outbox.adapters.sqlite import autocommits

LEGACY = -1
"""The value of `sqlite3.LEGACY_TRANSACTION_CONTROL`, which Python 3.12 has added."""


@pytest.mark.parametrize(
    ("mode", "isolation_level", "in_transaction", "expected"),
    [
        (LEGACY, "", False, False),
        (LEGACY, "IMMEDIATE", False, False),
        (LEGACY, None, False, True),
        (LEGACY, None, True, False),
        (True, "", False, True),
        (True, "", True, False),
        (False, None, True, False),
        (False, None, False, False),
        (None, "", False, False),
        (None, None, False, True),
        (None, None, True, False),
    ],
)
def test_sqlite3_has_two_settings(
    mode: Any, isolation_level: Any, in_transaction: bool, expected: bool
) -> None:
    driver = SimpleNamespace(in_transaction=in_transaction, isolation_level=isolation_level)
    if mode is not None:  # Python 3.11 has no such attribute.
        driver.autocommit = mode
    assert autocommits(driver) is expected


@pytest.mark.parametrize(
    ("dialect", "driver", "autocommit", "open_", "expected"),
    [
        ("postgresql", "psycopg2", True, False, True),
        ("postgresql", "psycopg2", True, True, False),
        ("postgresql", "psycopg2", False, False, False),
        ("postgresql", "asyncpg", True, False, True),
        ("postgresql", "asyncpg", True, True, False),
        ("postgresql", "asyncpg", False, False, False),
        ("cockroachdb", "psycopg2", True, True, False),
        ("spanner+spanner", "spanner", True, False, True),
        ("spanner+spanner", "spanner", False, False, False),
    ],
)
def test_sqlalchemy_asks_its_driver(
    dialect: str, driver: str, autocommit: bool, open_: bool, expected: bool
) -> None:
    raw = {
        "psycopg2": SimpleNamespace(info=SimpleNamespace(transaction_status=2 if open_ else 0)),
        "asyncpg": SimpleNamespace(is_in_transaction=lambda: open_),
        "spanner": SimpleNamespace(),
    }[driver]
    tx: Any = SimpleNamespace(
        dialect=SimpleNamespace(name=dialect, driver=driver),
        connection=SimpleNamespace(
            driver_connection=raw, dbapi_connection=SimpleNamespace(autocommit=autocommit)
        ),
    )
    assert through_sqlalchemy(tx).autocommit is expected
