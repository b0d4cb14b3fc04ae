"""Which offers the heartbeat's statement takes for one that a worker may run."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from late.store.common.followed import OFFERED


@pytest.mark.parametrize(
    ("owner", "runner", "answer", "offered"),
    [
        ("peer", None, None, True),
        ("peer", "me", None, True),
        ("peer", "me", "done", False),
        ("peer", "other", None, False),
        ("peer", "other", "done", False),
        ("me", None, None, False),
        ("me", "me", None, False),
    ],
)
def test_an_attempt_of_a_peer_that_nobody_else_runs_is_offered(
    owner: str, runner: str | None, answer: str | None, offered: bool
) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table late_offer (owner text, runner text, answer text)")
        connection.execute("insert into late_offer values (?, ?, ?)", (owner, runner, answer))
        [[found]] = connection.execute("select " + OFFERED.format(me="'me'"))
    assert bool(found) is offered
