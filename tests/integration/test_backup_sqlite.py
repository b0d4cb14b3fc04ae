"""The commands by which `docs/backup.md` restores a file of SQLite, and what it warns of."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from late.errors import StoreRefused
from late.store.sqlite.store import SqliteStore
from tests.support import sqlite

ROOT = Path(__file__).resolve().parents[2]


def opened(path: Path) -> None:
    async def run() -> None:
        store = SqliteStore(f"sqlite:///{path}")
        try:
            await store.open()
        finally:
            await store.close()

    asyncio.run(run())


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A database that a worker has opened, a backup of it, and a leftover log of later writes."""
    path, left = tmp_path / "shop.db", tmp_path / "left-wal"
    sqlite.database(path)
    opened(path)
    with closing(sqlite3.connect(path)) as tx:
        tx.execute("create table later (n integer)")
        with closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
            tx.backup(backup)
        tx.execute("pragma wal_checkpoint(truncate)")
        tx.execute("insert into later values (1)")
        tx.commit()
        shutil.copy(f"{path}-wal", left)
    shutil.move(left, f"{path}-wal")  # as a process leaves it that was killed
    return path


def later(path: Path) -> int:
    with closing(sqlite3.connect(path)) as tx:
        return int(tx.execute("select count(*) from later").fetchone()[0])


def test_the_commands_of_the_page_restore_a_file(shop: Path) -> None:
    page = (ROOT / "docs" / "backup.md").read_text()
    [block] = re.findall(r"```sh\n(set -e\n.*?)```", page, re.DOTALL)
    late = f'late() {{ "{sys.executable}" -m late "$@"; }}\n'
    ran = subprocess.run(
        ["sh", "-c", late + block],
        cwd=shop.parent,
        env=os.environ | {"LATE_URL": f"sqlite:///{shop}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert later(shop) == 0, "nothing that was written after the backup"
    assert shop.stat().st_mode & 0o777 == 0o600
    opened(shop)


def test_a_new_file_is_refused_until_it_is_adopted(shop: Path) -> None:
    copy = shop.with_name("copy.db")
    shutil.copy(shop.with_name("backup.db"), copy)
    with pytest.raises(StoreRefused, match="late rebase"):
        opened(copy)


def test_a_copy_over_the_old_file_is_not_noticed_as_the_page_says(shop: Path) -> None:
    os.unlink(f"{shop}-wal")
    shutil.copyfile(shop.with_name("backup.db"), shop)
    opened(shop)


def test_a_log_that_was_left_brings_back_what_the_backup_has_not(shop: Path) -> None:
    shutil.copyfile(shop.with_name("backup.db"), shop)
    assert later(shop) == 1
