"""The adapter for Django, on SQLite and on PostgreSQL with psycopg 3.

It takes `django.db.connection` or `connections["alias"]`, inside `transaction.atomic()`. The
statements use the driver's connection, which is in Django's transaction. They do not use Django's
cursors, whose log of queries would contain payloads. The driver's errors are raised as Django's, so
that an atomic block knows that it is broken.
"""

from __future__ import annotations

from typing import Any

from late.errors import InvalidTask
from late.outbox.base import Answer, Statement


class _Connection:
    __slots__ = ("_inner", "_wrapper", "dialect")
    snapshot = False

    def __init__(self, wrapper: Any, inner: Any) -> None:
        self._wrapper = wrapper
        self._inner = inner
        self.dialect = inner.dialect

    @property
    def autocommit(self) -> bool:
        return bool(self._inner.autocommit)

    def execute(self, statement: Statement) -> Answer:
        try:
            with self._wrapper.wrap_database_errors:
                answer: Answer = self._inner.execute(statement)
        except Exception as error:
            if error.__cause__ is not None:
                error.orig = error.__cause__  # type: ignore[attr-defined]  # SQLAlchemy's name
            raise
        return answer


def connection(tx: Any) -> _Connection:
    """Return the adapter of a Django connection, which is opened if it is closed.

    Raises:
        InvalidTask: `late` does not support this database or driver.
        TransactionManagementError (Django's): the atomic block is broken already.
    """
    tx.validate_no_broken_transaction()
    tx.ensure_connection()
    module = type(tx.connection).__module__.partition(".")[0]
    if tx.vendor == "sqlite":
        from late.outbox.adapters.sqlite import connection as sqlite

        return _Connection(tx, sqlite(tx.connection))
    if tx.vendor == "postgresql" and module != "psycopg2":
        from late.outbox.adapters.psycopg import connection as psycopg

        return _Connection(tx, psycopg(tx.connection))
    raise InvalidTask(
        f"cannot enqueue through Django's {tx.vendor} with {module}: late runs on SQLite, and on"
        " PostgreSQL with psycopg 3"
    )
