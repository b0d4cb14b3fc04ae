"""The steps of an insert.

Unique keys are taken first. Then all tasks are inserted in one statement (on Spanner through
SQLAlchemy: in one per 50 tasks). So there is one statement without unique keys and two with them; a
third reads the holders of keys that are taken. No statement can fail the caller's transaction: a
taken key is found by `on conflict do nothing` and a read, never by a unique violation.

A key with a period (`unique_for`) has `expires_at_us`. Its absolute value is the end of the period,
and it is negative until the task ends: the settlement that ends the task changes the sign. After
the period the next producer of the key frees it, or maintenance does. Without a period the column
is NULL, and the settlement deletes the row.

A task with an ordering key is placed by the lane's version (`docs/design/0019`). If that version
has changed, the insert writes nothing; then the lane is read and the rows are made again. If the
statement cannot depend on the version, or if unique keys are taken before, the lane is read first
as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from late.errors import (
    BatchTooLarge,
    InvalidTask,
    KeyConflict,
    QueueFull,
    SchemaMismatch,
    StoreError,
    TransactionAborted,
)
from late.model.lanes import DEFAULT_LANE, Lane
from late.model.task import Fence, NewTask, TaskId
from late.outbox import debounce, key_turns
from late.outbox.admission import Asked, conditions, refuse
from late.outbox.base import Answer, Statement, Steps
from late.outbox.statements import Dialect
from late.payload.command import Command

ROUNDS_MAX = 5
"""The most times that a key may be freed between the claim and the read of its holder; after that
the insert is given up. The same bound holds for resizes of the lane."""


class Target(Protocol):
    """The properties of a transaction that the steps need."""

    @property
    def dialect(self) -> Dialect: ...
    @property
    def autocommit(self) -> bool:
        """True if each statement would commit by itself. It is read only if it matters."""

    @property
    def snapshot(self) -> bool:
        """True if the rows that it has read may have changed when it commits.

        It is read only if no statement can depend on the lane.
        """


Again: TypeAlias = Callable[[Lane], Sequence[NewTask]]
"""A function that makes the rows of the same tasks for the current lane, with other ids."""


def insert(
    rows: Sequence[NewTask],
    into: Target,
    again: Again | None = None,
    asked: Asked | None = None,
) -> Steps[list[TaskId]]:
    """Insert `rows`, and return their ids in order. Rows with one unique key have one id: that of
    the first, or of the last where each replaces the one before.

    Args:
        again: None for rows that stay in their shards after every change of the lane.
        asked: what must be open; None for rows that every queue takes.

    Raises:
        QueueFull: something of `asked` takes no tasks; none of `rows` was written.
        KeyConflict: a task with another digest holds a key; none of `rows` was written.
        InvalidTask: there are unique keys, and each statement would commit by itself; or ordering
            keys of two lanes; none of `rows` was written.
        TransactionAborted: a key, or the lane, kept changing; the transaction is still usable.
    """
    dialect = into.dialect
    fence = None
    if again is not None and (fences := [row.fence for row in rows if row.fence is not None]):
        # The lowest version counts: if the lane changed while a batch was placed, it is the old
        # one.
        fence = min(fences)
        if max(fences).lane != fence.lane:
            raise InvalidTask(
                f"tasks with ordering keys of two lanes, {fence.lane} and {max(fences).lane}, in"
                " one call: enqueue those of each lane by themselves"
            )
    if _claimants(rows):
        return (yield from _keyed(rows, fence, into, again, asked))
    if fence is not None and again is not None:
        if dialect.fences:
            rows = yield from _fenced(rows, fence, dialect, again, asked)
            return [row.task_id for row in rows]
        rows, _ = yield from _placed(rows, fence, into, again)
    yield from written(rows, None, dialect, asked)
    return [row.task_id for row in rows]


def _keyed(
    rows: Sequence[NewTask],
    fence: Fence | None,
    into: Target,
    again: Again | None,
    asked: Asked | None,
) -> Steps[list[TaskId]]:
    """Take the unique keys of `rows` and insert them; repeat both if the lane changes meanwhile."""
    dialect = into.dialect
    cancelled: list[TaskId] = []
    firsts: dict[str, int] = {}
    for _ in range(ROUNDS_MAX):
        if fence is not None and again is not None:
            rows, fence = yield from _placed(rows, fence, into, again)
        keyed = _claimants(rows)
        if into.autocommit:
            # After a crash between the two statements no task would ever free the key.
            raise InvalidTask("a unique key needs a transaction: begin one before the enqueue")
        # The keys are ascending: two transactions with the same keys cannot deadlock.
        claims = [keyed[key] for key in sorted(keyed)]
        unreplaced = [row for row in claims if row.on_conflict != "replace"]
        holder = yield from _take(unreplaced, rows, into)
        # These keys are taken last, when no other key can cause a conflict any more, because a
        # replaced task is not brought back.
        replacing = [row for row in claims if row.on_conflict == "replace"]
        if replacing:
            yield from _check_open(rows, asked, dialect)
            asked = None
        plain = [row for row in replacing if row.max_wait_us is None]
        cancelled += yield from _replace(plain, rows, into)
        waiting = [row for row in replacing if row.max_wait_us is not None]
        debounced = yield from debounce.take(waiting, firsts, dialect)
        if debounced is None:
            raise (yield from _give_up(waiting, rows, dialect))
        cancelled += [taken.cancelled for taken in debounced if taken.cancelled is not None]
        due = {taken.row.task_id: taken.row for taken in debounced}
        holder |= {str(row.unique_key): row.task_id for row in replacing}
        ids = [row.task_id if row.unique_key is None else holder[row.unique_key] for row in rows]
        fresh = [
            due.get(task_id, row)
            for row, task_id in zip(rows, ids, strict=True)
            if row.task_id == task_id
        ]
        fresh += [Command("cancel", task_id).row() for task_id in cancelled]
        # The lane may have changed after it was read, unless a lock prevents that: sqlite3 begins
        # no transaction for a read, and on PostgreSQL each statement has its own snapshot.
        try:
            if (yield from written(fresh, fence if dialect.fences else None, dialect, asked)):
                return ids
        except (QueueFull, BatchTooLarge):  # Nothing was written, and the caller may go on.
            yield _release(rows, dialect)
            raise
        yield _release(rows, dialect)
    raise TransactionAborted("the lane was resized again and again")


def _check_open(rows: Sequence[NewTask], asked: Asked | None, dialect: Dialect) -> Steps[None]:
    """Read what is full before a task is replaced, because that is not taken back.

    Raises:
        QueueFull: something of `asked` takes no tasks; the keys of `rows` are free again.
    """
    try:
        if names := (yield from conditions(asked, dialect)):
            yield from refuse(names, dialect)
    except QueueFull:
        yield _release(rows, dialect)
        raise


def written(
    rows: Sequence[NewTask], fence: Fence | None, dialect: Dialect, asked: Asked | None = None
) -> Steps[bool]:
    """Insert all rows in as few statements as possible, and return True.

    If the lane no longer has the version of the `fence`, insert no row and return False.

    Raises:
        QueueFull: something of `asked` takes no tasks; no row was inserted.
    """
    names = (yield from conditions(asked, dialect)) if rows else ()
    for start in range(0, len(rows), dialect.tasks_max):
        part = rows[start : start + dialect.tasks_max]
        if asked is not None and names and not start:
            answer = yield from _admitted(part, fence, asked, dialect)
        else:
            answer = yield dialect.tasks(part, fence)
        if (fence is None and not names) or answer.rowcount == len(part):
            continue
        # After the first statement the version cannot change, or SQLite would not have written.
        if answer.rowcount or start:
            raise miscounted(len(part), answer)
        return False
    return True


def _admitted(
    part: Sequence[NewTask], fence: Fence | None, asked: Asked, dialect: Dialect
) -> Steps[Answer]:
    """Insert rows if what is `asked` is open. With a `fence` the answer may be that of no row."""
    for _ in range(ROUNDS_MAX):
        try:
            answer = yield dialect.tasks(part, fence, asked.names)
        except Exception as error:
            if dialect.admission != "try" or not dialect.is_schema_error(error):
                raise
            asked.admission.missed()
            return (yield dialect.tasks(part, fence))
        asked.admission.is_there = True
        if answer.rowcount:
            return answer
        yield from refuse(asked.names, dialect)
        if fence is not None:
            return answer
    raise TransactionAborted("the queue was full and not full again and again")


def miscounted(count: int, answer: Answer) -> StoreError:
    """Return the error for a wrong row count of the driver: the tasks may not exist."""
    return StoreError(f"{count} tasks inserted, the driver says {answer.rowcount}")


def _fenced(
    rows: Sequence[NewTask], fence: Fence, dialect: Dialect, again: Again, asked: Asked | None
) -> Steps[Sequence[NewTask]]:
    """Insert all rows by the lane's version at that time, and return them as they were written."""
    for _ in range(ROUNDS_MAX):
        if (yield from written(rows, fence, dialect, asked)):
            return rows
        lane = yield from lane_of(fence.lane, dialect)
        rows, fence = again(lane), Fence(lane.name, lane.version)
    raise TransactionAborted("the lane was resized again and again")


