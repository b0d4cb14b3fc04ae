"""The steps of an insert, driven by hand: the answers that a real database gives too rarely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import late
from late.errors import InvalidTask, KeyConflict, TransactionAborted
from late.model.lanes import Lane
from late.model.task import NewTask
from late.outbox import key_turns
from late.outbox import statements as dialects
from late.outbox.base import Answer, Statement
from late.outbox.execute import drive
from late.outbox.insert import ROUNDS_MAX, insert
from late.outbox.statements import ASYNCPG, GOOGLE, PSYCOPG, PSYCOPG2, SQLITE, Dialect
from late.schema import tables

app = late.App("sqlite:///x.db")


@app.task
def greet(name: str) -> None: ...


class Target:
    """A transaction that is not there."""

    autocommit = False
    snapshot = False

    def __init__(self, dialect: Dialect = SQLITE) -> None:
        self.dialect = dialect


def keyed(key: str, name: str = "Ada") -> NewTask:
    return app.row(greet.options(unique_key=key).call(name))


def run(
    rows: list[NewTask],
    *answers: Answer | Callable[[Statement], Answer],
    again: Callable[[Lane], list[NewTask]] | None = None,
) -> tuple[Any, Any]:
    """Ids and the first words of the statements."""
    waiting = list(answers)
    seen: list[str] = []

    def execute(statement: Statement) -> Answer:
        seen.append(" ".join(statement.sql.split()[:3]))
        answer = waiting.pop(0)
        return answer(statement) if callable(answer) else answer

    ids = drive(insert(rows, Target(), again), execute)
    assert not waiting
    return ids, seen


def test_no_rows_no_statement() -> None:
    assert run([]) == ([], [])


def test_a_plain_task_is_one_statement() -> None:
    row = app.row(greet.call("Ada"))
    assert run([row], Answer(1), again=lambda now: []) == ([row.task_id], ["insert into late_task"])


def test_free_keys_are_not_looked_up() -> None:
    rows = [keyed("b"), keyed("a")]
    claimed: list[Any] = []

    def claim(statement: Statement) -> Answer:
        claimed.extend(statement.params[::4])
        return Answer(2)

    ids, seen = run(rows, claim, Answer(2))
    assert ids == [row.task_id for row in rows]
    assert seen == ["insert into late_unique", "insert into late_task"]
    assert claimed == ["a", "b"], "ascending: two transactions never wait for each other"


def test_a_key_that_is_freed_between_claim_and_look_is_claimed_again() -> None:
    row = keyed("a")
    ids, seen = run([row], Answer(0), Answer(0, []), Answer(1), Answer(1))
    assert ids == [row.task_id]
    assert seen == [
        "insert into late_unique",
        "select unique_key, task_id,",
        "insert into late_unique",
        "insert into late_task",
    ]


def test_a_driver_that_counts_nothing_costs_a_look() -> None:
    row = keyed("a")
    ids, _ = run([row], Answer(-1), Answer(1, [("a", row.task_id, row.digest, False)]), Answer(1))
    assert ids == [row.task_id]


def test_a_key_that_keeps_changing_hands_is_given_up_and_left_clean() -> None:
    answers = [Answer(0), Answer(0, [])] * ROUNDS_MAX
    released: list[Any] = []

    def release(statement: Statement) -> Answer:
        assert statement.sql.startswith("delete from late_unique")
        released.extend(statement.params)
        return Answer(0)

    row = keyed("a")
    with pytest.raises(TransactionAborted) as caught:
        run([row], *answers, release)
    assert caught.value.transient
    assert released == ["a", row.task_id]


def test_a_conflict_releases_what_the_batch_has_claimed() -> None:
    ours, theirs = keyed("free"), keyed("taken")
    found = [
        ("free", ours.task_id, ours.digest, False),
        ("taken", "their id", "another digest", False),
    ]
    statements: list[str] = []

    def release(statement: Statement) -> Answer:
        statements.append(statement.sql)
        assert statement.params == ("free", "taken", ours.task_id, theirs.task_id)
        return Answer(1)

    with pytest.raises(KeyConflict, match="'taken' is held by task their id"):
        run([ours, theirs], Answer(1), Answer(2, found), release)
    assert statements


def test_two_bodies_under_one_key_in_a_batch_are_refused_before_any_statement() -> None:
    with pytest.raises(KeyConflict, match="two different tasks"):
        run([keyed("a", "one"), keyed("a", "two")])


def ordered(lane: Lane, *names: str, **options: Any) -> list[NewTask]:
    return [app.row(greet.options(ordering_key="o", **options).call(n), lane) for n in names]


def lane(version: int) -> Answer:
    return Answer(1, [("default", 0, 8 - version, version)])


def test_a_lane_that_is_resized_between_look_and_insert_is_seen() -> None:
    """sqlite3 reads outside of any transaction, PostgreSQL has a snapshot for each statement: what
    was read of the lane may be over when the rows are written, and is not trusted."""
    made: list[NewTask] = []

    def again(now: Lane) -> list[NewTask]:
        made[:] = ordered(now, "Ada", unique_key="u")
        return made

    released: list[Any] = []

    def release(statement: Statement) -> Answer:
        released.extend(statement.params)
        return Answer(1)

    rows = ordered(Lane(), "Ada", unique_key="u")
    answers = [lane(0), Answer(1), Answer(0), release, lane(1), Answer(1), Answer(1)]
    ids, seen = run(rows, *answers, again=again)
    assert ids == [row.task_id for row in made] != [row.task_id for row in rows]
    assert made[0].fence == ("default", 1)
    assert released == ["u", rows[0].task_id], "the key is given back before it is taken anew"
    assert [words.split()[-1] for words in seen] == [
        "first_shard,", "late_unique", "late_task", "late_unique",
        "first_shard,", "late_unique", "late_task",
    ]  # fmt: skip


def test_whom_a_key_was_taken_from_is_cancelled_though_the_lane_changes() -> None:
    written: list[Any] = []

    def write(statement: Statement) -> Answer:
        written[:] = [name for name in statement.params if isinstance(name, str)]
        return Answer(2)

    rows = ordered(Lane(), "Ada", unique_key="u", on_conflict="replace")
    old = app.row(greet.call("x")).task_id
    run(
        rows,
        lane(0),
        Answer(0), Answer(1, [("u", old, "digest", False)]), Answer(1), Answer(1),
        Answer(0), Answer(1),
        lane(1),
        Answer(1), write,
        again=lambda now: ordered(now, "Ada", unique_key="u", on_conflict="replace"),
    )  # fmt: skip
    assert "late.cancel" in written


def test_a_debounce_keeps_its_first_call_though_the_lane_changes() -> None:
    options: Any = {"unique_key": "u", "on_conflict": "replace", "delay": 5, "max_wait": 60}
    written: list[list[Any]] = []

    def write(statement: Statement) -> Answer:
        written.append(list(statement.params))
        return Answer(1)

    def insert(statement: Statement) -> Answer:
        written.append(list(statement.params))
        return Answer(2)

    rows = ordered(Lane(), "Ada", **options)
    later: list[NewTask] = []

    def again(now: Lane) -> list[NewTask]:
        later[:] = ordered(now, "Ada", **options)
        return later

    old, now_us, first_us = app.row(greet.call("x")).task_id, 90_000_000, 31_000_000
    run(
        rows,
        lane(0),
        Answer(0), Answer(1, [(old, first_us, -94_000_000, now_us)]), Answer(1), write,
        Answer(0), Answer(1),
        lane(1),
        Answer(1), lambda _: Answer(1, [(later[0].task_id, now_us, -95_000_000, now_us)]),
        Answer(1), write, insert,
        again=again,
    )  # fmt: skip
    first, second, inserted = written
    due_us = first_us + 60_000_000
    assert first[-2:] == second[-2:] == [first_us, -due_us]
    assert (first[1], second[1]) == (rows[0].task_id, later[0].task_id)
    assert any("late.cancel" in str(value) for value in inserted)
    assert any(f'"at_us":{due_us}' in str(value) for value in inserted)


def test_a_debounced_key_that_keeps_changing_hands_is_given_up() -> None:
    options: Any = {"unique_key": "u", "on_conflict": "replace", "delay": 5, "max_wait": 60}
    rows = [app.row(greet.options(**options).call("Ada"))]
    held = app.row(greet.call("x")).task_id
    taken = [Answer(0), Answer(1, [(held, 1, -99, 50)]), Answer(0)]
    turn = Answer(1, [("",)])
    with pytest.raises(TransactionAborted, match="changing hands: repeat the transaction"):
        run(rows, *taken, turn, *taken * (key_turns.ROUNDS_MAX - 1), Answer(1))


def test_whoever_lost_a_key_to_another_waits_for_a_turn_of_its_own() -> None:
    rows = [app.row(greet.options(unique_key="u", on_conflict="replace").call("Ada"))]
    first, second = app.row(greet.call("x")).task_id, app.row(greet.call("y")).task_id

    def turn(statement: Statement) -> Answer:
        assert statement.params == ("u",)
        return Answer(1, [("",)])

    _, seen = run(
        rows,
        Answer(0), Answer(1, [("u", first, "digest", False)]), Answer(0), turn,
        Answer(0), Answer(1, [("u", second, "digest", False)]), Answer(1),
        Answer(1), Answer(3),
    )  # fmt: skip
    assert seen[3] == "select 1 from"
    assert seen.count("select 1 from") == 1


def test_many_keys_that_others_took_lock_a_part_of_them_in_order() -> None:
    keys = [f"k{n:03}" for n in range(100, 0, -1)]
    seen: list[Statement] = []

    def execute(statement: Statement) -> Answer:
        seen.append(statement)
        return Answer(1)

    drive(key_turns.wait(keys, PSYCOPG), execute)
    assert [one.params for one in seen] == [(f"k{n:03}",) for n in range(1, 33)]
    assert "pg_advisory_xact_lock" in seen[0].sql


def test_a_lane_that_keeps_changing_is_given_up_and_leaves_no_key() -> None:
    answers = [[lane(n), Answer(1), Answer(0), Answer(1)] for n in range(ROUNDS_MAX)]
    with pytest.raises(TransactionAborted, match="again and again"):
        run(
            ordered(Lane(), "Ada", unique_key="u"),
            *(each for some in answers for each in some),
            again=lambda now: ordered(now, "Ada", unique_key="u"),
        )


def test_a_snapshot_is_refused_where_the_lane_is_read_apart() -> None:
    target = Target(GOOGLE)
    target.snapshot = True
    for options in ({}, {"unique_key": "u"}):
        steps = insert(ordered(Lane(), "Ada", **options), target, lambda now: [])
        with pytest.raises(InvalidTask, match="serializable"):
            next(steps)
    plain = insert([app.row(greet.call("Ada"))], target, lambda now: [])
    assert next(plain).sql.startswith("insert into late_task"), "without an order it may"
    fenced = Target(PSYCOPG)
    fenced.snapshot = True
    assert "late_lane" in next(insert(ordered(Lane(), "Ada"), fenced, lambda now: [])).sql


def test_many_rows_with_an_ordering_key_are_more_than_one_statement() -> None:
    rows = ordered(Lane(), *["Ada"] * (SQLITE.tasks_max + 1))
    ids, seen = run(rows, Answer(SQLITE.tasks_max), Answer(1), again=lambda now: [])
    assert len(ids) == len(rows)
    assert len(seen) == 2


def test_the_clock_is_the_schema_s() -> None:
    assert dialects.NOW_US == tables.NOW_US


def test_position_and_time_are_never_written() -> None:
    for dialect in (SQLITE, PSYCOPG, PSYCOPG2, ASYNCPG):
        for rows in ([keyed("a")], [keyed("a"), keyed("b")]):
            columns = dialect.tasks(rows).sql.partition("(")[2].partition(")")[0]
            assert columns == "shard_id, task_id, queue, name, payload, headers, options"


def test_the_text_on_postgresql_does_not_depend_on_the_number_of_rows() -> None:
    texts = {PSYCOPG.tasks([keyed("a")] * n).sql for n in (2, 3, 1000)}
    assert len(texts) == 1
