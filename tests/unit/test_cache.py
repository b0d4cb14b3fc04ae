"""The parts of a cache that the worlds of `tests/simulation/test_cache_worlds.py` do not have."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

import late
from late.cache import Cache, changed
from late.cache.database import moment_of
from late.cache.loads import Loads, size_of
from late.cache.moment import Moment
from late.cache.versions import VERSIONS_MAX, Change, Versions
from late.errors import ConfigError, InvalidName, InvalidTask, LateError, PayloadTooLarge
from late.model.task import TaskId
from late.payload.command import changed as changed_row
from late.payload.command import changed_keys, decode
from late.schema.engine import make_engine
from tests.conformance.kit import record
from tests.support import sqlite
from tests.unit.core_world import World, settle

APP = late.App("sqlite:///nowhere.db")


def nothing(connection: Connection, keys: Sequence[str]) -> dict[str, str]:
    return {}


def test_moments_of_postgresql_are_snapshots_and_others_are_bounds() -> None:
    snapshot = moment_of("10:15:10,12", "postgresql")
    assert [xid for xid in range(9, 17) if snapshot.sees(xid)] == [9, 11, 13, 14]
    assert moment_of("10:15:10", "postgresql").order > snapshot.order
    assert moment_of("10:16:10,12,15", "postgresql").order > snapshot.order
    assert not moment_of("", "sqlite").sees(1)
    assert moment_of("7", "sqlite").sees(7)
    assert not moment_of("7", "sqlite").sees(8)


def test_a_value_that_is_larger_than_the_memory_is_not_kept() -> None:
    versions = Versions(10_000)
    versions.follow(Moment(1), 0.0)
    for key, size in (("small", 1_000), ("large", 10_000)):
        load = versions.begin([key], (), 1.0)
        versions.keep(load, Moment(1), {key: (key, size)})
    assert versions.answer(["small"], oldest_s=0.5) is not None
    assert versions.answer(["large"], oldest_s=0.5) is None


def test_the_last_few_versions_of_a_key_are_known() -> None:
    versions = Versions(1_000_000)
    versions.follow(Moment(1), 0.0)
    for number in range(1, 12):
        load = versions.begin(["k"], (), number)
        versions.keep(load, Moment(number), {"k": (number, 10)})
        change = Change(TaskId(str(number)), number, ("k",))
        versions.advance(Moment(number + 1), number + 0.5, [change])
    known = [number for number in range(13) if versions.at(["k"], Moment(number))]
    assert known == [4, 5, 6, 7, 8, 9, 10, 11]
    assert len(known) == VERSIONS_MAX
    assert versions.at(["k"], Moment(5)) == {"k": 5}


def test_loads_of_an_unchanged_value_push_out_no_earlier_one() -> None:
    versions = Versions(1_000_000)
    versions.follow(Moment(1), 0.0)

    def load(at: int, value: str) -> None:
        begun = versions.begin(["k"], (), float(at))
        versions.keep(begun, Moment(at), {"k": (value, 10)})

    load(1, "old")
    versions.advance(Moment(3), 3.0, [Change(TaskId("1"), 1, ("k",))])
    for _ in range(2 * VERSIONS_MAX):
        load(3, "new")
    assert [versions.at(["k"], Moment(at)) for at in (1, 3)] == [{"k": "old"}, {"k": "new"}]
    size = versions.bytes
    load(3, "new")
    assert versions.bytes == size


class Slotted:
    __slots__ = ("name", "values")

    def __init__(self) -> None:
        self.name, self.values = "n", ["x" * 1_000]


def test_a_change_asks_for_no_value_that_is_here_already() -> None:
    versions = Versions(1_000_000)
    versions.follow(Moment(1), 0.0)
    change = Change(TaskId("1"), 2, ("early", "late"))
    for key in change.keys:
        versions.keep(versions.begin([key], (), 0.0), Moment(2), {key: ("before", 10)})
        assert versions.answer([key], oldest_s=0.0) is not None  # Both are in use.
    # Its writer has read its own write before the log tells of it
    load = versions.begin(["early"], (change.task_id,), 0.5)
    versions.keep(load, Moment(3), {"early": ("after", 10)})
    assert versions.advance(Moment(3), 1.0, [change]) == ["late"]


@pytest.mark.parametrize(
    ("value", "least"),
    [
        (None, 1), ("x" * 1_000, 1_000), ({"a": ["x" * 1_000, b"y" * 1_000]}, 2_000),
        (Slotted(), 1_000), (type("Plain", (), {})(), 1),
    ],
)  # fmt: skip
def test_sizes_are_those_of_all_parts(value: object, least: int) -> None:
    assert least <= size_of(value) < least + 1_500


def test_a_value_that_contains_itself_has_a_size() -> None:
    value: list[object] = ["x" * 1_000]
    value += [value, value]
    assert 1_000 < size_of(value) < 2_000


# --- changes -------------------------------------------------------------------------------------


def test_workers_settle_a_change_and_run_nothing() -> None:
    row = changed_row(["trip:1", "trip:2"])
    assert decode(record(name=row.name, payload=row.payload)) is None
    assert changed_keys(record(name=row.name, payload=row.payload)) == ("trip:1", "trip:2")
    world = World()
    task = world.enqueue(name=row.name, payload=row.payload)
    world.read_page()
    world.grant(4)
    assert not world.running
    settle(world)
    assert world.final == {task: "ended"}
    ends = [(each.name, each.outcome) for each in world.last.usage if each.outcome != "enqueued"]
    assert ends == [(row.name, "done")]


@pytest.mark.parametrize("keys", [(), ("",), (17,), ("a\n",), ("x" * 513,), ("a", None)])
def test_bad_keys_are_refused_before_any_sql(keys: Any) -> None:
    with closing(sqlite3.connect(":memory:")) as connection, connection:
        connection.execute("begin")
        with pytest.raises(InvalidName, match="key of a cache") as refused:
            changed(APP, connection, *keys)
        assert "\n" not in str(refused.value)
        with pytest.raises(InvalidName, match="key of a cache"):
            Cache(APP, nothing).snapshot(keys)


def test_a_text_is_no_list_of_keys() -> None:
    with pytest.raises(InvalidName, match="list of texts"):
        Cache(APP, nothing).snapshot("abc")


def test_too_many_keys_for_one_record_are_refused() -> None:
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(PayloadTooLarge):
        changed(APP, connection, *[f"{number:0500d}" for number in range(3_000)])


def test_a_change_needs_a_transaction() -> None:
    call: Any = changed
    with pytest.raises(InvalidTask, match="transaction") as refused:
        call(APP, None, "trip:1")
    assert "\n" not in str(refused.value)


def make(*given: Any, **settings: Any) -> Callable[[], object]:
    return lambda: Cache(*given, **settings)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (make("sqlite:///a.db", nothing), "takes the app first"),
        (make(APP, None), "is a function"),
        (make(APP, nothing, size_bytes=10), "at least 65536"),
        (make(APP, nothing, size_bytes="64M"), "at least 65536"),
        (make(APP, nothing, max_age_s=-1), "max_age_s is a number of seconds, 0 to 86400"),
        (make(APP, nothing, max_age_s=float("nan")), "max_age_s"),
        (make(APP, nothing, poll_s=0), "poll_s is a number of seconds, 0.005 to 10"),
        (make(late.App("cockroachdb://root@h/db"), nothing), "needs a log"),
        (lambda: Cache(APP, nothing).get("a", max_age_s=float("inf")), "max_age_s"),
    ],
)
def test_wrong_settings_of_a_cache_are_refused(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        wrong()
    assert "\n" not in str(refused.value)


# --- loads ---------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = make_engine(sqlite.database(tmp_path / "a.db"))
    yield made
    made.dispose()


class Slow:
    """A loader whose first load waits until it is let go."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, connection: Connection, keys: Sequence[str]) -> Mapping[str, str]:
        self.calls.append(list(keys))
        if len(self.calls) == 1:
            self.entered.set()
            assert self.go.wait(60)
        if "bad" in keys:
            raise ValueError("no such trip")
        return {key: key.upper() for key in keys}


