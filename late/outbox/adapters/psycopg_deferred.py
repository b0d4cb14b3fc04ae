"""A connection of psycopg that sends statements of `late` together with its first own statement.

The statements between two handlers of a shared transaction (`defer`) wait until the connection is
used. If its first statement is prepared in this transaction, both go in one message, with SQL's
EXECUTE: a round trip less. Such a message has ids in it and no texts. psycopg's pipeline mode would
send each statement for itself, which costs more than a round trip. All other uses of the connection
send them first.
"""

from __future__ import annotations

import re
import threading
from typing import Any, Self
from uuid import UUID

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn

from late.outbox.adapters.psycopg_session import error_of
from late.outbox.adapters.psycopg_tags import TaggedCursor, with_tag

_NONE = b""
_PLANNED = re.compile(r"\s*(select|insert|update|delete|merge|with|values)\b", re.I).match
"""Other statements are not what EXECUTE is for."""
_IDS = {int, bool, UUID, type(None)}
"""Only such values are written into a message: the server shows it, and logs it with an error."""
SHOWN_LENGTH = 200
"""So much of the handler's statement stands in a comment before it, for `pg_stat_activity`."""


class DeferringConnection(psycopg.Connection[Any]):
    """Sends what is deferred before, or with, its first statement."""

    deferred = _NONE
    _guard: threading.Lock
    """A handler may use its connection in several threads, not all under psycopg's lock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = DeferringCursor

    def defer(self, statements: bytes) -> None:
        """Let `statements` wait. They have no result, and must not fail."""
        self._guard = threading.Lock()
        self.deferred = statements

    def forget(self) -> None:
        """Send nothing that is deferred."""
        self.deferred = _NONE

    # psycopg has an attribute here. Who takes the session may use it past this class.
    @property
    def pgconn(self) -> PGconn:
        if self.deferred:
            self._send_deferred()
        return self._session

    @pgconn.setter
    def pgconn(self, session: PGconn) -> None:
        self._session = session

    def wait(self, *args: Any, **more: Any) -> Any:
        if self.deferred:
            self._send_deferred()
        return super().wait(*args, **more)

    def cursor(self, *args: Any, **more: Any) -> Any:
        """Make a cursor, which is no use of the connection yet."""
        if not self.deferred:
            return super().cursor(*args, **more)
        with self._guard:
            deferred, self.deferred = self.deferred, _NONE
            try:
                return super().cursor(*args, **more)
            finally:
                self.deferred = deferred

    def _send_deferred(self) -> None:
        with self._guard:
            deferred, self.deferred = self.deferred, _NONE
            if deferred:
                result = self._session.exec_(deferred)
                if result.status != ExecStatus.COMMAND_OK:
                    raise error_of(result, self)

    def send_with(self, cursor: DeferringCursor, query: str, params: Any) -> Any:
        """Send a statement together with what is deferred, and return its result; None if that
        cannot be, and nothing was sent."""
        with self._guard:
            deferred, self.deferred = self.deferred, _NONE
            statement = None
            try:
                statement = cursor.as_call(query, params) if deferred else None
            finally:
                if statement is None:
                    self.deferred = deferred
            if statement is None:
                return None
            result = self._session.exec_(b"%b%b; %b" % (_shown(cursor, query), deferred, statement))
        if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            raise error_of(result, self)
        return result


class DeferringCursor(TaggedCursor):
    """A cursor of such a connection."""

    def execute(self, query: Any, params: Any = None, **more: Any) -> Self:
        tx: Any = self._conn
        if (
            tx.deferred
            and more.get("prepare") is not False
            and not more.get("binary")
            and self.format == Format.TEXT
            and not self.closed
            and isinstance(query, str)
            and _PLANNED(query)
        ):
            with tx.lock:
                result = tx.send_with(self, query, params)
            if result is not None:
                self._set_results([result])
                return self
        return super().execute(query, params, **more)

    def as_call(self, query: str, params: Any) -> bytes | None:
        """Return the SQL that runs a statement which is prepared already; None: it is not."""
        try:
            return self._as_call(query, params)
        except AttributeError:  # psycopg keeps it elsewhere in another version: no gain, no harm
            return None

    def _as_call(self, query: str, params: Any) -> bytes | None:
        self._reset()
        self._last_query = None
        self._tx = Transformer(self)
        self._query = made = self._convert_query(with_tag(self, query), params)
        known = self._conn._prepared
        name = None if known.prepare_threshold is None else known._names.get(known.key(made))
        if name is None:
            return None
        if not params:
            return b"execute " + name
        values = made.validate_and_reorder_params(made._parts, params, made._order)
        if not _IDS.issuperset(map(type, values)):
            return None
        return b"execute %b(%b)" % (name, b",".join(map(self._tx.as_literal, values)))


def _shown(cursor: DeferringCursor, query: str) -> bytes:
    """Return comments with the tag and the statement: the message has only its name."""
    text = query[:SHOWN_LENGTH].replace("/*", "/ *").replace("*/", "* /")
    comments = with_tag(cursor, f"/* {text} */ ")
    return comments.encode(cursor._encoding)  # type: ignore[no-any-return]
