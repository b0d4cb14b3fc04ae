"""Who is named when sessions wait one for the other on PostgreSQL: the first of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest

from late.control.findings import database as findings
from late.control.status import locks, old_transactions
from late.schema.engine import make_engine
from tests.integration.lake_kit import until
from tests.integration.postgres_kit import database
from tests.unit.test_web_views import seen


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


def test_handlers_behind_a_change_of_a_table_lead_to_who_holds_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_transactions, "OLD_S", 0.0)
    with (
        psycopg.connect(url, autocommit=True) as owner,
        psycopg.connect(url, application_name="batch-report") as first,
        closing(psycopg.connect(url, application_name="psql")) as second,
        closing(psycopg.connect(url)) as third,
    ):
        owner.execute("create table ledger (x int)")
        first.execute("insert into ledger values (1)")
        pids = [each.info.backend_pid for each in (first, second, third)]
        threads = []
        for connection, statements in (
            (second, ["alter table ledger add column note text"]),
            # As `ctx.once()` does: a row of the inbox, then the effect.
            (third, ["create temporary table inbox ()",
                     "/* tag=late-foreground:pay */ insert into ledger values (2)"]),
        ):  # fmt: skip
            threads.append(threading.Thread(target=run, args=(connection, statements)))
            threads[-1].start()
            until(partial(waits, owner, connection.info.backend_pid))
        engine = make_engine(url)
        try:
            found = locks.sessions(engine)
        finally:
            engine.dispose()
        first.rollback()
        for thread in threads:
            thread.join(30)
    [holder] = found.holders
    assert (holder.pid, holder.table, holder.waiting) == (pids[0], "ledger", 1)
    assert (holder.application, holder.behind) == ("batch-report", pids[1])
    assert [each.pid for each in found.old] == [pids[0]], "who waits does not hold others up"


def run(connection: psycopg.Connection[Any], statements: list[str]) -> None:
    for each in statements:
        connection.execute(each)
    connection.rollback()


def waits(owner: psycopg.Connection[Any], pid: int) -> bool:
    asked = owner.execute("select 1 from pg_locks where pid = %s and not granted", [pid])
    return asked.fetchone() is not None


def test_the_finding_names_whom_the_handlers_stand_behind() -> None:
    holder = locks.LockHolder(
        7, "batch-report", "idle in transaction", 60.0, "ledger", 3, 50.0, behind=8
    )
    [found] = findings.find(msgspec.structs.replace(seen(), holders=(holder,)))
    assert "They stand behind process 8, which waits for it as well." in found.detail
