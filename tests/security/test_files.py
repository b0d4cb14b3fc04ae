"""A new file of SQLite is its owner's alone: it holds keys, hashes of tokens and payloads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from late.schema import migrate
from late.schema.engine import make_engine, writing


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_a_new_file_and_its_journal_are_private(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    migrate.upgrade(url)
    engine = make_engine(url)
    with writing(engine) as connection:
        connection.exec_driver_sql("update late_meta set value = value")
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    engine.dispose()
    assert modes == {"queue.db": 0o600, "queue.db-wal": 0o600, "queue.db-shm": 0o600}


@pytest.mark.usefixtures("open_umask")
def test_the_mode_of_a_file_that_exists_is_its_owners_choice(tmp_path: Path) -> None:
    file = tmp_path / "queue.db"
    file.touch(mode=0o640)
    migrate.upgrade(f"sqlite:///{file}")
    assert file.stat().st_mode & 0o777 == 0o640
