"""Defects in the stores: one statement, or one line around it, that looks right and is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from psycopg.errors import NotNullViolation
from sqlalchemy.dialects.sqlite.base import SQLiteDDLCompiler

from late.model.task import Suspect
from late.store.base import Page, Settlement, SettleResult
from late.store.common import compaction
from late.store.postgres import (
    cursor as postgres_cursor,
)
from late.store.postgres import (
    journal as postgres_journal,
)
from late.store.postgres import (
    partitions as postgres_partitions,
)
from late.store.postgres import (
    prune as postgres_prune,
)
from late.store.postgres import (
    shared_transaction as postgres_shared,
)
from late.store.postgres import (
    statements as postgres_sql,
)
from late.store.postgres import (
    tail as postgres_tail,
)
from late.store.postgres.tail import PostgresTail
from late.store.sqlite import (
    journal as sqlite_journal,
)
from late.store.sqlite import (
    prune as sqlite_prune,
)
from late.store.sqlite import (
    statements as sqlite_sql,
)
from late.store.sqlite import (
    tail as sqlite_tail,
)
from tests.conformance.journal_kit import PLANNERS
from tests.defects.components import replace


def _edit(module: Any, name: str, old: str, new: str) -> None:
    text = getattr(module, name)
    assert old in text, f"{name} has changed: this defect must follow it"
    setattr(module, name, text.replace(old, new))


def scalar_cursor() -> None:
    """The tail's frame forgets which transactions were running."""
    _edit(
        postgres_sql, "FRAME", "s.cur::text",
        "pg_snapshot_xmax(s.cur)::text || ':' || pg_snapshot_xmax(s.cur)::text || ':'",
    )  # fmt: skip


def shared_without_the_fence() -> None:
    """A transaction of handlers writes its settlement unless there is one, as a repeat might."""

    def statements_of(settlements: Sequence[Settlement]) -> Iterable[Any]:
        (journal, values), *others = postgres_journal.statements_of(settlements)
        checked = journal[journal.index("case when") : journal.index(" end,") + len(" end")]
        yield journal.replace(checked, "u.owner") + " on conflict do nothing", values
        yield from others

    replace(postgres_shared, "statements_of", statements_of)


def covers_beyond_the_key() -> None:
    """The bound of a range, which is outside of it, may be one above the page's key."""

    def covers_all(self: Any, low: int, high: int) -> bool:
        more = msgspec.structs.replace(self, key=(self.key[0] + 1, self.key[1]))
        return old(more, low, high)

    old = replace(postgres_cursor.PostgresWindow, "covers_all", covers_all)


def truncate_after_one_look() -> None:
    """What the first look said counts under the lock too."""

    async def truncate(connection: Any, partition: Any, settled: Callable[[Any], bool]) -> bool:
        looks: list[bool] = []

        def once(rows: Any) -> bool:
            looks.append(looks[0] if looks else settled(rows))
            return looks[0]

        emptied: bool = await old(connection, partition, once)
        return emptied

    old = replace(postgres_partitions, "truncate", truncate)


def results_in_the_order_of_writes() -> None:
    """The writes are sorted by shard, and so are the results."""

    async def settle(connection: Any, settlements: Sequence[Settlement]) -> list[SettleResult]:
        ordered = sorted(settlements, key=lambda s: (s.group, s.shard_id))
        results: list[SettleResult] = await old(connection, ordered)
        return results

    old = replace(postgres_journal, "settle", settle)


def cursors_ahead_of_the_disk() -> None:
    """A page without rows comes back although what its cursor has seen is not on disk."""

    async def durable_pages(
        self: Any, connection: Any, pages: list[Page], frame: Any, *, waits: bool
    ) -> list[Page]:
        if not any(page.records for page in pages):
            return pages
        found: list[Page] = await old(self, connection, pages, frame, waits=waits)
        return found

    old = replace(PostgresTail, "_durable_pages", durable_pages)


def snapshot_after_the_rows() -> None:
    """The snapshot that becomes the cursor is taken by a second statement, after the rows."""

    async def read_group(connection: Any, prev: str, cur: str, *rest: Any) -> Any:
        import asyncio

        import msgspec

        pages, waits = await old(connection, prev, cur, *rest)
        await asyncio.sleep(0.002)  # what a busy event loop takes
        later = (await postgres_tail._frame(connection)).snapshot
        found = [p if p.more else msgspec.structs.replace(p, cursor=later) for p in pages]
        return found, waits

    old = replace(postgres_tail, "_read_group", read_group)


def tail_in_an_open_transaction() -> None:
    """The tail reads within one transaction that stays open: what it sees is what it saw first."""

    async def frame(connection: Any) -> Any:
        if "frame" not in kept:
            kept["frame"] = await old(connection)
        return kept["frame"]

    kept: dict[str, Any] = {}
    old = replace(postgres_tail, "_frame", frame)


def _look_before(lock: str) -> Callable[[], None]:
    look = f"select epoch from late_lease where consumer_group = %s and shard_id = %s {lock}"

    def break_it() -> None:
        async def write(connection: Any, settlements: Sequence[Settlement]) -> None:
            async with connection.transaction():
                for s in settlements:
                    cursor = await connection.execute(look, (s.group, s.shard_id))
                    [epoch] = await cursor.fetchone()
                    if epoch != s.epoch:
                        raise NotNullViolation("another epoch")
                for statement, values in postgres_journal.statements_of(settlements):
                    await connection.execute(statement, values)

        begin, end = text.index("case when"), text.index("then u.owner end")
        changed = text[:begin] + "u.owner" + text[end + len("then u.owner end") :]
        postgres_sql.SETTLE = changed.replace("u.shard_id, u.seq,", f"u.shard_id, {NEXT},")
        replace(postgres_journal, "_write", write)

    text = postgres_sql.SETTLE
    return break_it


