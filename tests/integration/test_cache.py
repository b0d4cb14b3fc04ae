"""A snapshot cache on each store: what it answers was true, whatever is written meanwhile."""

from __future__ import annotations

import asyncio
import logging
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

import late
from late.cache import Cache, changed
from late.cache.database import moment_of
from late.control import Control
from late.control.sql.positions import head
from late.errors import ConfigError
from late.schema.engine import make_engine, write
from late.testing import drain
from tests.conformance.backends import Backend
from tests.databases import PRESENT

PATIENCE_S = 120.0
ROWS = 4
TOTAL = 1_000


def only(*names: str) -> pytest.MarkDecorator:
    """Run a test on these stores alone."""
    chosen = [each for each in PRESENT if each.name in names]
    return pytest.mark.parametrize("backend", chosen, ids=lambda each: each.name, indirect=True)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """A connection of the service's own; the log keeps what is settled."""
    made = make_engine(url)
    with closing(Control(url)) as control:
        control.groups.set_retention(600)
    with made.connect() as connection:
        if made.dialect.name.startswith("spanner"):
            table = "create table stock (id string(20) not null, n int64 not null) primary key (id)"
            driver: Any = connection.connection.driver_connection
            driver.database.update_ddl([table]).result(PATIENCE_S)
        else:
            table = "create table stock (id varchar(20) primary key, n bigint not null)"
            connection.execute(text(table))
            connection.commit()
    for number in range(ROWS):
        put(made, f"k{number}", TOTAL // ROWS)
    yield made
    made.dispose()


@pytest.fixture
def app(url: str) -> late.App:
    return late.App(url)


def put(engine: Engine, key: str, n: int) -> None:
    """Write a row behind the cache's back."""

    def work(connection: Connection) -> None:
        connection.execute(text("delete from stock where id = :id"), {"id": key})
        connection.execute(text("insert into stock (id, n) values (:id, :n)"), {"id": key, "n": n})

    write(engine, work)


def load(connection: Connection, keys: Sequence[str]) -> dict[str, int]:
    rows = connection.execute(text("select id, n from stock"))
    return {row.id: row.n for row in rows if row.id in keys}


def move(app: late.App, engine: Engine, source: str, target: str, n: int) -> str:
    """Move `n` from one row to the other, and say so in the same transaction."""

    def work(connection: Connection) -> str:
        for key, by in sorted(((source, -n), (target, n))):
            update = text("update stock set n = n + :by where id = :id")
            connection.execute(update, {"by": by, "id": key})
        return changed(app, connection, source, target)

    return write(engine, work)


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def followed(cache: Cache[int]) -> None:
    """Wait until the log is read, so that what is loaded from then on is kept."""
    cache.start()
    wait(lambda: cache.statistics().age_s is not None)


def test_reads_writes_and_statistics(app: late.App, engine: Engine) -> None:
    with Cache(app, load, poll_s=0.01, max_age_s=60.0) as cache:
        followed(cache)
        # A value is loaded once, and so is a row that is not there
        assert [cache.get("k1"), cache.get("k1"), cache.get("nil"), cache.get("nil")] == [
            250, 250, None, None,
        ]  # fmt: skip
        assert (cache.statistics().hits, cache.statistics().misses) == (2, 2)
        # One's own write is read by its id, from the database or, later, from memory
        change = late.TaskId(move(app, engine, "k1", "k2", 50))
        assert cache.get("k1", after=change) == 200
        wait(lambda: cache.statistics().changes == 1)
        misses = cache.statistics().misses
        assert cache.get("k1", after=change) == 200
        assert cache.statistics().misses == misses
        # Several keys are those of one moment, at which they stay true
        before = cache.snapshot(["k1", "k2"])
        assert before.values == {"k1": 200, "k2": 300}
        move(app, engine, "k1", "k2", 100)
        wait(lambda: cache.get("k1") == 100)
        assert cache.snapshot(["k1", "k2"]).values == {"k1": 100, "k2": 400}
        assert cache.at(["k1", "k2", "nil", "never"], before.moment) == {
            "k1": 200, "k2": 300, "nil": None,
        }  # fmt: skip
        # Coroutines read the same
        assert asyncio.run(cache.aget("k1")) == 100
        assert asyncio.run(cache.asnapshot(["k3", "k1"])).values == {"k1": 100, "k3": 250}
        assert 0 < cache.statistics().bytes < 64 << 20
    # Workers settle the changes, and have no handler for them
    assert drain(app) == {}
    with engine.connect() as connection:
        for table in ("late_timer", "late_dead"):
            assert connection.execute(text(f"select count(*) from {table}")).scalar() == 0


@only("sqlite", "postgres")
def test_what_is_rolled_back_has_not_changed(app: late.App, engine: Engine) -> None:
    with Cache(app, load, poll_s=0.01, max_age_s=60.0) as cache:
        followed(cache)
        assert cache.get("k1") == 250

        def work(connection: Connection) -> None:
            connection.execute(text("update stock set n = 0 where id = 'k1'"))
            changed(app, connection, "k1")
            raise ValueError

        with pytest.raises(ValueError):
            write(engine, work)
        move(app, engine, "k2", "k3", 1)
        wait(lambda: cache.statistics().changes == 1)
        assert cache.get("k1") == 250
        assert cache.statistics().misses == 1


@only("sqlite", "postgres")
def test_a_log_that_keeps_nothing_is_refused_in_one_line(app: late.App, url: str) -> None:
    with Cache(app, load) as cache, pytest.raises(ConfigError, match="retention 10m") as refused:
        cache.get("k1")
    assert "\n" not in str(refused.value)


def test_readers_never_see_half_of_a_transaction(
    app: late.App, engine: Engine, backend: Backend
) -> None:
    """Writers move amounts between rows: each moment has the same sum, and no amount is old."""
    moves = 15 if backend.emulated else 60
    latest: dict[str, str] = {}
    wrong: list[str] = []
    over = threading.Event()

    def writer(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(moves):
            source, target = rng.sample(range(ROWS), 2)
            change = move(app, engine, f"k{source}", f"k{target}", rng.randrange(9))
            # What this thread has committed, it must find.
            found = cache.snapshot(
                [f"k{number}" for number in range(ROWS)], after=late.TaskId(change)
            )
            judge(found.values)
        latest[str(seed)] = "done"

    def reader() -> None:
        while not over.is_set():
            found = cache.snapshot([f"k{number}" for number in range(ROWS)])
            judge(found.values)
            known = cache.at(found.values, found.moment)
            if any(found.values[key] != value for key, value in known.items()):
                wrong.append(f"{found} and later {known}")

    def judge(values: Mapping[str, int | None]) -> None:
        if sum(value or 0 for value in values.values()) != TOTAL:
            wrong.append(str(values))

    with Cache(app, load, poll_s=0.005, max_age_s=60.0) as cache:
        followed(cache)
        readers = [threading.Thread(target=reader) for _ in range(3)]
        writers = [threading.Thread(target=writer, args=(seed,)) for seed in range(2)]
        for thread in readers + writers:
            thread.start()
        for thread in writers:
            thread.join(PATIENCE_S * 4)
        over.set()
        for thread in readers:
            thread.join(PATIENCE_S)
        assert latest.keys() == {"0", "1"}
        assert wrong == []
        assert cache.statistics().hits > 0
        # In the end everybody reads what is there
        wait(lambda: cache.statistics().changes == 2 * moves)
        with engine.connect() as connection:
            truth = load(connection, [f"k{number}" for number in range(ROWS)])
        assert cache.snapshot(truth).values == truth


def test_the_head_is_a_moment_between_commits(app: late.App, engine: Engine) -> None:
    name = engine.dialect.name
    one = moment_of(head(engine), name)
    move(app, engine, "k1", "k2", 1)
    other = moment_of(head(engine), name)
    assert one.order < other.order


# --- what only one store shows -------------------------------------------------------------------


@only("postgres")  # Elsewhere positions are given at the commit.
def test_a_lower_transaction_that_commits_later_ends_its_value(
    app: late.App, engine: Engine
) -> None:
    with Cache(app, load, poll_s=0.01, max_age_s=60.0) as cache, engine.connect() as slow:
        followed(cache)
        # Given a transaction with a position, and later ones that commit before it
        slow.execute(text("update stock set n = 7 where id = 'k1'"))
        changed(app, slow, "k1")
        move(app, engine, "k2", "k3", 1)
        wait(lambda: cache.statistics().changes == 1)
        assert cache.get("k1") == 250
        # When it commits
        slow.commit()
        # Then its value ends
        wait(lambda: cache.get("k1") == 7)


@only("postgres")  # Its server can cut connections.
def test_a_lost_connection_forgets_all_and_goes_on(
    app: late.App, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    end = text(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    with Cache(app, load, poll_s=0.01, max_age_s=60.0) as cache:
        followed(cache)
        assert cache.get("k1") == 250
        with caplog.at_level(logging.WARNING, "late.cache"):
            engine.dispose()
            with engine.connect() as connection:
                connection.execute(end)
            wait(lambda: cache.statistics().restarts == 1)
        assert "the log cannot be read" in caplog.text
        wait(lambda: cache.get("k1") == 250 and cache.get("k1") == 250)
        change = late.TaskId(move(app, engine, "k1", "k2", 50))
        assert cache.get("k1", after=change) == 200


@only("sqlite")  # The same arithmetic everywhere.
def test_a_reader_that_came_too_late_forgets_all(
    app: late.App, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from late.cache import change_reader
    from late.cache.database import Head, head_of

    quiet = head(engine)

    def shifted(connection: Connection) -> Head:
        seen = head_of(connection)
        jump_us = 0 if seen.cursor == quiet else 301_000_000
        return Head(seen.cursor, seen.now_us + jump_us, seen.kept_us)

    monkeypatch.setattr(change_reader, "head_of", shifted)
    with Cache(app, load, poll_s=0.01, max_age_s=60.0) as cache:
        followed(cache)
        assert cache.get("k1") == 250
        # When half of the retention is over before a change is read, others may be lost
        move(app, engine, "k2", "k3", 1)
        wait(lambda: cache.statistics().restarts == 1)
        assert cache.statistics().keys == 0


@only("sqlite", "postgres")
def test_a_process_that_ends_without_close_ends(app: late.App, engine: Engine) -> None:
    script = (
        "import late, sys; from late.cache import Cache\n"
        f"cache = Cache(late.App({app.url!r}), lambda connection, keys: dict.fromkeys(keys, 1))\n"
        "print(cache.get('a'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "late.cache" not in done.stderr
    assert "Traceback" not in done.stderr


@only("sqlite")
def test_a_slow_load_holds_up_neither_the_log_nor_who_leaves(app: late.App, engine: Engine) -> None:
    slow, go_on, loading = threading.Event(), threading.Event(), threading.Event()

    def loads(connection: Connection, keys: Sequence[str]) -> dict[str, int]:
        if slow.is_set():
            loading.set()
            assert go_on.wait(PATIENCE_S)
        return load(connection, keys)

    async def leave(cache: Cache[int]) -> None:
        async with asyncio.timeout(0.01):
            await cache.aget("k4")

    with Cache(app, loads, poll_s=0.01, max_age_s=60.0) as cache:
        followed(cache)
        assert [cache.get("k1"), cache.get("k1")] == [250, 250]
        slow.set()
        move(app, engine, "k1", "k2", 50)
        assert loading.wait(PATIENCE_S), "what has changed is loaded again"
        move(app, engine, "k2", "k3", 50)
        wait(lambda: cache.statistics().changes == 2)  # the log is read on meanwhile
        with asyncio.Runner() as runner:
            with pytest.raises(TimeoutError):
                runner.run(leave(cache))
            go_on.set()  # the runner waits for its threads
        wait(lambda: cache.get("k1", max_age_s=60.0) == 200)
