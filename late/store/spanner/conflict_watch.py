"""Watch the read-write transactions of a Spanner client: whom did Spanner abort, and on which row?

Spanner says that it has aborted a transaction, and not for which other one. So this module keeps
what the transactions of this process touch: the tables and the first keys of each, while it is open
and for a while after. The other one is that which was open at the same time and touched the same
row. A transaction of another process is found in Spanner's own lock statistics, by its tag.

It sees the requests of the client, and sends none. A transaction is known by its thread and
session: the client runs each in one thread.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from google.api_core import exceptions as api

from late.observability import conflicts

Key = tuple[str, ...]

KEYS_MAX = 16
"""The most rows of one transaction that are kept."""
ENDED_MAX = 256
"""The transactions of this process that are kept after their end."""
_VALUES_MAX, _LENGTH_MAX = 3, 64
_LOW = 1  # RequestOptions.Priority.PRIORITY_LOW
_UNIQUE_BY_TIME = "late_task"
"""Rows of the log have the commit's timestamp in their key: no two transactions write the same."""
_TABLE = re.compile(r"(?is)\b(?:from|join|update|into)\s+`?([a-z_][a-z0-9_]*)")
_EQUAL = re.compile(r"(?i)=\s*@([a-z_][a-z0-9_]*)")


class Touched:
    """The rows that one transaction has touched so far. Times are monotonic seconds."""

    __slots__ = ("begun", "ended", "rows", "statement", "tag")

    def __init__(self, tag: str, begun: float) -> None:
        self.tag = tag
        self.begun = begun
        self.ended: float | None = None
        self.rows: list[tuple[str, Key]] = []
        self.statement = ""

    @property
    def tables(self) -> str:
        return ",".join(dict.fromkeys(table for table, _ in self.rows))


def same_row(one: tuple[str, Key], two: tuple[str, Key]) -> bool:
    """Return whether two rows may be the same: one key may be known in part only."""
    shared = min(len(one[1]), len(two[1]))
    return one[0] == two[0] and shared > 0 and one[1][:shared] == two[1][:shared]


def meeting(one: Touched, two: Touched) -> tuple[str, Key] | None:
    """Return the last row that both touch; None if there is none, or if they never overlapped."""
    if two.ended is not None and two.ended < one.begun:
        return None
    for row in reversed(one.rows):
        if any(same_row(row, other) for other in two.rows):
            return row
    return None


class Transactions:
    """The transactions of this process, open ones and the last that ended. Safe from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[tuple[int, str], Touched] = {}
        self._ended: deque[Touched] = deque(maxlen=ENDED_MAX)
        self._aborts = threading.local()

    def begin(self, session: str, tag: str) -> Touched:
        found = self._open[threading.get_ident(), session] = Touched(tag, self._clock())
        return found

    def of(self, session: str) -> Touched | None:
        """Return the open transaction of this thread in `session`."""
        return self._open.get((threading.get_ident(), session))

    def end(self, session: str, *, committed: bool) -> Touched | None:
        """End the transaction of this thread. It is kept if it has committed: it may be in the way
        of one that is aborted later."""
        found = self._open.pop((threading.get_ident(), session), None)
        if found is not None and committed:
            found.ended = self._clock()
            self._ended.append(found)
            self._aborts.last = ("", 0)
        return found

    def failed(self, session: str, kind: conflicts.Kind, error: BaseException) -> None:
        """Record that Spanner has ended the transaction of this thread, or did not answer it."""
        mine = self.end(session, committed=False)
        if mine is None:
            return
        tag, before = getattr(self._aborts, "last", ("", 0))
        attempt = before + 1 if tag == mine.tag else 1
        self._aborts.last = (mine.tag, attempt)
        other, row = self._in_the_way(mine)
        conflicts.default.record(
            kind,
            mine.tag,
            duration_s=self._clock() - mine.begun,
            attempt=attempt,
            tables=mine.tables,
            key=shown(row) if row else "",
            other=other.tag if other else "",
            statement=mine.statement,
            other_statement=other.statement if other else "",
            error=str(getattr(error, "message", "") or type(error).__name__),
        )

    def _in_the_way(self, mine: Touched) -> tuple[Touched | None, tuple[str, Key] | None]:
        # A copy: other threads begin and end theirs meanwhile.
        for other in (*list(self._open.values()), *reversed(list(self._ended))):
            if (row := meeting(mine, other)) is not None:
                return other, row
        return None, mine.rows[-1] if mine.rows else None


def shown(row: tuple[str, Key]) -> str:
    """Return a row as Spanner's own statistics write it, `account(7,eu)`, or else its table."""
    return f"{row[0]}({','.join(row[1])})" if row[1] else row[0]


def rows_of(request: Any) -> Iterator[tuple[str, Key]]:
    """Yield the rows that a request names: keys of reads, of mutations and of `column = @value`.

    Args:
        request: a message of Spanner's API, not of its Python client.
    """
    match type(request).__name__:
        case "ReadRequest":
            keys = request.key_set
            yield from ((request.table, _key(key.values)) for key in keys.keys)
            yield from ((request.table, _key(_start(each))) for each in keys.ranges)
        case "ExecuteSqlRequest":
            yield from _named(request.sql, request.params.fields)
        case "ExecuteBatchDmlRequest":
            for each in request.statements:
                yield from _named(each.sql, each.params.fields)
        case "CommitRequest":
            for mutation in request.mutations:
                yield from _written(mutation)


