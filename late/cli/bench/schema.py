"""Tables of `late bench` in a user's database, which are dropped afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, inspect, text

from late.errors import ConfigError
from late.schema import migrate
from late.schema.engine import make_engine, parse, reading, shown

_HOLDS = ("late_task", "late_timer", "late_settlement")


@contextmanager
def place(url: str, *, beside: bool) -> Iterator[str]:
    """Make empty tables and return their URL: in a schema of their own on PostgreSQL, in a file
    beside the named one for SQLite. Both are on the same disk and touch no other table.

    Args:
        beside: measure even where a queue is at work, which is slowed down.

    Raises:
        ConfigError: another kind of database, or a queue's data is in it.
        StoreError: it cannot be reached, or may not be written.
    """
    kind = parse(url).get_backend_name()
    if kind == "sqlite":
        yield from _file(url, beside=beside)
    elif kind == "postgresql":
        yield from _schema(url, beside=beside)
    else:
        raise ConfigError("late bench measures PostgreSQL and SQLite")


def _file(url: str, *, beside: bool) -> Iterator[str]:
    named = parse(url).database
    if not named or named == ":memory:":
        raise ConfigError("late bench needs a file: sqlite:///PATH")
    if Path(named).exists():
        with _engine(url) as engine:
            _refuse(engine, url, beside=beside)
    path = Path(f"{named}.bench-{secrets.token_hex(4)}")
    try:
        ours = f"sqlite:///{path}"
        migrate.upgrade(ours)
        yield ours
    finally:
        for each in path.parent.glob(f"{path.name}*"):
            each.unlink()


def _schema(url: str, *, beside: bool) -> Iterator[str]:
    name = f"late_bench_{secrets.token_hex(4)}"
    with _engine(url) as engine:
        _refuse(engine, url, beside=beside)
        with engine.begin() as connection:
            connection.execute(text(f"create schema {name}"))
        try:
            parsed = parse(url).set(drivername="postgresql")
            parsed = parsed.update_query_dict({"options": f"-csearch_path={name}"})
            ours = parsed.render_as_string(hide_password=False)
            migrate.upgrade(ours)
            yield ours
        finally:
            with engine.begin() as connection:
                connection.execute(text(f"drop schema {name} cascade"))


def _refuse(engine: Engine, url: str, *, beside: bool) -> None:
    with reading(engine) as connection:
        tables = set(inspect(connection).get_table_names())
        held = [
            name
            for name in _HOLDS
            if name in tables and connection.execute(text(f"select 1 from {name} limit 1")).first()
        ]
    if held and not beside:
        raise ConfigError(
            f"{shown(url)} holds a queue's data ({', '.join(held)}), and a measurement would slow "
            "it down: name another database, or say --beside"
        )


@contextmanager
def _engine(url: str) -> Iterator[Engine]:
    engine = make_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()
