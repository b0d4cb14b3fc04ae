"""The check `sizes` of `late doctor` for a database in a file."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from late.control.doctor import table_sizes
from tests.support.sqlite import database
from tests.unit.cli_kit import Cli


def test_a_big_log_of_writes_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "my shop.db"
    file.write_bytes(b"x" * 4096)
    found = table_sizes.check_file(str(file))
    assert (found.result, found.detail) == (
        "ok",
        "my shop.db has 4.0 KiB, its log of writes 0 bytes",
    )
    with open(f"{file}-wal", "wb") as log:
        os.truncate(log.fileno(), table_sizes.WRITES_MAX + 1)
    found = table_sizes.check_file(str(file))
    assert found.result == "warning"
    assert "its log of writes 256 MiB" in found.detail
    assert f"sqlite3 '{file}' 'pragma wal_checkpoint(truncate)'" in found.detail


def test_a_reader_makes_the_log_grow_and_the_advice_gives_the_room_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database(tmp_path / "shop.db")
    monkeypatch.setattr(table_sizes, "WRITES_MAX", 8 * 2**20)

    def told() -> str:
        checks = Cli(capsys, url).fine("doctor", url, "--json").json
        (found,) = [each for each in checks["checks"] if each["name"] == "sizes"]
        return str(found["result"])

    with closing(sqlite3.connect(tmp_path / "shop.db")) as writer:
        writer.execute("create table page (text)")
        with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as reader:
            reader.execute("begin")
            reader.execute("select count(*) from page").fetchone()
            assert told() == "ok"
            for _ in range(12):
                with writer:
                    writer.execute("insert into page values (?)", ("x" * 2**20,))
            assert told() == "warning"
            reader.execute("rollback")
        writer.execute("pragma wal_checkpoint(truncate)")
        assert told() == "ok"
