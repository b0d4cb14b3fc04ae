"""Sample who waits for whom on PostgreSQL (`pg_locks`), and read the deadlocks of its log.

A sample sees each lock that is waited for at that moment, so a wait shorter than the pause between
two samples is mostly missed: what costs time is seen.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, text

from late.control.analyze.report import Wait
from late.errors import StoreError
from late.observability.conflicts import tag_in
from late.schema.engine import reading

PAUSE_S = 0.1
STATEMENT_MAX = 300
KEY_WAIT_MS = 100
"""The time that the look for a row's key waits for a lock."""
HIDDEN = (
    "statements of other roles are hidden from this one, and with them their tags: grant "
    "pg_read_all_stats"
)

# `waitstart` came with PostgreSQL 14, and a role without pg_read_all_stats does not see
# `query_start` of others: then a wait is new at each look. Who waits for a row has the lock on the
# row itself, or waits for it as well: from it come relation and ctid, as the wait itself is for a
# transaction.
_SAMPLE = text("""
select w.pid, b.pid as blocker, a.query, b.query as blocking, a.application_name as name,
       b.application_name as blocker_name, b.state like 'idle in transaction%' as idle,
       coalesce(extract(epoch from clock_timestamp() - coalesce(
           (to_jsonb(w) ->> 'waitstart')::timestamptz, a.query_start))::float8, 0) as waited_s,
       extract(epoch from coalesce(
           (to_jsonb(w) ->> 'waitstart')::timestamptz, a.query_start))::float8 as begun_s,
       coalesce(t.relation, w.relation)::regclass::text as relation,
       coalesce(t.page, w.page) as page, coalesce(t.tuple, w.tuple) as number
  from pg_locks w
  join pg_stat_activity a on a.pid = w.pid
  cross join lateral unnest(pg_blocking_pids(w.pid)) as by(pid)
  join pg_stat_activity b on b.pid = by.pid
  left join lateral (select l.relation, l.page, l.tuple from pg_locks l
                      where l.pid = w.pid and l.locktype = 'tuple' limit 1) t on true
 where not w.granted and a.datname = current_database()
""")
_KEY = text("""
select array_agg(quote_ident(a.attname) order by k.place)
  from pg_index i, unnest(i.indkey::int2[]) with ordinality as k(number, place), pg_attribute a
 where i.indrelid = cast(:relation as regclass) and i.indisprimary
   and a.attrelid = i.indrelid and a.attnum = k.number
""")
_RELATION = re.compile(r"(?is)\b(?:update|from|into|join|table)\s+(?:only\s+)?([\w.\"]{1,127})")
_OWN = re.compile(r"\blate_[a-z]+\b")


class Sampler:
    """Collects samples of one database.

    Args:
        locate: gives the name of a row for its relation, page and number.
    """

    def __init__(self, locate: Callable[[str, int, int], str]) -> None:
        self._locate = locate
        self._places: dict[tuple[str, int, int], str] = {}
        self._lost: dict[tuple[Any, ...], float] = {}
        self._begun: dict[int, float] = {}
        self._counted: dict[tuple[Any, ...], set[tuple[int, float]]] = {}
        self.tags: dict[int, str] = {}
        """Tags by server process, as last seen."""
        self.hidden = False

    def take(self, rows: Sequence[Any], now: float, step_s: float) -> None:
        """Take in one sample.

        Args:
            now: seconds of a clock that does not go back.
            step_s: the time since the sample before: what each wait has lost in it, at most.
        """
        waiting = {row.pid for row in rows}
        by_waiter: dict[int, list[Any]] = {}
        for row in rows:
            by_waiter.setdefault(row.pid, []).append(row)
        for pid, several in by_waiter.items():
            # Who waits itself is not the cause, unless all do: then it is a deadlock.
            causes = [row for row in several if row.blocker not in waiting] or several
            # By the server's clock: here an answer may be late, and one wait would become two.
            told = causes[0].begun_s
            begun = self._begin_of(pid, now - causes[0].waited_s if told is None else told)
            for row in causes:
                lost_s = min(step_s, max(row.waited_s, 0.0)) / len(causes)
                self._add(row, begun, lost_s)
        for pid in self._begun.keys() - by_waiter.keys():
            del self._begun[pid]

    def _begin_of(self, pid: int, begun: float) -> float:
        """Return when a wait began. Its lock says so a moment after the statement's begin, which
        stands for it until then."""
        known = self._begun.get(pid)
        if known is None or abs(known - begun) > PAUSE_S / 2:
            self._begun[pid] = known = begun
        return known

    def _add(self, row: Any, begun: float, lost_s: float) -> None:
        tag, other = tag_of(row.query, row.name), tag_of(row.blocking, row.blocker_name)
        self.tags[row.pid], self.tags[row.blocker] = tag, other
        self.hidden = self.hidden or "<insufficient privilege>" in (row.query, row.blocking)
        key = (tag, other, self._place(row), _cut(row.query), _cut(row.blocking), bool(row.idle))
        self._lost[key] = self._lost.get(key, 0.0) + lost_s
        self._counted.setdefault(key, set()).add((row.pid, begun))

    def _place(self, row: Any) -> str:
        if row.relation is None or row.page is None or row.number is None:
            found = _RELATION.search(row.query or "")
            return row.relation or (found[1] if found else "")
        at = (row.relation, row.page, row.number)
        if at not in self._places:
            self._places[at] = self._locate(*at)
        return self._places[at]

    def drain(self) -> list[Wait]:
        """Return the waits that were seen since the last time, and forget them."""
        found = self.waits
        for kept in (self._lost, self._counted, self._places, self.tags):
            kept.clear()
        return found

    @property
    def waits(self) -> list[Wait]:
        """The waits that were seen so far."""
        return [
            Wait("server", "waiting", tag, other, place, lost_s, len(self._counted[key]), 1,
                 query, blocking, idle)
            for key, lost_s in self._lost.items()
            for tag, other, place, query, blocking, idle in (key,)
        ]  # fmt: skip


