"""Every kind of caller: a task lives and dies with the caller's transaction (design, promise 1)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing
from typing import Any

import pytest

import late
from late.model.ids import shard_of
from tests.integration import outbox_kit as kit
from tests.integration.outbox_kit import Caller
from tests.servers import drop_database, migrated_database, postgres_url

app = late.App("sqlite:///unused.db", shards=4)


@app.task
def greet(name: str, times: int = 1) -> None: ...


@app.task
def other(name: str) -> None: ...


@pytest.fixture(params=[*kit.SQLITE, *kit.POSTGRES])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str | None]:
    """One database for all tests of this file: making one takes longer than a test."""
    admin = postgres_url()
    if admin is None:
        yield None
        return
    made = migrated_database(admin)
    yield made
    drop_database(admin, made)


@pytest.fixture
def url(kind: str, late_db: str, postgres: str | None) -> str:
    """A migrated database, empty but for a table of the business's own."""
    made = late_db if kind in kit.SQLITE else postgres
    if made is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    with closing(kit.raw(made)) as connection:
        for table in ("late_task", "late_unique"):
            connection.execute(f"delete from {table}")
        connection.execute("drop table if exists trip")
        connection.execute(kit.BUSINESS)
    return made


@pytest.fixture
async def opened(kind: str, url: str) -> AsyncIterator[Any]:
    """Opens any number of callers; they are closed at the end of the test."""
    opener = (kit.SQLITE | kit.POSTGRES)[kind]
    async with AsyncExitStack() as stack:

        async def make() -> Caller:
            return await stack.enter_async_context(opener(url))

        yield make


@pytest.fixture
async def caller(opened: Any) -> Caller:
    made: Caller = await opened()
    return made


async def test_commit_makes_the_task_real(caller: Caller, url: str) -> None:
    await caller.execute("insert into trip (id) values (1)")
    task_id = await caller.wait(greet.enqueue(caller.tx, "Ada", times=3))
    await caller.commit()
    assert kit.rows(url) == [(task_id, "greet")]
    assert kit.count(url, "trip") == 1


async def test_rollback_leaves_nothing(caller: Caller, url: str) -> None:
    await caller.execute("insert into trip (id) values (1)")
    await caller.wait(greet.enqueue(caller.tx, "Ada"))
    await caller.rollback()
    assert kit.rows(url) == []
    assert kit.count(url, "trip") == 0


async def test_rollback_to_a_savepoint_leaves_nothing_of_it(caller: Caller, url: str) -> None:
    await caller.execute("insert into trip (id) values (1)")
    kept = await caller.wait(greet.enqueue(caller.tx, "kept"))
    await caller.execute("savepoint inner_one")
    await caller.wait(greet.enqueue(caller.tx, "lost"))
    await caller.wait(greet.options(unique_key="k").enqueue(caller.tx, "lost too"))
    await caller.execute("rollback to savepoint inner_one")
    await caller.commit()
    assert kit.rows(url) == [(kept, "greet")]
    assert kit.count(url, "late_unique") == 0


async def test_the_row_is_what_was_asked_for(caller: Caller, url: str) -> None:
    prepared = greet.options(delay=60, priority=5, ordering_key="k:1", headers={"trace": "é"})
    task_id = await caller.wait(prepared.enqueue(caller.tx, name="Grüße \U0001f600", times=2**62))
    await caller.commit()
    columns = "task_id, shard_id, queue, name, payload, headers, options, created_at_us"
    ((found, shard, queue, name, payload, headers, options, created_at_us),) = kit.rows(
        url, f"select {columns} from late_task"
    )
    assert (found, shard, queue, name) == (task_id, app.shard_of("k:1"), "default", "greet")
    # `kit.rows` shows bytes as text: what has `hex` is a UUID or bytes.
    assert eval(payload).decode() == '{"name":"Grüße \U0001f600","times":4611686018427387904}'
    assert headers == '{"trace":"é"}'
    assert options == '{"delay_us":60000000,"priority":5,"ordering_key":"k:1"}'
    assert created_at_us > 1_700_000_000_000_000


async def test_many_tasks_at_once(caller: Caller, url: str) -> None:
    calls = [greet.call(str(n), times=n) for n in range(199)]
    calls.append(other.options(headers={"a": "b"}, priority=1).call("last"))
    ids = await caller.wait(app.enqueue_many(caller.tx, calls))
    assert await caller.wait(app.enqueue_many(caller.tx, [])) == []
    await caller.commit()
    assert [row[0] for row in kit.rows(url)] == sorted(ids)
    assert len(set(ids)) == 200
    found = kit.rows(url, "select name, headers, options, task_id from late_task")
    assert [row[:3] for row in found].count(("greet", None, None)) == 199
    assert ("other", '{"a":"b"}', '{"priority":1}', ids[-1]) in found