NEXT = (
    "1 + coalesce((select max(p.seq) from late_settlement p where p.consumer_group ="
    " u.consumer_group and p.shard_id = u.shard_id), 0)"
)
plain_look = _look_before("")
"""The lease is looked at, and the settlement takes whatever number is next."""
weak_lock = _look_before("for key share")
"""The same with a lock that a takeover does not wait for."""


def no_fence() -> None:
    """Whoever settles is accepted."""
    unasked, _, _ = sqlite_sql.SETTLE.partition(" where not exists")
    sqlite_sql.SETTLE = unasked.replace("insert", "insert or replace")


def fence_without_the_last_row() -> None:
    """The key of the journal alone is the fence: what retention took is free again."""
    unasked, _, _ = sqlite_sql.SETTLE.partition(" where not exists")
    sqlite_sql.SETTLE = unasked.replace("insert", "insert or ignore")


def fence_without_the_last_row_on_postgres() -> None:
    text = postgres_sql.SETTLE
    begin, end = text.index("case when"), text.index("then u.owner end")
    postgres_sql.SETTLE = text[:begin] + "u.owner" + text[end + len("then u.owner end") :]


def not_idempotent() -> None:
    """A repeat of one's own settlement is refused."""
    _edit(sqlite_sql, "SETTLEMENT_ID", "select settlement_id", "select 'another'")


def whose_id_does_not_matter() -> None:
    """A number that is taken counts as one's own settlement of unknown outcome."""

    def settle_one(connection: Any, settlement: Settlement, outlines: Any) -> SettleResult:
        old(connection, settlement, outlines)
        return SettleResult.SETTLED

    old = replace(sqlite_journal, "_settle_one", settle_one)


def end_known_by_a_later_version() -> None:
    """Whether a shard of SQLite has news is known by a version that is asked after its page."""

    def page(tail: Any, connection: Any, *asked: Any) -> Any:
        found = old(tail, connection, *asked)
        tail._look(connection)
        return found

    old = replace(sqlite_tail.SqliteTail, "_page", page)


def prune_by_age() -> None:
    """Maintenance takes what is old."""

    def ranges(connection: Any) -> Any:
        connection.execute("delete from late_task where created_at_us < 1000000000000000")
        return old(connection)

    old = replace(sqlite_prune, "settled_ranges", ranges)


def prune_what_is_open() -> None:
    """Maintenance takes all that a cursor covers."""
    replace(sqlite_prune, "open_of", lambda text: ())


def prune_by_an_outline() -> None:
    """Retention takes a settlement whose open tasks are not known any more for one without any."""
    replace(sqlite_prune, "_as_it_was", lambda cursor, text: (cursor, "[]"))


def prune_for_one_group() -> None:
    """Maintenance asks the groups that have a journal, and not those that have none yet."""
    _edit(
        sqlite_sql, "GROUPS", "select name from late_group union select",
        "select",
    )  # fmt: skip
    _edit(postgres_prune, "_GROUPS", "select name from late_group union select", "select")


def journal_without_its_last_row() -> None:
    """Retention takes old rows of the journal, the last one too."""
    _edit(
        sqlite_sql, "JOURNAL_KEEP", "(select max(seq) from late_settlement",
        "(select max(seq) + 1 from late_settlement",
    )  # fmt: skip


def compaction_of_the_last_row() -> None:
    """Compaction puts the last row of a journal together with those before it."""
    _edit(sqlite_sql, "COMPACTED", "and seq < ?", "and seq <= ?")


def sums_beside_what_they_sum() -> None:
    """Compaction leaves the first row of a bucket, whose usage is in the sum, too."""

    def make(run: list[compaction.JournalRow]) -> compaction.Sum | None:
        made = old(run)
        return made and msgspec.structs.replace(made, low=made.low + 1)

    old = replace(compaction, "_sum", make)


def compaction_of_the_first_row() -> None:
    """Compaction puts the first row of a term together with those behind it."""

    def plan(rows: Any, *given: Any) -> compaction.Compacted:
        # As if the row before each one were of its term.
        return old([msgspec.structs.replace(row, first_seq=row.first) for row in rows], *given)

    old = compaction.plan_sums
    for module in PLANNERS:
        replace(module, "plan_sums", plan)


def rowids_given_again() -> None:
    """The log has no AUTOINCREMENT: the highest id is given again once its row is gone."""

    def create(self: Any, *args: Any, **kwargs: Any) -> str:
        ddl: str = old(self, *args, **kwargs)
        return ddl.replace("AUTOINCREMENT", "")

    old = replace(SQLiteDDLCompiler, "visit_create_table", create)


def tick_without_comparison() -> None:
    """A tick takes effect whatever the schedule expects."""
    _edit(sqlite_sql, "TICK", " and next_due_at_us = ?", " and ? is not null")


def due_by_whole_milliseconds() -> None:
    """Due times are compared in milliseconds, rounded."""
    _edit(sqlite_sql, "DUE", "due_at_us <= ?", "due_at_us / 1000 <= (? + 999) / 1000")


def marks_wiped() -> None:
    """A takeover by who owned the shard before ends the marks of what may still be running."""

    def inherited(suspects: Iterable[Suspect], *, died: bool) -> tuple[Suspect, ...]:
        kept = tuple(Suspect(s.task_id, s.deaths) for s in suspects if s.deaths)
        return old(suspects, died=True) if died else kept

    old = replace(sqlite_journal, "inherited", inherited)
