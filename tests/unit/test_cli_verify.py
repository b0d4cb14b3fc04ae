"""`late verify` from the command line."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from late.control.verify import problems as findings
from tests.unit.cli_kit import Cli


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path / "shop.db")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_sound_books(cli: Cli) -> None:
    assert cli.fine("verify").out == "Tasks: none\nnothing broken\n"
    task_id = cli.fine("enqueue", "count", "--args", "{}").out.strip()
    ended = cli.fine("verify")
    assert "nothing broken" in ended.out
    assert "never owned in group default, all of it waits" in ended.err
    found = cli.fine("verify", "--json").json
    assert found["ok"] is True
    assert found["totals"] == {
        "log": 1, "waiting": 1, "open": 0, "parked": 0, "dead": 0, "settled": 0,
    }  # fmt: skip
    (ledger,) = found["ledgers"]
    assert ledger["shard_id"] == int(task_id[15:18], 16)
    assert ledger["ended"] == {}
    assert cli.fine("verify", "--shard", "4095", "--json").json["ledgers"] == []


def test_broken_books_are_named_with_a_remedy(cli: Cli, tmp_path: Path) -> None:
    task_id = cli.fine("enqueue", "count", "--args", "{}").out.strip()
    change(
        tmp_path,
        "insert into late_unique (unique_key, task_id, digest, created_at_us)"
        f" values ('k', '{task_id}', 'd', 0)",
        "delete from late_task",
    )
    ended = cli("verify")
    assert ended.code == 1
    assert task_id in ended.out
    assert "holds the unique key 'k'" in ended.out
    assert "delete its row of late_unique" in ended.out
    assert "\n1 problem\n" in ended.out
    ended = cli("verify", "--json")
    assert ended.code == 1
    (problem,) = ended.json["problems"]
    assert (problem["kind"], problem["task_id"]) == ("key_held", task_id)
    assert problem["remedy"] == findings.REMEDIES["key_held"]


def test_a_long_list_is_cut(cli: Cli, tmp_path: Path) -> None:
    many = findings.LISTED + 3
    change(
        tmp_path,
        f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {many})"
        " insert into late_unique (unique_key, task_id, digest, created_at_us) select 'k' || i,"
        " printf('01a1fbd1-9c7b-7005-8000-%012x', i), 'd', 0 from n",
    )
    ended = cli("verify")
    assert ended.code == 1
    assert "… and 3 more\n1,003 problems\n" in ended.out
    assert ended.out.count("holds the unique key") == findings.LISTED


def test_what_it_refuses(cli: Cli) -> None:
    assert "no consumer group 'ghost'" in cli.refused("verify", "--group", "ghost")
    assert cli("verify", "--shard", "4096").code == 2
