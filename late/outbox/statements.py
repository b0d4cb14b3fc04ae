"""The statements of an enqueue, for each database. They are values: nothing here runs one.

A producer never writes the position of a row (`xid`, `seq`) or its `created_at_us`. They are the
columns' defaults, so that no wrong value can hide a task from the tail.
"""

from __future__ import annotations

import functools
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from late.errors import causes
from late.model.task import Fence, NewTask
from late.model.workflow import Stage, values_of
from late.outbox import parameters
from late.outbox.admission import Way
from late.outbox.base import Statement
from late.outbox.parameters import Value, Words
from late.schema.key_order import in_order

_COLUMNS = "shard_id, task_id, queue, name, payload, headers, options"
_KEY_COLUMNS = "unique_key, task_id, digest, created_at_us, expires_at_us"
_TYPES = ("smallint", "uuid", "text", "text", "bytea", "text", "text")
_STAGE_TYPES = {
    "workflow_id": "uuid", "stage": "int", "task_id": "uuid", "shard_id": "smallint",
    "state": "text", "missing": "int", "after": "text", "next": "text", "collects": "smallint",
    "on_failure": "int", "mark": "text", "queue": "text", "name": "text", "payload": "bytea",
    "headers": "text", "options": "text",
}  # fmt: skip
"""The columns of a stage without its end, in the order of the fields of `Stage`."""
_STAGE_COLUMNS = ", ".join(_STAGE_TYPES)

# The database's clock in microseconds, the same as `late.schema.tables.NOW_US` (a test compares
# them). That module is not imported, because every producer would then import SQLAlchemy.
NOW_US = {
    "postgresql": "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
    "cockroachdb": "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
    "sqlite": "(cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)",
    "spanner+spanner": "UNIX_MICROS(CURRENT_TIMESTAMP())",
}

_OPEN = "not exists (select 1 from late_full where name {names} and until_us > {now})"
_UNCHANGED = "exists (select 1 from late_lane where name = {} and version = {})"
_OVER = "coalesce(expires_at_us between 1 and {now}, false)"
"""True if a key with a period may be freed: its task has ended, and its time is over."""
_TURN = "pg_advisory_xact_lock(hashtextextended('late_unique ' || unique_key, 0))::text"


class Dialect(Protocol):
    """The statements for the steps of an insert, and a way to bind others."""

    tasks_max: int
    """The most rows of one statement of `tasks`."""
    fences: bool
    """True if that statement can depend on a lane's version. Otherwise the lane is read before it
    in the same transaction, so that it cannot change until the commit."""
    writes_first: bool
    """True if a transaction that has read may be refused its first write, as others wrote since."""
    checks_rights: bool
    """True if a transaction ends when it reads a table that its role may not read."""
    admission: Way
    """The way to learn what takes no tasks."""

    def tasks(
        self, rows: Sequence[NewTask], fence: Fence | None = None, names: Sequence[str] = ()
    ) -> Statement:
        """Insert all of `rows` into the log in one statement.

        With a `fence` (only if the dialect `fences`) it inserts none of them if the lane has
        another version. With `names` (unless it can only `look`) it inserts none if one of these is
        in `late_full`.
        """

    def stages(self, rows: Sequence[Stage]) -> Statement:
        """Insert rows of `late_stage`, at most `STAGES_AT_ONCE`."""

    def claim(self, rows: Sequence[NewTask]) -> Statement:
        """Insert the unique keys of `rows`. A key that is taken is left unchanged and not counted.

        The row count is the number of keys that were free. The statement waits for an open
        transaction that has inserted one of the keys. Under READ COMMITTED such a wait never fails
        the caller's transaction; an insert without `on conflict` could fail it.
        """

    def holders(self, keys: Sequence[str]) -> Statement:
        """Read the holders of the keys: (unique_key, task_id, digest, true if it may be freed)."""

    def free(self, keys: Sequence[str]) -> Statement:
        """Delete the keys whose task has ended and whose period is over."""

    def release(self, held: Sequence[tuple[str, str]]) -> Statement:
        """Delete each key that its task holds, of pairs (unique_key, task_id).

        A task has one key, so a pair is not confused with another. The key is the primary key of
        the table, and the id alone has no index.
        """

    def bind(self, text: str, *, fetch: bool = False, **values: Value) -> Statement:
        """Bind a text that is the same for all databases; see `parameters.py`."""

    def is_schema_error(self, error: BaseException) -> bool:
        """Tell whether the driver's error is about a missing table or column of `late`."""