@pytest.mark.parametrize("key", [None, "k"], ids=["plain", "keyed"])
async def test_what_a_batch_has_in_common_is_in_each_row(
    caller: Caller, url: str, key: str | None
) -> None:
    alike = greet.options(headers={"a": "b"}, priority=1, ordering_key=key)
    calls = [alike.call(str(n), times=n) for n in range(100)]
    ids = await caller.wait(app.enqueue_many(caller.tx, calls))
    await caller.commit()
    columns = "task_id, shard_id, queue, name, headers, payload"
    options = {"priority": 1} | ({"ordering_key": key} if key else {})
    found = {
        row[0]: (*row[1:-2], eval(row[-2]), json.loads(row[-1]))
        for row in kit.rows(url, f"select {columns}, options from late_task")
    }
    assert found == {
        task_id: (shard_of(task_id), "default", "greet", '{"a":"b"}', call.payload, options)
        for task_id, call in zip(ids, calls, strict=True)
    }
    if url.startswith("sqlite"):
        assert [id for (id,) in kit.rows(url, "select task_id from late_task order by seq")] == ids


async def test_bad_input_leaves_the_transaction_usable(caller: Caller, url: str) -> None:
    await caller.execute("insert into trip (id) values (1)")
    bad: list[Any] = [
        lambda: greet.enqueue(caller.tx, "NUL \0"),
        lambda: greet.enqueue(caller.tx, 7),
        lambda: greet.enqueue(caller.tx, "x" * 2_000_000),
        lambda: greet.options(delay=float("nan")).enqueue(caller.tx, "x"),
        lambda: app.enqueue_many(caller.tx, [greet.call("fine"), greet.call("\ud800")]),
        lambda: app.enqueue_many(caller.tx, [greet.call("fine")] * 1001),
        lambda: app.enqueue_many(
            caller.tx,
            [greet.options(unique_key="k").call(name) for name in ("one", "two")],
        ),
    ]
    for attempt in bad:
        with pytest.raises(late.InvalidTask):
            await caller.wait(attempt())
    await caller.commit()
    assert kit.rows(url) == []
    assert kit.count(url, "late_unique") == 0
    assert kit.count(url, "trip") == 1


async def test_a_repeat_of_a_unique_task_returns_the_first_id(caller: Caller, url: str) -> None:
    charge = greet.options(unique_key="charge:7")
    first = await caller.wait(charge.enqueue(caller.tx, "Ada"))
    assert await caller.wait(charge.enqueue(caller.tx, "Ada")) == first
    await caller.commit()
    await caller.begin()
    await caller.execute("insert into trip (id) values (1)")
    assert await caller.wait(charge.enqueue(caller.tx, "Ada")) == first
    await caller.commit()
    assert kit.rows(url) == [(first, "greet")]
    assert kit.rows(url, "select unique_key, task_id from late_unique") == [("charge:7", first)]


async def test_a_batch_with_taken_free_and_repeated_keys(caller: Caller, url: str) -> None:
    first = await caller.wait(greet.options(unique_key="taken").enqueue(caller.tx, "a"))
    calls = [
        greet.options(unique_key="taken").call("a"),
        greet.call("plain"),
        greet.options(unique_key="free").call("b"),
        greet.options(unique_key="free").call("b"),
    ]
    taken, plain, free, repeated = await caller.wait(app.enqueue_many(caller.tx, calls))
    await caller.commit()
    assert taken == first
    assert free == repeated
    assert [row[0] for row in kit.rows(url)] == sorted([first, plain, free])


async def test_a_key_with_another_body_is_refused_and_leaves_nothing(
    caller: Caller, url: str
) -> None:
    first = await caller.wait(greet.options(unique_key="k1").enqueue(caller.tx, "a"))
    await caller.execute("insert into trip (id) values (1)")
    calls = [greet.options(unique_key=f"k{n}").call("b") for n in range(3)]
    with pytest.raises(late.KeyConflict, match=f"'k1' is held by task {first}"):
        await caller.wait(app.enqueue_many(caller.tx, calls))
    await caller.commit()
    assert kit.rows(url) == [(first, "greet")]
    assert kit.rows(url, "select unique_key from late_unique") == [("k1",)]
    assert kit.count(url, "trip") == 1