def _placed(
    rows: Sequence[NewTask], fence: Fence, into: Target, again: Again
) -> Steps[tuple[Sequence[NewTask], Fence]]:
    """Read the lane; return rows that are placed by it, and its version.

    These are `rows` themselves unless the lane has changed.
    """
    if into.autocommit:
        raise InvalidTask("an ordering key needs a transaction here: begin one before the enqueue")
    if not into.dialect.fences and into.snapshot:
        raise InvalidTask(
            "an ordering key needs a serializable transaction here: one under REPEATABLE READ does"
            " not see that the lane is resized before its commit, and its task could lose its order"
        )
    lane = yield from lane_of(fence.lane, into.dialect)
    found = Fence(lane.name, lane.version)
    return rows if found == fence else again(lane), found


def lane_of(name: str, dialect: Dialect) -> Steps[Lane]:
    """Read a lane.

    Raises:
        SchemaMismatch: there is no lane `default`.
        InvalidTask: there is no lane of that name.
    """
    answer = yield dialect.bind(
        "select name, first_shard, shards, version from late_lane where name = {lane}",
        fetch=True,
        lane=name,
    )
    if not answer.rows and name != DEFAULT_LANE:
        known = yield dialect.bind("select name from late_lane order by name", fetch=True)
        raise no_lane(name, [str(row[0]) for row in known.rows])
    if not answer.rows:
        raise SchemaMismatch("late_lane has no row `default`: run `late migrate URL`")
    return Lane(*answer.rows[0])


