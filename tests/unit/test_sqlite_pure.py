"""The parts of the SQLite store that need no file: URLs, cursors, known builds, the error map."""

from __future__ import annotations

import pkgutil
import re
import sqlite3
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from late.errors import (
    ConfigError,
    LateError,
    SchemaMismatch,
    StoreClosed,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TransactionAborted,
)
from late.model.ids import new_id
from late.store import open_store
from late.store import sqlite as room
from late.store.sqlite import guard as sqlite_guards
from late.store.sqlite import prune as sqlite_prune
from late.store.sqlite.cursor import cursor_at, position_of
from late.store.sqlite.errors import BY_CODE, translate
from late.store.sqlite.store import FEATURES, SqliteStore


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///trips.db", "trips.db"),
        ("sqlite:///data/trips.db", "data/trips.db"),
        ("sqlite:////var/lib/trips.db", "/var/lib/trips.db"),
        ("sqlite:///with%20space.db", "with space.db"),
    ],
)
def test_a_sqlite_url_names_a_file(url: str, path: str) -> None:
    assert sqlite_guards.path_of(url) == Path(path)
    assert isinstance(open_store(url), SqliteStore)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://host/trips.db",
        "sqlite:///trips.db?cache=shared",
        "sqlite:///trips.db?timeout=3",
        "trips.db",
        "",
        "mysql://scott:tiger@host/db",
        "scott:tiger@host://db",
        "sqlite+aiosqlite:///trips.db",
    ],
)
def test_anything_else_is_a_config_error_without_the_secret(url: str) -> None:
    with pytest.raises(ConfigError) as failed:
        open_store(url)
    assert "tiger" not in str(failed.value)


def test_cursors_are_positions() -> None:
    assert position_of("") == 0
    assert position_of(cursor_at(17)) == 17
    assert position_of(f"@17,{new_id(0)}") == 17
    assert cursor_at(0) == ""


class Build:
    """A library that answers like a fork would."""

    def __init__(self, source_id: str, options: list[str], concurrent: bool) -> None:
        self._rows = {
            "select sqlite_source_id()": [(source_id,)],
            "pragma compile_options": [(option,) for option in options],
            "select name from pragma_function_list": [("abs",)],
        }
        self._concurrent = concurrent

    def execute(self, statement: str) -> Build:
        if statement == "begin concurrent" and not self._concurrent:
            raise sqlite3.OperationalError("syntax error")
        self._found = self._rows.get(statement, [])
        return self

    def fetchone(self) -> tuple[str, ...]:
        return self._found[0]

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return iter(self._found)


OFFICIAL = "2022-12-28 14:03:47 df5c253c0b3dd24916e4ec7cf77d3db5294cc9fd45ae7b9c5e82ad8197f3alt1"


@pytest.mark.parametrize(
    ("source_id", "options", "concurrent"),
    [
        ("turso 0.4", [], False),
        (OFFICIAL, ["LIBSQL_ENABLE_X"], False),
        (OFFICIAL, [], True),
    ],
)
def test_forks_are_refused(source_id: str, options: list[str], concurrent: bool) -> None:
    with pytest.raises(StoreRefused, match="build"):
        sqlite_guards.refuse_unknown_build(Build(source_id, options, concurrent))  # type: ignore[arg-type]
    sqlite_guards.refuse_unknown_build(Build(OFFICIAL, ["THREADSAFE=1"], False))  # type: ignore[arg-type]


def test_an_affected_library_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite_guards.check_build.cache_clear()
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 2))
    for _ in range(2):
        sqlite_guards.check_build()
    assert [r.getMessage() for r in caplog.records if "WAL-reset" in r.getMessage()] != []
    assert len(caplog.records) == 1

    sqlite_guards.check_build.cache_clear()
    caplog.clear()
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 3))
    sqlite_guards.check_build()
    assert caplog.records == []
    sqlite_guards.check_build.cache_clear()
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StoreRefused, match="too old"):
        sqlite_guards.check_build()
    sqlite_guards.check_build.cache_clear()


def foreign(code: int, text: str = "text") -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    error.sqlite_errorname = "NAME"
    return error


def test_every_result_code_has_its_error() -> None:
    """Walks all codes that the driver knows, extended ones included."""
    names = [
        name
        for name in dir(sqlite3)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_SCHEMA", "SQLITE_ABORT"))
    ]
    assert {type(translate(foreign(getattr(sqlite3, name)))) for name in names} == {
        TransactionAborted
    }
    down = ("IOERR", "FULL", "CANTOPEN", "PROTOCOL", "NOMEM", "INTERRUPT", "READONLY")
    names = [n for n in dir(sqlite3) if n.startswith(tuple(f"SQLITE_{d}" for d in down))]
    assert {type(translate(foreign(getattr(sqlite3, n)))) for n in names} == {StoreUnavailable}
    for name in ("ERROR", "CORRUPT", "NOTADB", "CONSTRAINT_UNIQUE", "MISUSE", "MISMATCH", "AUTH"):
        assert type(translate(foreign(getattr(sqlite3, f"SQLITE_{name}")))) is StoreError
    assert all(translate(foreign(code)).transient for code in BY_CODE)


def test_errors_without_a_code() -> None:
    closed = sqlite3.ProgrammingError("Cannot operate on a closed database.")
    assert type(translate(closed)) is StoreClosed
    for error in (
        sqlite3.ProgrammingError("wrong thread"),
        sqlite3.InterfaceError("x"),
        sqlite3.Warning("x"),
        OverflowError("big"),
    ):
        assert type(translate(error)) is StoreError
    for text in ("no such table: late_task", "no such column: x"):
        assert type(translate(foreign(sqlite3.SQLITE_ERROR, text))) is SchemaMismatch


def test_all_errors_are_ours() -> None:
    assert all(issubclass(error, LateError) for error in BY_CODE.values())


class Pages:
    """A file with so many pages, of which some are free."""

    def __init__(self, free: int, pages: int) -> None:
        self.says = {
            "pragma auto_vacuum": sqlite_prune.INCREMENTAL,
            "pragma freelist_count": free,
            "pragma page_count": pages,
        }
        self.scripts: list[str] = []

    def execute(self, statement: str) -> Pages:
        self.row = (self.says[statement],)
        return self

    def fetchone(self) -> tuple[int]:
        return self.row

    def executescript(self, script: str) -> None:
        self.scripts.append(script)


@pytest.mark.parametrize(
    ("surplus", "given_back", "more"),
    [
        (-1, [], False),
        (0, [], False),  # SQLite takes a number of 0 for all of them
        (1, ["pragma incremental_vacuum(1)"], False),
        (501, ["pragma incremental_vacuum(500)"], True),
    ],
)
def test_a_file_gives_back_no_more_pages_than_the_next_tasks_leave(
    surplus: int, given_back: list[str], more: bool
) -> None:
    file: Any = Pages(sqlite_prune.FREE_PAGES + surplus, 2_000)
    assert sqlite_prune.shrink(file) is more
    assert file.scripts == given_back


def test_the_log_is_polled_every_few_milliseconds() -> None:
    assert 0 < (FEATURES.poll_stream_s or 0) <= FEATURES.poll_min_s <= 0.01


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(room.__path__)])
def test_no_parameter_has_a_number(name: str) -> None:
    """Python 3.12.0 to 3.12.3 warn of each statement with `?1`, if its values are a tuple."""
    module = import_module(f"{room.__name__}.{name}")
    texts = {k: v for k, v in vars(module).items() if isinstance(v, str) and k != "__doc__"}
    assert not [k for k, text in texts.items() if re.search(r"\?\d", text)]
