"""`late keys rotate` on every kind of database: which rows there are, and what is not shown."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from late.control import Control
from late.model.deployment_keys import KEPT_US
from late.schema import migrate
from late.schema.engine import make_engine, reading, writing
from late.schema.tables import secret
from tests.integration.test_migrate import urls
from tests.unit.cli_kit import Cli, cli

__all__ = ["cli", "urls"]


def made_at(url: str, number: str, at_us: int) -> None:
    engine = make_engine(url)
    with writing(engine) as connection:
        change = update(secret).where(secret.c.name == number).values(created_at_us=at_us)
        connection.execute(change)
    engine.dispose()


def rows(url: str) -> dict[str, tuple[str, str]]:
    engine = make_engine(url)
    with reading(engine) as connection:
        found = connection.execute(select(secret.c.name, secret.c.peer_key, secret.c.form_key))
        kept = {row[0]: (row[1], row[2]) for row in found}
    engine.dispose()
    return kept


def test_a_key_is_added_and_goes_when_it_is_void(url: str, cli: Cli) -> None:
    (first,) = rows(url).values()
    shown = cli.fine("keys", "rotate", "--url", url).out
    both = rows(url)
    assert both["1"] == first
    assert both["2"][1] == first[1]  # a page that runs has read the key of its forms
    cli.fine("keys", "rotate", "--url", url)
    assert rows(url).keys() == {"1", "2", "3"}
    with Control(url) as control:
        now_us = control.now()
        keys = control.tokens.peer_keys()
    assert all(abs(key.created_at_us - now_us) < 600_000_000 for key in keys if key.number > 1)
    made_at(url, "2", now_us - KEPT_US - 1)
    assert "3 kept" in cli.fine("keys", "rotate", "--url", url).out
    assert rows(url).keys() == {"2", "3", "4"}
    values = {peer for peer, _ in (*both.values(), *rows(url).values())}
    assert len(values) == 4
    with Control(url) as control:
        told = str(control.audit.entries()) + shown
    assert "keys.rotate" in told
    assert not any(value in told for value in values)


@pytest.mark.parametrize("before", [0, 10])
def test_at_once_leaves_the_new_key_alone(url: str, cli: Cli, before: int) -> None:
    with Control(url) as control:
        for _ in range(before):
            control.tokens.rotate()
    assert "1 kept" in cli.fine("keys", "rotate", "--at-once", "--url", url).out
    assert rows(url).keys() == {str(before + 2)}
    with Control(url) as control:
        assert len(control.tokens.form_key()) == 32


def test_going_back_keeps_the_newest_key(urls: Any) -> None:
    url = urls()
    migrate.upgrade(url)
    with Control(url) as control:
        for _ in range(9):
            control.tokens.rotate()
    newest = rows(url)["10"]
    migrate.downgrade(url, "0013")
    assert rows(url) == {"10": newest}