def no_lane(name: str, known: Sequence[str]) -> InvalidTask:
    """Return the error for a lane that does not exist."""
    return InvalidTask(
        f"this database has no lane {name!r}; known: {', '.join(known)}. `late shards --lane {name}"
        " --create N` makes it"
    )


def _take(
    claims: Sequence[NewTask], rows: Sequence[NewTask], into: Target
) -> Steps[dict[str, TaskId]]:
    """Take the keys of `claims`, or find their holders; return the task of each key."""
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
            # Keys without tasks must not remain if the caller continues and commits.
            yield _release(rows, dialect)
            raise conflict
        holder |= {key: task_id for key, (task_id, _) in held.items()}
        claims = [row for row in claims if row.unique_key not in holder]
    if claims:
        raise (yield from _give_up(claims, rows, dialect))
    return holder


def _replace(
    claims: Sequence[NewTask], rows: Sequence[NewTask], into: Target
) -> Steps[list[TaskId]]:
    """Take the keys of `claims` from their holders; return the tasks that are to be cancelled."""
    dialect = into.dialect
    cancelled: list[TaskId] = []
    has_turn = False
    for _ in range(key_turns.ROUNDS_MAX):
        if not claims:
            return cancelled
        answer = yield dialect.claim(claims)
        if answer.rowcount == len(claims):
            return cancelled
        held = yield from _holders(claims, dialect)
        ours = {row.task_id for row in claims}
        others = [(key, holds) for key, (holds, _) in held.items() if holds not in ours]
        if others:
            freed = yield dialect.release(others)
            cancelled += [task_id for _, task_id in others]
            if freed.rowcount < len(others) and not has_turn:
                yield from key_turns.wait([key for key, _ in others], dialect)
                has_turn = True
        claims = [row for row in claims if held.get(str(row.unique_key), ("",))[0] != row.task_id]
    if claims:
        raise (yield from _give_up(claims, rows, dialect))
    return cancelled


def _holders(
    claims: Sequence[NewTask], dialect: Dialect
) -> Steps[dict[str, tuple[TaskId, str | None]]]:
    """Read key -> (task, digest) of the taken keys, and free those whose period is over."""
    answer = yield dialect.holders([str(row.unique_key) for row in claims])
    over = [key for key, _, _, is_over in answer.rows if is_over]
    if over:
        yield dialect.free(over)
    return {
        key: (TaskId(str(task_id)), digest)
        for key, task_id, digest, is_over in answer.rows
        if not is_over
    }


def _give_up(
    claims: Sequence[NewTask], rows: Sequence[NewTask], dialect: Dialect
) -> Steps[TransactionAborted]:
    """Give the keys of `rows` back, and return the error."""
    yield _release(rows, dialect)
    return TransactionAborted(
        f"unique key {claims[0].unique_key!r} kept changing hands: repeat the transaction"
    )


def _claimants(rows: Sequence[NewTask]) -> dict[str, NewTask]:
    """Map each unique key to the row that claims it: the first, or the last that replaces others.

    Raises:
        KeyConflict: two rows of one key are neither the same task nor replacements.
    """
    keyed: dict[str, NewTask] = {}
    for row in rows:
        if row.unique_key is None:
            continue
        first = keyed.setdefault(row.unique_key, row)
        if first.on_conflict == row.on_conflict == "replace":
            keyed[row.unique_key] = row
        elif first is not row and (first.digest != row.digest or row.on_conflict != "existing"):
            raise KeyConflict(
                f"unique key {row.unique_key!r} is given to two different tasks of one call:"
                ' give each key once, or on_conflict="replace" to all of them'
            )
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
    return dialect.release(
        [(row.unique_key, row.task_id) for row in rows if row.unique_key is not None]
    )