def sampler_of(engine: Engine) -> Sampler:
    """Make a sampler that looks rows up in this database."""
    return Sampler(lambda *at: _row_at(engine, *at))


def waiting(engine: Engine) -> Sequence[Any]:
    """Read who waits for whom at this moment."""
    with reading(engine) as connection:
        return connection.execute(_SAMPLE).all()


def look(engine: Engine, for_s: float, *, pause_s: float = PAUSE_S) -> Sampler:
    """Sample for so many seconds."""
    sampler = sampler_of(engine)
    begun = before = time.monotonic()
    while True:
        rows = waiting(engine)
        now = time.monotonic()
        sampler.take(rows, now, max(now - before, pause_s))
        before = now
        left = begun + for_s - now
        if left <= 0:
            return sampler
        time.sleep(min(pause_s, left))


def tag_of(query: str | None, application: str | None) -> str:
    """Return the tag in a statement, else what is known of the session."""
    if found := tag_in(query or ""):
        return found
    if application == "late":
        table = _OWN.search(query or "")
        return f"late:{table[0]}" if table else "late"
    return application or "untagged"


def _row_at(engine: Engine, relation: str, page: int, number: int) -> str:
    """Return a row by its primary key, `account(id=7)`, or by its ctid where it cannot be read."""
    at = f"({page},{number})"
    try:
        with reading(engine) as connection:
            # Somebody may wait for the whole table: the key is not worth standing in that line.
            connection.execute(text(f"set local lock_timeout = {KEY_WAIT_MS}"))
            return _row_of(connection, relation, at) or f"{relation} ctid {at}"
    except StoreError:  # No right to read it.
        return f"{relation} ctid {at}"


def _row_of(connection: Connection, relation: str, at: str) -> str:
    columns = connection.execute(_KEY, {"relation": relation}).scalar_one()
    if not columns:
        return ""
    # Names come from the catalogue, quoted there.
    query = f"select {', '.join(columns)} from {relation} where ctid = cast(:at as tid)"  # nosec B608
    row = connection.execute(text(query), {"at": at}).one_or_none()
    if row is None:  # That version of the row is gone.
        return ""
    return f"{relation}({', '.join(f'{c}={v}' for c, v in zip(columns, row, strict=True))})"


def _cut(query: str | None) -> str:
    return " ".join((query or "").split())[:STATEMENT_MAX]


_BLOCKED = re.compile(r"Process (\d+) waits for (\w+) on (.+?); blocked by process (\d+)\.")
_STATEMENT = re.compile(r"^\s*(?:DETAIL:\s+)?Process (\d+): (.*)")
_TUPLE = re.compile(r'tuple (\(\d+,\d+\)) in relation "([^"]{1,63})"')


def deadlocks(lines: Iterable[str]) -> list[Wait]:
    """Read the deadlocks in a server's log: both statements, with their tags, and the row.

    The log does not say how long anybody waited, so their time is 0.
    """
    found = []
    for block in _blocks(lines):
        detail = "\n".join(block)
        statements = {}
        for line in block:
            if said := _STATEMENT.match(line):
                statements[said[1]] = _cut(said[2])
        row = _TUPLE.search(detail)
        place = f"{row[2]} ctid {row[1]}" if row else ""
        edges = _BLOCKED.findall(detail)
        for waiter, _, what, blocker in edges[:1]:
            query, other = statements.get(waiter, ""), statements.get(blocker, "")
            found.append(
                Wait("server", "deadlock", tag_in(query) or f"process {waiter}",
                     tag_in(other) or f"process {blocker}", place or what, 0.0,
                     statement=query, other_statement=other)
            )  # fmt: skip
    return found


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines of each deadlock's report: up to its STATEMENT, or to the next message."""
    block: list[str] | None = None
    for line in lines:
        starts = "deadlock detected" in line
        if block is not None and (starts or "STATEMENT:" in line or "LOG:" in line):
            yield block
            block = None
        if starts:
            block = []
        elif block is not None and len(block) < 100:
            block.append(line.rstrip("\n"))
    if block is not None:
        yield block