async def test_a_taken_key_can_be_refused_whatever_the_body(caller: Caller, url: str) -> None:
    first = await caller.wait(greet.options(unique_key="k").enqueue(caller.tx, "a"))
    await caller.commit()
    await caller.begin()
    once = greet.options(unique_key="k", on_conflict="reject")
    with pytest.raises(late.KeyConflict, match=f"'k' is held by task {first}"):
        await caller.wait(once.enqueue(caller.tx, "a"))
    other = greet.options(unique_key="other", on_conflict="reject")
    second = await caller.wait(other.enqueue(caller.tx, "a"))
    with pytest.raises(late.KeyConflict, match="two different tasks"):
        await caller.wait(app.enqueue_many(caller.tx, [once.call("a"), once.call("a")]))
    await caller.commit()
    assert [row[0] for row in kit.rows(url)] == sorted([first, second])


async def test_a_taken_key_can_be_taken_over(caller: Caller, url: str) -> None:
    first = await caller.wait(greet.options(unique_key="k").enqueue(caller.tx, "a"))
    await caller.commit()
    await caller.begin()
    over = greet.options(unique_key="k", on_conflict="replace")
    plain = greet.options(unique_key="other").call("b")
    second, third = await caller.wait(app.enqueue_many(caller.tx, [over.call("b"), plain]))
    await caller.rollback()
    assert kit.rows(url) == [(first, "greet")]
    await caller.begin()
    second, third = await caller.wait(app.enqueue_many(caller.tx, [over.call("b"), plain]))
    await caller.commit()
    found = kit.rows(url, "select name, task_id, payload from late_task order by task_id")
    tasks = {task_id for name, task_id, _ in found if name == "greet"}
    assert tasks == {first, second, third}
    [cancel] = [payload for name, _, payload in found if name == "late.cancel"]
    assert first in cancel
    held = kit.rows(url, "select unique_key, task_id from late_unique order by unique_key")
    assert held == [("k", second), ("other", third)]


async def test_a_key_is_free_when_its_task_has_ended_and_its_period_is_over(
    caller: Caller, url: str
) -> None:
    hourly = greet.options(unique_key="k", unique_for=3600)
    first = await caller.wait(hourly.enqueue(caller.tx, "a"))
    period = "select expires_at_us from late_unique"
    # `expires_at_us` is below zero while the task lives; its settlement turns the sign.
    for change, free in (
        ("expires_at_us = expires_at_us", False),
        ("expires_at_us = -1", False),
        ("expires_at_us = created_at_us + 3600000000", False),
        ("expires_at_us = 1", True),
    ):
        await caller.execute(f"update late_unique set {change}")
        again = await caller.wait(hourly.enqueue(caller.tx, "a"))
        assert (again != first) is free
    await caller.commit()
    assert len(kit.rows(url)) == 2
    [(expires_at_us,)] = kit.rows(url, period)
    [(created_at_us,)] = kit.rows(url, "select created_at_us from late_unique")
    assert 0 <= -expires_at_us - created_at_us - 3_600_000_000 < 1_000_000


async def test_nothing_is_committed_begun_or_closed_for_the_caller(
    caller: Caller, url: str
) -> None:
    await caller.wait(greet.enqueue(caller.tx, "Ada"))
    await caller.wait(greet.options(unique_key="k").enqueue(caller.tx, "Ada"))
    assert kit.rows(url) == []
    await caller.execute("insert into trip (id) values (1)")
    await caller.commit()
    assert len(kit.rows(url)) == 2


async def test_missing_tables_are_named(caller: Caller) -> None:
    await caller.execute("drop table late_task")
    with pytest.raises(late.SchemaMismatch, match="late migrate"):
        await caller.wait(greet.enqueue(caller.tx, "Ada"))


async def test_missing_columns_are_named(caller: Caller) -> None:
    await caller.execute("alter table late_task drop column headers")
    with pytest.raises(late.SchemaMismatch, match="late migrate"):
        await caller.wait(greet.enqueue(caller.tx, "Ada"))


async def test_assert_enqueued_sees_the_transaction_s_own_tasks(caller: Caller, url: str) -> None:
    from late.testing import assert_enqueued

    await caller.wait(greet.enqueue(caller.tx, "Ada", times=2))
    (found,) = await caller.wait(assert_enqueued(caller.tx, greet, args={"name": "Ada"}))
    assert found.args == {"name": "Ada", "times": 2}
    await caller.wait(assert_enqueued(caller.tx, other, count=0))
    assert_enqueued(url, greet, count=0)
    with pytest.raises(AssertionError, match="at least one 'greet'"):
        await caller.wait(assert_enqueued(caller.tx, greet, args={"name": "Bob"}))
    await caller.commit()
    assert_enqueued(url, greet, count=1, queue="default")
