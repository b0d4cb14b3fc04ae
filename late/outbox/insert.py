"""The steps of an insert: unique keys first, then all tasks in one statement (on Spanner through
SQLAlchemy: in one per 50).

Without unique keys there is nothing else. With them there are two, and a third that reads
who holds a key that is taken. Nothing is tried that could fail the caller's transaction: a taken
key is found by `on conflict do nothing` and a look, never by a unique violation.

A key with a period (`unique_for`) is held by `expires_at_us`, whose sign says whether its task
still lives: below zero it does, and the end of its period is the number without the sign. The
settlement that ends the task turns the sign; from the end of the period on whoever wants the key
frees it, and so does maintenance. Without a period the column is NULL and the settlement
deletes the row.

A task with an ordering key is placed by the lane's version (`docs/design/0019`): its insert writes
nothing where that has changed, the lane is read and the rows are made again. Where the statement
cannot depend on it, or keys are taken before, the lane is read first as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from late.errors import InvalidTask, KeyConflict, SchemaMismatch, StoreError, TransactionAborted
from late.model.lanes import Lane
from late.model.task import NewTask, TaskId
from late.outbox.base import Answer, Statement, Steps
from late.outbox.statements import Dialect
from late.payload.command import Command

ROUNDS_MAX = 5
"""The number of times that a key may be freed between the claim and the look before we give up."""


class Target(Protocol):
    """The transaction that the steps run in, as far as they must know it."""

    @property
    def dialect(self) -> Dialect: ...
    @property
    def autocommit(self) -> bool:
        """True if each statement would commit by itself. Only asked where it matters."""

    @property
    def snapshot(self) -> bool:
        """True if what it reads may have changed when it commits. Only asked where no statement can
        depend on the lane."""


Again: TypeAlias = Callable[[Lane], Sequence[NewTask]]
"""The same tasks as rows for the lane as it is now, with other ids."""


def insert(
    rows: Sequence[NewTask], into: Target, again: Again | None = None
) -> Steps[list[TaskId]]:
    """Insert `rows`; returns their ids in order, the first task's id for a repeated unique key.

    Args:
        again: None for rows that stay in their shards whatever becomes of the lane.

    Raises (into whoever drives):
        KeyConflict: a key is held by a task with another digest; nothing of `rows` is left.
        InvalidTask: unique keys where each statement would commit by itself.
        TransactionAborted: a key, or the lane, kept changing; the transaction is still usable.
    """
    dialect = into.dialect
    layout = None
    if again is not None:
        # The lowest: in a batch that was placed while the lane changed, it is the wrong one.
        layout = min([row.layout for row in rows if row.layout is not None], default=None)
    if _first_of_each_key(rows):
        return (yield from _keyed(rows, layout, into, again))
    if layout is not None and again is not None:
        if dialect.fences:
            rows = yield from _fenced(rows, layout, dialect, again)
            return [row.task_id for row in rows]
        rows, _ = yield from _placed(rows, layout, into, again)
    yield from _written(rows, None, dialect)
    return [row.task_id for row in rows]


def _keyed(
    rows: Sequence[NewTask], layout: int | None, into: Target, again: Again | None
) -> Steps[list[TaskId]]:
    """`rows` with unique keys: the keys first, and once more if the lane changes meanwhile."""
    dialect = into.dialect
    cancelled: list[TaskId] = []
    for _ in range(ROUNDS_MAX):
        if layout is not None and again is not None:
            rows, layout = yield from _placed(rows, layout, into, again)
        keyed = _first_of_each_key(rows)
        if into.autocommit:
            # A crash between the two statements would leave a key that no task ever frees.
            raise InvalidTask("a unique key needs a transaction: begin one before the enqueue")
        # Ascending, so that two transactions with the same keys wait for each other and never both.
        claims = [keyed[key] for key in sorted(keyed)]
        unreplaced = [row for row in claims if row.on_conflict != "replace"]
        holder = yield from _take(unreplaced, rows, into)
        # Last, when no other key can be in the way any more: whom these replace is not brought
        # back.
        replacing = [row for row in claims if row.on_conflict == "replace"]
        cancelled += yield from _replace(replacing, rows, into)
        holder |= {str(row.unique_key): row.task_id for row in replacing}
        ids = [row.task_id if row.unique_key is None else holder[row.unique_key] for row in rows]
        fresh = [row for row, task_id in zip(rows, ids, strict=True) if row.task_id == task_id]
        fresh += [Command("cancel", task_id).row() for task_id in cancelled]
        # What was read of the lane may be over, unless a lock holds it: sqlite3 begins no
        # transaction for a read, and on PostgreSQL each statement has a snapshot of its own.
        if (yield from _written(fresh, layout if dialect.fences else None, dialect)):
            return ids
        yield _release(rows, dialect)
    raise TransactionAborted("the lane was resized again and again")


def _written(rows: Sequence[NewTask], layout: int | None, dialect: Dialect) -> Steps[bool]:
    """Insert all rows, in as few statements as it takes; with a `layout` none of them, and False,
    where that is not the lane's any more."""
    for start in range(0, len(rows), dialect.tasks_max):
        part = rows[start : start + dialect.tasks_max]
        answer = yield dialect.tasks(part, layout)
        if layout is None or answer.rowcount == len(part):
            continue
        # After the first statement the lane's row is as it was, or SQLite would not have written.
        if answer.rowcount or start:
            raise miscounted(len(part), answer)
        return False
    return True


