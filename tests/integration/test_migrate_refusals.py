"""What is no database, or no URL of one: refused in one line, without its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from late.errors import ConfigError, StoreRefused, StoreUnavailable
from late.schema import migrate


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("trips.db", "not a database URL"),
        ("", "not a database URL"),
        ("postgresql://me:sesame@host:port/db", "not a database URL"),
        ("mysql://me:sesame@host/db", "'mysql'"),
        ("sqlite://", "in-memory"),
        ("sqlite:///:memory:", "in-memory"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        migrate.upgrade(url)
    assert "sesame" not in str(caught.value)


def test_an_unreachable_database_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="unable to open database file"):
        migrate.upgrade(f"sqlite:///{tmp_path}/no/such/folder/trips.db")
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1") as caught:
        migrate.upgrade("postgresql://me:sesame@127.0.0.1:1/trips")
    assert "sesame" not in str(caught.value)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, and they are not a database at all\n" * 100)
    with pytest.raises(StoreRefused, match="not a database"):
        migrate.upgrade(f"sqlite:///{path}")
    assert path.read_text().startswith("these are my notes")