class Sqlite:
    """The statements for SQLite, with question marks, and one group of values per row."""

    tasks_max = 4_000  # 32,766 parameters
    fences = True
    writes_first = True
    checks_rights = False
    admission: Way = "try"

    def tasks(
        self, rows: Sequence[NewTask], fence: Fence | None = None, names: Sequence[str] = ()
    ) -> Statement:
        common = _common(rows) if len(rows) > 1 else None
        params: list[object]
        if common is None:
            params = [
                v
                for r in rows
                for v in (r.shard_id, r.task_id, r.queue, r.name, r.payload, r.headers, r.options)
            ]
        else:
            params = [*common, *[v for r in rows for v in (r.shard_id, r.task_id, r.payload)]]
        if fence is not None:
            params += fence
        alike, fenced = common is not None, fence is not None
        text = _sqlite_tasks(len(rows), alike=alike, fenced=fenced, names=len(names))
        return Statement(text, (*params, *names))

    def stages(self, rows: Sequence[Stage]) -> Statement:
        group = f"({', '.join('?' * len(_STAGE_TYPES))})"
        text = f"insert into late_stage ({_STAGE_COLUMNS}) values {', '.join([group] * len(rows))}"
        return Statement(text, tuple([value for row in rows for value in _stage(row)]))

    def claim(self, rows: Sequence[NewTask]) -> Statement:
        params = [v for r in rows for v in (r.unique_key, r.task_id, r.digest, r.unique_for_us)]
        group = f"(?, ?, ?, {NOW_US['sqlite']}, -({NOW_US['sqlite']} + ?))"
        return Statement(
            f"insert into late_unique ({_KEY_COLUMNS}) values {', '.join([group] * len(rows))}"
            " on conflict (unique_key) do nothing",
            tuple(params),
        )

    def holders(self, keys: Sequence[str]) -> Statement:
        marks = ", ".join("?" * len(keys))
        return Statement(
            f"select unique_key, task_id, digest, {_OVER.format(now=NOW_US['sqlite'])}"
            f" from late_unique where unique_key in ({marks})",
            tuple(keys),
            fetch=True,
        )

    def free(self, keys: Sequence[str]) -> Statement:
        marks = ", ".join("?" * len(keys))
        return Statement(
            f"delete from late_unique where unique_key in ({marks})"
            f" and {_OVER.format(now=NOW_US['sqlite'])}",
            tuple(keys),
        )

    def release(self, held: Sequence[tuple[str, str]]) -> Statement:
        marks = ", ".join("?" * len(held))
        return Statement(
            f"delete from late_unique where unique_key in ({marks}) and task_id in ({marks})",
            (*(key for key, _ in held), *(task_id for _, task_id in held)),
        )

    def bind(self, text: str, *, fetch: bool = False, **values: Value) -> Statement:
        words = Words(NOW_US["sqlite"])
        return parameters.in_order(text, words, values, "?", fetch=fetch)

    def is_schema_error(self, error: BaseException) -> bool:
        text = str(getattr(error, "orig", None) or error)
        return "late_" in text and ("no such table" in text or "has no column" in text)


@functools.lru_cache(64)
def _sqlite_tasks(count: int, *, alike: bool, fenced: bool, names: int) -> str:
    row, columns = "(?, ?, ?, ?, ?, ?, ?)", "*"
    if alike:
        # A parameter costs a tenth of a microsecond, so equal values are given once. `?1` could do
        # the same, but Python 3.12.3 warns of it.
        row, columns = "(?, ?, ?)", "column1, column2, ?, ?, column3, ?, ?"
    values = f"values {', '.join([row] * count)}"
    if alike or fenced or names:
        values = f"select {columns} from ({values})"
    where = [_UNCHANGED.format("?", "?")] if fenced else []
    if names:
        marks = f"in ({', '.join('?' * names)})"
        where.append(_OPEN.format(names=marks, now=NOW_US["sqlite"]))
    if where:
        values += f" where {' and '.join(where)}"
    return f"insert into late_task ({_COLUMNS}) {values}"