def ask_at_once(loads: Loads, engine: Engine, slow: Slow, keys: Sequence[str]) -> dict[str, object]:
    """Ask for the first key, and for the others while it loads; return answers or errors."""
    found: dict[str, object] = {}

    def ask(key: str) -> None:
        try:
            found[key] = loads.get(engine, [key]).values[key]
        except Exception as error:
            found[key] = error

    threads = [threading.Thread(target=ask, args=(key,)) for key in keys]
    threads[0].start()
    assert slow.entered.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(loads._waiting) < len(keys) - 1:
        threading.Event().wait(0.001)
    slow.go.set()
    for thread in threads:
        thread.join(60)
    return found


def test_loads_that_wait_are_made_together(engine: Engine) -> None:
    slow = Slow()
    loads = Loads(slow, Versions(1_000_000), threading.Lock())
    found = ask_at_once(loads, engine, slow, ["a", "b", "c", "d"])
    assert found == {"a": "A", "b": "B", "c": "C", "d": "D"}
    assert slow.calls == [["a"], ["b", "c", "d"]]


def test_one_bad_key_spoils_no_other(engine: Engine) -> None:
    slow = Slow()
    loads = Loads(slow, Versions(1_000_000), threading.Lock())
    found = ask_at_once(loads, engine, slow, ["a", "b", "bad", "d"])
    assert isinstance(found.pop("bad"), ValueError)
    assert found == {"a": "A", "b": "B", "d": "D"}
    assert not loads._versions._loads


def test_an_error_of_the_service_is_its_own(engine: Engine) -> None:
    def load(connection: Connection, keys: Sequence[str]) -> Mapping[str, str]:
        connection.execute(text("select * from no_such_table"))
        return {}

    loads = Loads(load, Versions(1_000_000), threading.Lock())
    with pytest.raises(Exception, match="no_such_table") as raised:
        loads.get(engine, ["a"])
    assert not isinstance(raised.value, LateError)


def test_a_load_returns_a_mapping(engine: Engine) -> None:
    wrong: Any = lambda connection, keys: None  # noqa: E731
    with pytest.raises(ConfigError, match="returns a mapping by key, got NoneType"):
        Loads(wrong, Versions(1_000_000), threading.Lock()).get(engine, ["a"])


def test_values_are_read_in_a_transaction_that_cannot_write(engine: Engine) -> None:
    seen = []

    def load(connection: Connection, keys: Sequence[str]) -> Mapping[str, str]:
        seen.append(connection.in_transaction())
        return {}

    Loads(load, Versions(1_000_000), threading.Lock()).get(engine, ["a"])
    assert seen == [True]


def test_a_closed_cache_refuses(tmp_path: Path) -> None:
    with Cache(late.App(sqlite.database(tmp_path / "a.db")), nothing) as cache:
        pass
    with pytest.raises(LateError, match="closed"):
        cache.get("a")
    with pytest.raises(LateError, match="closed"):
        asyncio.run(cache.aget("a"))