def miscounted(count: int, answer: Answer) -> StoreError:
    """The error of a driver that does not count: the tasks may not be there."""
    return StoreError(f"{count} tasks inserted, the driver says {answer.rowcount}")


def _fenced(
    rows: Sequence[NewTask], layout: int, dialect: Dialect, again: Again
) -> Steps[Sequence[NewTask]]:
    """Insert all rows by the lane as it is then; returns them as written."""
    for _ in range(ROUNDS_MAX):
        if (yield from _written(rows, layout, dialect)):
            return rows
        lane = yield from _lane(dialect)
        rows, layout = again(lane), lane.version
    raise TransactionAborted("the lane was resized again and again")


def _placed(
    rows: Sequence[NewTask], layout: int, into: Target, again: Again
) -> Steps[tuple[Sequence[NewTask], int]]:
    """`rows`, or others where the lane has changed, and the version that they are placed by."""
    if into.autocommit:
        raise InvalidTask("an ordering key needs a transaction here: begin one before the enqueue")
    if not into.dialect.fences and into.snapshot:
        raise InvalidTask(
            "an ordering key needs a serializable transaction here: one under REPEATABLE READ does"
            " not see that the lane is resized before its commit, and its task could lose its order"
        )
    lane = yield from _lane(into.dialect)
    return rows if lane.version == layout else again(lane), lane.version


def _lane(dialect: Dialect) -> Steps[Lane]:
    answer = yield dialect.bind(
        "select name, first_shard, shards, version from late_lane where name = {lane}",
        fetch=True,
        lane="default",
    )
    if not answer.rows:
        raise SchemaMismatch("late_lane has no row `default`: run `late migrate URL`")
    return Lane(*answer.rows[0])


def _take(
    claims: Sequence[NewTask], rows: Sequence[NewTask], into: Target
) -> Steps[dict[str, TaskId]]:
    """Take the keys of `claims`, or learn who holds them: the task of each."""
    dialect = into.dialect
    holder: dict[str, TaskId] = {}
    for _ in range(ROUNDS_MAX):
        if not claims:
            return holder
        answer = yield dialect.claim(claims)
        if answer.rowcount == len(claims):
            return holder | {str(row.unique_key): row.task_id for row in claims}
        held = yield from _holders(claims, dialect)
        conflict = _conflict(claims, held)
        if conflict is not None:
            # Keys without tasks must not stay behind if the caller goes on and commits.
            yield _release(rows, dialect)
            raise conflict
        holder |= {key: task_id for key, (task_id, _) in held.items()}
        claims = [row for row in claims if row.unique_key not in holder]
    if claims:
        yield from _give_up(claims, rows, dialect)
    return holder


def _replace(
    claims: Sequence[NewTask], rows: Sequence[NewTask], into: Target
) -> Steps[list[TaskId]]:
    """Take the keys of `claims` from whoever holds them: the tasks that are to be cancelled."""
    dialect = into.dialect
    cancelled: list[TaskId] = []
    for _ in range(ROUNDS_MAX):
        if not claims:
            return cancelled
        answer = yield dialect.claim(claims)
        if answer.rowcount == len(claims):
            return cancelled
        held = yield from _holders(claims, dialect)
        ours = {row.task_id for row in claims}
        others = [task_id for task_id, _ in held.values() if task_id not in ours]
        if others:
            yield dialect.release(others)
            cancelled += others
        claims = [row for row in claims if held.get(str(row.unique_key), ("",))[0] != row.task_id]
    if claims:
        yield from _give_up(claims, rows, dialect)
    return cancelled


def _holders(
    claims: Sequence[NewTask], dialect: Dialect
) -> Steps[dict[str, tuple[TaskId, str | None]]]:
    """Key -> (task, digest) of those that are taken. Frees those whose period is over."""
    answer = yield dialect.holders([str(row.unique_key) for row in claims])
    over = [key for key, _, _, is_over in answer.rows if is_over]
    if over:
        yield dialect.free(over)
    return {
        key: (TaskId(str(task_id)), digest)
        for key, task_id, digest, is_over in answer.rows
        if not is_over
    }


def _give_up(claims: Sequence[NewTask], rows: Sequence[NewTask], dialect: Dialect) -> Steps[None]:
    yield _release(rows, dialect)
    raise TransactionAborted(f"unique key {claims[0].unique_key!r} kept changing hands")


def _first_of_each_key(rows: Sequence[NewTask]) -> dict[str, NewTask]:
    keyed: dict[str, NewTask] = {}
    for row in rows:
        if row.unique_key is None:
            continue
        first = keyed.setdefault(row.unique_key, row)
        if first is not row and (first.digest != row.digest or row.on_conflict != "existing"):
            raise KeyConflict(f"unique key {row.unique_key!r} is given to two different tasks")
    return keyed


def _conflict(
    claims: Sequence[NewTask], held: Mapping[str, tuple[TaskId, str | None]]
) -> KeyConflict | None:
    for row in claims:
        task_id, digest = held.get(str(row.unique_key), (row.task_id, row.digest))
        if task_id == row.task_id:
            continue
        if row.on_conflict == "reject":
            return KeyConflict(f"unique key {row.unique_key!r} is held by task {task_id}")
        if digest != row.digest:
            return KeyConflict(
                f"unique key {row.unique_key!r} is held by task {task_id} with another body"
            )
    return None


def _release(rows: Sequence[NewTask], dialect: Dialect) -> Statement:
    return dialect.release([row.task_id for row in rows if row.unique_key is not None])
