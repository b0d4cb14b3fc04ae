"""Django: `django.db.connection` or `connections["alias"]`, inside `transaction.atomic()`, on
SQLite and on PostgreSQL with psycopg 3.

The statements go to the driver's own connection, which Django has in its transaction: not through
Django's cursors, whose log of queries would hold payloads. What the driver raises is raised as
Django's own, so that an atomic block knows that it is broken.
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
                error.orig = error.__cause__  # type: ignore[attr-defined]  # as SQLAlchemy names it
            raise
        return answer


def connection(tx: Any) -> _Connection:
    """The adapter of a Django connection; connects if it is not connected yet.

    Raises:
        InvalidTask: a database or driver that `late` does not enqueue through.
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
