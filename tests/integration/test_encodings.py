"""Databases of PostgreSQL in another encoding than UTF8."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import make_url

from late.errors import StoreRefused
from late.schema import migrate
from late.schema.version import check_encoding
from late.store import open_store
from tests.servers import drop_database, postgres_url
from tests.unit.cli_kit import Cli


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def foreign(request: pytest.FixtureRequest) -> Iterator[str]:
    admin = postgres_url()
    assert admin is not None
    name = f"late_{secrets.token_hex(4)}"
    with psycopg.connect(admin.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            f"create database {name} encoding '{request.param}' lc_collate 'C' lc_ctype 'C'"
            " template template0"
        )
    url = make_url(admin).set(database=name).render_as_string(hide_password=False)
    yield url
    drop_database(admin, url)


async def test_it_is_refused_in_one_line(
    foreign: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreRefused, match="late needs UTF8: create database"):
        migrate.upgrade(foreign)
    cli = Cli(capsys, foreign)
    for words in ("migrate", "status", "verify"):
        assert cli(words, foreign).err.count("\n") == 1
    assert "late needs UTF8" in cli("doctor", foreign).out
    store = open_store(foreign)
    with pytest.raises(StoreRefused, match="late needs UTF8"):
        await store.open()
    await store.close()


def test_a_pooler_that_does_not_tell_is_believed() -> None:
    check_encoding(None)
    check_encoding("UTF8")
