"""migrate, doctor, rebase and demo from the command line."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from late.cli import output
from late.schema.migrate import revisions
from late.schema.version import SCHEMA_VERSION
from tests.unit.cli_kit import Cli


def test_migrate_twice_and_as_json(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    assert cli.fine("migrate", url).out == f"{url}: applied {', '.join(revisions())}\n"
    assert cli.fine("migrate", url).out == f"{url}: up to date at {SCHEMA_VERSION}\n"
    assert cli.fine("migrate", url, "--json").json == {
        "applied": [],
        "lacking_rights": {},
        "schema_version": SCHEMA_VERSION,
    }


def test_migrate_prints_a_script_that_works(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/scripted.db"
    script = cli.fine("migrate", "--sql", url).out
    assert not (tmp_path / "scripted.db").exists()
    connection = sqlite3.connect(tmp_path / "scripted.db")
    connection.executescript(script)
    connection.close()
    assert "up to date" in cli.fine("migrate", url).out
    assert cli.fine("migrate", "--sql", url, "--json").json["sql"] == script
    assert "CREATE TABLE" in cli.fine("migrate", "--sql", "postgresql://nobody@nowhere/shop").out


def test_migrate_refuses_what_it_cannot_do(cli: Cli, tmp_path: Path) -> None:
    assert "in-memory" in cli.refused("migrate", "sqlite://")
    line = cli.refused("migrate", "postgresql://me:sesame@127.0.0.1:1/shop", code=1)
    assert "sesame" not in line
    assert "no store for" in cli.refused("migrate", "oracle://x/y")
    assert "unable to open" in cli.refused("migrate", f"sqlite:///{tmp_path}/no/x.db", code=1)


def test_doctor_says_what_it_found(cli: Cli, tmp_path: Path) -> None:
    found = cli.fine("doctor", "--json").json
    assert found["ok"] is True
    results = {check["name"]: check["result"] for check in found["checks"]}
    assert results["schema"] == results["guards"] == "ok"
    assert results["leases"] == "warning"
    assert "0 failed" in cli.fine("doctor").out
    assert cli("doctor", "--strict").code == 1

    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("update late_meta set value = '9999' where key like 'schema%'")
    connection.commit()
    connection.close()
    ended = cli("doctor")
    assert ended.code == 1
    assert "FAILED   schema" in ended.out
    assert "upgrade late" in ended.out
    assert "upgrade late" in cli.refused("status", code=1)
    assert "upgrade late" in cli.refused("migrate", code=1)


def test_doctor_of_nothing(cli: Cli, tmp_path: Path) -> None:
    ended = cli("doctor", f"sqlite:///{tmp_path}/absent.db", "--json")
    assert (ended.code, ended.json["ok"]) == (1, False)
    ended = cli("doctor", "postgresql://me:sesame@127.0.0.1:1/shop")
    assert ended.code == 1
    assert "FAILED   connection" in ended.out
    assert "sesame" not in ended.out + ended.err


def test_a_copy_is_refused_until_it_is_rebased(cli: Cli, tmp_path: Path) -> None:
    cli.fine("doctor")  # the first look writes the identity
    copy = tmp_path / "copy.db"
    source = sqlite3.connect(tmp_path / "shop.db")
    target = sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    url = f"sqlite:///{copy}"
    ended = cli("doctor", url)
    assert ended.code == 1
    assert "rebase" in ended.out
    assert "give --yes" in cli.refused("rebase", url)
    assert cli("doctor", url).code == 1
    assert "start the workers" in cli.fine("rebase", url, "--yes").out
    assert cli.fine("rebase", url, "--yes", "--json").json == {"rebased": url}
    changes = cli.fine("knobs", "--history", "--url", url, "--json").json["changes"]
    assert [change["action"] for change in changes] == ["rebase", "rebase"]
    assert cli("doctor", url).code == 0


def test_demo_refuses_bad_input(cli: Cli, tmp_path: Path) -> None:
    assert cli("demo", "--count", "0").code == 2
    assert cli("demo", "--trips", str(tmp_path / "absent.csv")).code == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, None), (0.04, "0.0s"), (59.94, "59.9s"), (60, "1m 0s"), (3_599, "59m 59s"),
     (3_600, "1h 0m"), (86_399, "23h 59m"), (86_400, "1d 0h"), (10**9, "11574d 1h")],
)  # fmt: skip
def test_ages(seconds: float | None, text: str | None) -> None:
    assert output.age(seconds) == text


def test_moments_and_plain_text() -> None:
    assert output.moment(None) is None
    assert output.moment(1_700_000_000_999_999) == "2023-11-14 22:13:20Z"
    assert output.moment(2**62) == f"{2**62} us"
    assert output.plain(None) == "-"
    assert output.plain("a\x1b[31m\n\u202eb\x00é") == "a\\x1b[31m\\n\\u202eb\\x00é"