def _common(rows: Sequence[NewTask]) -> tuple[str, str, str | None, str | None] | None:
    """Return queue, name, headers and options if they are the same in all rows, else None."""
    found = {(r.queue, r.name, r.headers, r.options) for r in rows}
    return found.pop() if len(found) == 1 else None


STAGES_AT_ONCE = 500


def _stage(row: Stage) -> tuple[object, ...]:
    """Return the values of `_STAGE_COLUMNS`: the row without an end."""
    return values_of(row)[: len(_STAGE_TYPES)]


Style = Literal["psycopg", "format", "numeric"]


class Postgres:
    """The statements for PostgreSQL, with arrays and `unnest`.

    The text of a statement is the same for every number of rows, so that it is prepared once.
    psycopg gets `%b`, binary parameters: a bytea as text is twice as long. Values that are the same
    in all rows are given once; often these are all but shard, id and payload.
    """

    tasks_max = 1_000_000
    fences = True
    writes_first = False
    checks_rights = True
    admission: Way = "ask"

    def __init__(self, style: Style, *, key_order: Callable[[str], str] = in_order) -> None:
        marks = [f"${n}" for n in range(1, 8)] if style == "numeric" else ["%s"] * 7
        if style == "psycopg":
            marks = ["%b"] * 7
        self._style, self._mark = style, marks[0]
        cast = [f"{mark}::{kind}" for mark, kind in zip(marks, _TYPES, strict=True)]
        arrays = ", ".join(f"unnest({one}[])" for one in cast)
        shards, ids, queue, name, payloads, headers, options = marks
        selected = {
            "one": ", ".join(cast),
            "many": arrays,
            "alike": f"unnest({shards}::smallint[]), unnest({ids}::uuid[]), {queue}::text,"
            f" {name}::text, unnest({payloads}::bytea[]), {headers}::text, {options}::text",
        }
        columns = _COLUMNS.replace("options", key_order("options"))

        def text(form: str, *, fenced: bool, named: str) -> str:
            into, values = f"insert into late_task ({_COLUMNS})", selected[form]
            # With `$n` the lane and its version come after the values, and the names after that.
            lane, version, names = marks[0], marks[0], marks[0]
            if style == "numeric":
                lane, version, names = "$8", "$9", "$10" if fenced else "$8"
            where = []
            if fenced:
                # Tasks with ordering keys are among the rows, and the lane must be as they were
                # placed by.
                where.append(_UNCHANGED.format(f"{lane}::text", f"{version}::bigint"))
                values = f"{columns} from (select {values}) r ({_COLUMNS})"
            if named:
                some = f"= {names}::text" if named == "one" else f"= any({names}::text[])"
                where.append(_OPEN.format(names=some, now=NOW_US["postgresql"]))
            if not where:
                return f"{into} values ({values})" if form == "one" else f"{into} select {values}"
            return f"{into} select {values} where {' and '.join(where)}"

        self._tasks = {
            (form, fenced, named): text(form, fenced=fenced, named=named)
            for form in selected
            for fenced in (False, True)
            for named in ("", "one", "many")
        }
        """By form of the rows, dependence on the lane, and number of names that must be open."""
        staged = ", ".join(
            [
                f"unnest({f'${n}' if style == 'numeric' else marks[0]}::{kind}[])"
                for n, kind in enumerate(_STAGE_TYPES.values(), 1)
            ]
        )
        self._stages = f"insert into late_stage ({_STAGE_COLUMNS}) select {staged}"
        now = NOW_US["postgresql"]
        over = _OVER.format(now=now)
        self._claim = (
            f"insert into late_unique ({_KEY_COLUMNS}) select k, t, d, {now}, -({now} + f)"
            f" from unnest({marks[0]}::text[], {marks[1]}::uuid[], {marks[2]}::text[],"
            f" {marks[3]}::bigint[]) as u (k, t, d, f)"
            " on conflict (unique_key) do nothing"
        )
        self._holders = (
            f"select unique_key, task_id::text, digest, {over} from late_unique"
            f" where unique_key = any({marks[0]}::text[])"
        )
        self._free = (
            f"delete from late_unique where unique_key = any({marks[0]}::text[]) and {over}"
        )
        self._release = (
            f"delete from late_unique where unique_key = any({marks[0]}::text[])"
            f" and task_id = any({marks[1]}::uuid[])"
        )

    def tasks(
        self, rows: Sequence[NewTask], fence: Fence | None = None, names: Sequence[str] = ()
    ) -> Statement:
        params: tuple[object, ...]
        if len(rows) == 1:
            r, form = rows[0], "one"
            params = (r.shard_id, r.task_id, r.queue, r.name, r.payload, r.headers, r.options)
        else:
            form, params = self._many(rows)
        if fence is not None:
            params = (*params, *fence)
        named = ""
        if names:
            named, asked = ("one", names[0]) if len(names) == 1 else ("many", list(names))
            params = (*params, asked)
        return Statement(self._tasks[form, fence is not None, named], params)

    def _many(self, rows: Sequence[NewTask]) -> tuple[str, tuple[object, ...]]:
        """Return the form of the statement for several rows, and their parameters."""
        shards = self.array("smallint", [r.shard_id for r in rows])
        ids = self.array("uuid", [r.task_id for r in rows])
        payloads = self.array("bytea", [r.payload for r in rows])
        common = _common(rows)
        if common is not None:
            queue, name, header, option = common
            return "alike", (shards, ids, queue, name, payloads, header, option)
        queues, names = [r.queue for r in rows], [r.name for r in rows]
        headers, options = [r.headers for r in rows], [r.options for r in rows]
        return "many", (shards, ids, queues, names, payloads, headers, options)

    def stages(self, rows: Sequence[Stage]) -> Statement:
        columns = zip(*map(_stage, rows), strict=True)
        return Statement(self._stages, tuple([list(column) for column in columns]))

    def array(self, kind: str, values: list[Any]) -> object:
        """Return an array of `kind` as the driver takes it, for values that differ between rows."""
        return values

    def claim(self, rows: Sequence[NewTask]) -> Statement:
        return Statement(
            self._claim,
            (
                [r.unique_key for r in rows],
                [r.task_id for r in rows],
                [r.digest for r in rows],
                [r.unique_for_us for r in rows],
            ),
        )

    def holders(self, keys: Sequence[str]) -> Statement:
        return Statement(self._holders, (list(keys),), fetch=True)

    def free(self, keys: Sequence[str]) -> Statement:
        return Statement(self._free, (list(keys),))

    def release(self, held: Sequence[tuple[str, str]]) -> Statement:
        keys, task_ids = [key for key, _ in held], [task_id for _, task_id in held]
        return Statement(self._release, (keys, task_ids))

    def bind(self, text: str, *, fetch: bool = False, **values: Value) -> Statement:
        words = Words(NOW_US["postgresql"], turn=_TURN)
        mark = "${n}" if self._style == "numeric" else self._mark
        return parameters.in_order(text, words, values, mark + "::{kind}", fetch=fetch)

    def is_schema_error(self, error: BaseException) -> bool:
        cause = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        return state in ("42P01", "42703", "3F000") and "late_" in str(cause)