def _named(statement: str, values: Any) -> Iterator[tuple[str, Key]]:
    where = re.split(r"(?i)\bwhere\b", statement, maxsplit=1)[1:]
    named = [values[name] for name in _EQUAL.findall("".join(where)) if name in values]
    yield from ((table.lower(), _key(named)) for table in _TABLE.findall(statement))


def _start(one: Any) -> Sequence[Any]:
    found: Sequence[Any] = (one.start_closed or one.start_open).values
    return found


def _written(mutation: Any) -> Iterator[tuple[str, Key]]:
    operation = mutation.WhichOneof("operation")
    change = getattr(mutation, operation)
    if operation == "delete":
        yield from ((change.table, _key(key.values)) for key in change.key_set.keys)
    elif change.table != _UNIQUE_BY_TIME:
        # A row begins with its key as a rule; the schema is not looked up for this.
        yield from ((change.table, _key(row.values)) for row in change.values)


def _key(values: Sequence[Any]) -> Key:
    return tuple(_text(value) for value in values[:_VALUES_MAX])


def _text(value: Any) -> str:
    kind = value.WhichOneof("kind")
    found = getattr(value, kind) if kind else ""
    return str(int(found) if isinstance(found, float) and found.is_integer() else found)[
        :_LENGTH_MAX
    ]


default = Transactions()
"""The transactions of this process."""

_UNARY = ("begin_transaction", "execute_sql", "execute_batch_dml", "commit", "rollback")
_STREAMS = ("streaming_read", "execute_streaming_sql")
_KINDS: tuple[tuple[type[Exception], conflicts.Kind], ...] = (
    (api.Aborted, "aborted"),
    (api.DeadlineExceeded, "deadline"),
)


def watch(spanner_api: Any, name: str = "", into: Transactions = default) -> None:
    """Watch the requests of a client from now on.

    Args:
        spanner_api: the `spanner_api` of a `Database`.
        name: the tag of transactions that have none, where the context has none either.
    """
    if hasattr(spanner_api, "late_watched"):
        spanner_api.late_watched[0] = name
        return
    spanner_api.late_watched = names = [name]
    for method in _UNARY:
        call = getattr(spanner_api, method)
        setattr(spanner_api, method, partial(_unary, method, call, into, names))
    for method in _STREAMS:
        setattr(spanner_api, method, partial(_stream, getattr(spanner_api, method), into, names))


def _before(into: Transactions, name: str, request: Any) -> str:
    """Note what `request` touches, and give it the tag of its transaction; return its session."""
    message = getattr(request, "_pb", request)
    kind = type(message).__name__
    begins = kind == "BeginTransactionRequest" and message.options.HasField("read_write")
    if not begins and "transaction" in message.DESCRIPTOR.fields_by_name:
        begins = message.transaction.begin.HasField("read_write")
    session: str = message.session
    found = into.of(session)
    if begins:
        found = into.begin(session, message.request_options.transaction_tag)
    if found is None:
        return session
    options = message.request_options
    found.tag = options.transaction_tag or found.tag or conflicts.current() or name
    if found.tag and not options.transaction_tag:
        options.transaction_tag = found.tag
    if not options.priority and conflicts.role_of(found.tag) == "background":
        options.priority = _LOW
    if kind == "ExecuteSqlRequest":
        found.statement = message.sql
    for row in rows_of(message):
        if len(found.rows) >= KEYS_MAX:
            break
        found.rows.append(row)
    return session


def _after(into: Transactions, session: str, error: Exception) -> None:
    for foreign, kind in _KINDS:
        if isinstance(error, foreign):
            into.failed(session, kind, error)


def _unary(
    method: str,
    call: Callable[..., Any],
    into: Transactions,
    names: list[str],
    *args: Any,
    **kwargs: Any,
) -> Any:
    if method == "rollback":  # The client gives it fields and no message.
        into.end(kwargs.get("session", ""), committed=False)
        return call(*args, **kwargs)
    session = _before(into, names[0], kwargs["request"])
    try:
        answer = call(*args, **kwargs)
    except api.GoogleAPICallError as error:
        _after(into, session, error)
        raise
    if method == "commit":
        into.end(session, committed=True)
    return answer


def _stream(
    method: Callable[..., Any], into: Transactions, names: list[str], *args: Any, **kwargs: Any
) -> Any:
    session = _before(into, names[0], kwargs["request"])
    try:
        return _Answers(method(*args, **kwargs), partial(_after, into, session))
    except api.GoogleAPICallError as error:
        _after(into, session, error)
        raise


class _Answers:
    """A stream that tells its error, and passes everything else on."""

    def __init__(self, answers: Any, failed: Callable[[Exception], None]) -> None:
        self._answers = answers
        self._failed = failed

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._answers)
        except api.GoogleAPICallError as error:
            self._failed(error)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._answers, name)
