"""On PostgreSQL a claim begins its transaction: both go to the server in one message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from late.errors import SchemaMismatch
from late.handler.context import AsyncContext, Context
from late.model.task import Attempt
from tests.integration import postgres_kit
from tests.integration.effects_kit import attempt

ODD = "it's {} of \\' 100 % %s $1; rollback -- ü"


@pytest.fixture
def url() -> Iterator[str]:
    with postgres_kit.database() as made:
        yield made


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The waits for the server, in order, by what was sent first."""
    found: list[str] = []
    for kind in (psycopg.Connection, psycopg.AsyncConnection):
        wait = kind.wait

        def counted(self: Any, generator: Any, *more: Any, wait: Any = wait, **named: Any) -> Any:
            found.append(generator.__name__)
            return wait(self, generator, *more, **named)

        monkeypatch.setattr(kind, "wait", counted)
    return found


def context(kind: type[Any], url: str, group: str = "default") -> Any:
    one = Attempt(group, attempt().record, 1, 0, 1, 1)
    return kind(one, 0, 60.0, 3, url, lambda attempt: None)


def claimed(url: str) -> list[Any]:
    with psycopg.connect(url) as tx:
        return [group for (group,) in tx.execute("select consumer_group from late_inbox")]


def test_a_claim_is_one_round_trip(url: str, waits: list[str]) -> None:
    with context(Context, url).once() as tx:
        assert tx.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        made = waits.index("_begin_with")
        assert waits[made + 1 :] == [], "the claim, and nothing beside it"
    assert waits[made + 1 :] == ["_commit_gen"]
    assert claimed(url) == ["default"]


async def test_so_it_is_where_it_is_awaited(url: str, waits: list[str]) -> None:
    async with context(AsyncContext, url).once() as tx:
        assert tx.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        made = waits.index("_begin_with")
    assert waits[made + 1 :] == ["_commit_gen"]
    assert claimed(url) == ["default"]


async def test_names_are_taken_as_they_are(url: str) -> None:
    """They are in the text of the statement, so they must be quoted."""
    with context(Context, url, ODD).once():
        pass
    async with context(AsyncContext, url, ODD + "2").once():
        pass
    assert sorted(claimed(url)) == [ODD, ODD + "2"]


def test_a_service_that_has_set_its_transaction_up_gets_it_so(url: str) -> None:
    with context(Context, url).begin() as tx:
        tx.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        assert context(Context, url).claim(tx)
        assert tx.execute("show transaction_isolation").fetchone() == ("serializable",)


def test_a_claim_that_fails_says_why_and_leaves_nothing(url: str) -> None:
    with psycopg.connect(url) as tx:
        tx.execute("alter table late_inbox rename to elsewhere")
    with pytest.raises(SchemaMismatch), context(Context, url).once():
        raise AssertionError("the block is not entered")
    with psycopg.connect(url) as tx:
        assert tx.execute("select count(*) from elsewhere").fetchone() == (0,)