class GoogleSql:
    """The statements for Spanner, with named arrays. The row of each task uses one element of each.

    One parameter per value would allow only 135 tasks, as Spanner takes 950 parameters. Spanner
    refuses PENDING_COMMIT_TIMESTAMP() in INSERT ... SELECT, so `unnest` is for the keys only. The
    casts give the types of the arrays: SQLAlchemy's driver declares no type for a list.
    """

    tasks_max = 50
    """The driver runs sqlparse over every statement, which refuses more than 10,000 tokens."""
    fences = False
    writes_first = False
    checks_rights = False
    admission: Way = "look"

    def tasks(
        self, rows: Sequence[NewTask], fence: Fence | None = None, names: Sequence[str] = ()
    ) -> Statement:
        return Statement(
            _google_tasks(len(rows)),
            {
                "shard": [r.shard_id for r in rows],
                "id": [r.task_id for r in rows],
                "queue": [r.queue for r in rows],
                "name": [r.name for r in rows],
                "payload": [b64encode(r.payload).decode() for r in rows],
                "headers": [r.headers for r in rows],
                "options": [r.options for r in rows],
            },
        )

    def stages(self, rows: Sequence[Stage]) -> Statement:
        def element(name: str, kind: str) -> str:
            text = f"cast(@{name}s as array<string>)[offset(n)]"
            if kind == "bytea":
                return f"from_base64({text})"
            return text if kind in ("text", "uuid") else f"cast({text} as int64)"

        columns = [element(name, kind) for name, kind in _STAGE_TYPES.items()]
        values = zip(*map(_stage, rows), strict=True)
        params = {
            f"{name}s": [_google_text(value) for value in column]
            for name, column in zip(_STAGE_TYPES, values, strict=True)
        }
        return Statement(
            f"insert into late_stage ({_STAGE_COLUMNS}) select {', '.join(columns)}"
            " from unnest(cast(@task_ids as array<string>)) with offset as n",
            params,
        )

    def claim(self, rows: Sequence[NewTask]) -> Statement:
        return Statement(
            f"insert or ignore into late_unique ({_KEY_COLUMNS}) select k,"
            " cast(@ids as array<string>)[offset(n)], cast(@digests as array<string>)[offset(n)],"
            f" {NOW_US['spanner+spanner']}, -({NOW_US['spanner+spanner']} +"
            " cast(nullif(cast(@periods as array<string>)[offset(n)], '') as int64))"
            " from unnest(cast(@keys as array<string>)) as k with offset as n",
            {
                "keys": [r.unique_key for r in rows],
                "ids": [r.task_id for r in rows],
                "digests": [r.digest for r in rows],
                "periods": [str(r.unique_for_us or "") for r in rows],
            },
        )

    def holders(self, keys: Sequence[str]) -> Statement:
        return Statement(
            f"select unique_key, task_id, digest, {_OVER.format(now=NOW_US['spanner+spanner'])}"
            " from late_unique where unique_key in unnest(cast(@keys as array<string>))",
            {"keys": list(keys)},
            fetch=True,
        )

    def free(self, keys: Sequence[str]) -> Statement:
        return Statement(
            "delete from late_unique where unique_key in unnest(cast(@keys as array<string>))"
            f" and {_OVER.format(now=NOW_US['spanner+spanner'])}",
            {"keys": list(keys)},
        )

    def release(self, held: Sequence[tuple[str, str]]) -> Statement:
        return Statement(
            "delete from late_unique where unique_key in unnest(cast(@keys as array<string>))"
            " and task_id in unnest(cast(@ids as array<string>))",
            {"keys": [key for key, _ in held], "ids": [task_id for _, task_id in held]},
        )

    def bind(self, text: str, *, fetch: bool = False, **values: Value) -> Statement:
        words = Words(NOW_US["spanner+spanner"], "insert or ignore", "", " from unnest([1])")
        return parameters.by_name(text, words, values, fetch=fetch)

    def is_schema_error(self, error: BaseException) -> bool:
        # The causes are SQLAlchemy's error, the driver's (which has no text) and the client's.
        for found in causes(error):
            text = str(found)
            if "late_" in text and ("Table not found" in text or "is not present in" in text):
                return True
        return False


def _google_text(value: object) -> str | None:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return None if value is None else str(value)


@functools.lru_cache(64)
def _google_tasks(count: int) -> str:
    def row(n: int) -> str:
        def text(name: str) -> str:
            return f"cast(@{name} as array<string>)[offset({n})]"

        return (
            f"(cast(@shard as array<int64>)[offset({n})], pending_commit_timestamp(),"
            f" {text('id')}, {text('queue')}, {text('name')}, from_base64({text('payload')}),"
            f" {text('headers')}, {text('options')})"
        )

    columns = _COLUMNS.replace("shard_id", "shard_id, created_at")
    return f"insert into late_task ({columns}) values {', '.join(row(n) for n in range(count))}"


SQLITE = Sqlite()
GOOGLE = GoogleSql()
PSYCOPG = Postgres("psycopg")
PSYCOPG2 = Postgres("format")
ASYNCPG = Postgres("numeric")
COCKROACH = Postgres("format", key_order=str)
"""The statements of PostgreSQL with parameters as text, whose types the casts give. It was never
tested that CockroachDB reads psycopg's binary arrays."""
