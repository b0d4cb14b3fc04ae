"""Roles after a migration without `late roles sql`: what they lack is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from late.schema import rights
from late.schema.roles import script
from tests.security.logins import made, open_as
from tests.unit.cli_kit import Cli

NEW = "late_full"
"""A table that migration 0018 makes. It grants to some what producers cannot do without."""


@pytest.fixture
def urls() -> Iterator[dict[str, str]]:
    with made() as found:
        yield found


def check_of(cli: Cli) -> tuple[str, str]:
    rows = {row["name"]: row for row in cli("doctor", "--json").json["checks"]}
    return rows["rights"]["result"], rows["rights"]["detail"]


def test_what_roles_lack_is_told_until_they_have_it(
    urls: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = urls["owner"]
    prefix = next(role for role in _roles(owner)).removesuffix("enqueuer")
    monkeypatch.setenv("LATE_URL", owner)
    cli = Cli(capsys, owner)
    assert rights.read(owner) == {}
    assert check_of(cli)[0] == "ok"
    assert "warning" not in cli.fine("migrate").err

    cli.fine("migrate", "--to", "0017")
    told = cli.fine("migrate").err
    assert f"rights on {NEW} are missing" in told
    assert "late roles sql | psql" in told
    found = rights.read(owner)
    assert {role.removeprefix(prefix) for role in found} == {
        "operator",
        "viewer",
        "worker",
    }
    assert all(NEW in objects for objects in found.values())
    assert check_of(cli) == ("warning", rights.told(found))
    assert cli.fine("migrate", "--json").json["lacking_rights"] == found

    with closing(open_as(owner)) as connection:
        connection.execute(script(prefix=prefix))
    assert rights.read(owner) == {}


def test_a_function_that_was_made_anew_has_to_be_granted_again(urls: dict[str, str]) -> None:
    owner = urls["owner"]
    with closing(open_as(owner)) as connection:
        [(function,)] = connection.execute(
            "select oid::regprocedure::text from pg_proc where proname = 'late_enqueue'"
        ).fetchall()
        for role in _roles(owner):
            connection.execute(f"revoke execute on function {function} from {role}")
    assert {tuple(objects) for objects in rights.read(owner).values()} == {("late_enqueue",)}
    assert len(rights.read(owner)) == 2  # Producers, and services.


def _roles(owner: str) -> list[str]:
    with closing(open_as(owner)) as connection:
        rows = connection.execute(
            "select distinct rolname from pg_roles r, pg_class c, aclexplode(c.relacl) a"
            " where c.oid = to_regclass('late_unique') and a.grantee = r.oid"
            " and r.oid <> c.relowner order by 1"
        ).fetchall()
    return [str(role) for (role,) in rows]
