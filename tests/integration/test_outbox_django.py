"""Django as a producer: tasks live and die with its atomic blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import DatabaseError, connections, transaction
from django.db.transaction import TransactionManagementError
from django.utils.connection import ConnectionProxy
from sqlalchemy import make_url

import late
from late import outbox
from late.errors import InvalidTask
from late.model.ids import new_id
from late.schema import migrate
from late.testing import drain, inline
from tests.integration import outbox_kit as kit
from tests.servers import drop_database, migrated_database, postgres_url

if not settings.configured:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        USE_TZ=True,
        DEBUG=True,  # Django logs queries: payloads must not get there
    )
    django.setup()
ALIAS = "shop"
app = late.App("sqlite:///unused.db")


@app.task
def greet(name: str, times: int = 1) -> None: ...


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path / 'django.db'}"
        migrate.upgrade(made)
        yield made
        return
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    made = migrated_database(admin)
    yield made
    drop_database(admin, made)


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    parsed = make_url(url)
    given: dict[str, Any] = {
        "ENGINE": f"django.db.backends.{'sqlite3' if 'sqlite' in url else 'postgresql'}",
        "NAME": parsed.database,
        "USER": parsed.username or "",
        "PASSWORD": parsed.password or "",
        "HOST": parsed.query.get("host", parsed.host) or "",
        "PORT": str(parsed.port or ""),
    }
    connections.databases[ALIAS] = connections.databases["default"] | given
    yield connections[ALIAS]
    connections[ALIAS].close()
    del connections[ALIAS], connections.databases[ALIAS]


def test_a_task_lives_and_dies_with_the_atomic_block(connection: Any, url: str) -> None:
    with transaction.atomic(using=ALIAS):
        connection.cursor().execute("create table trip (id integer primary key)")
        one = greet.enqueue(connection, "Ada")
        many = app.enqueue_many(
            connection, [greet.call("Bob"), greet.options(unique_key="k").call("C")]
        )
        with pytest.raises(KeyError), transaction.atomic(using=ALIAS):  # noqa: PT012
            greet.enqueue(connection, "a savepoint that is rolled back")
            raise KeyError
        assert kit.rows(url) == []
    with pytest.raises(KeyError), transaction.atomic(using=ALIAS):  # noqa: PT012
        greet.enqueue(connection, "nobody")
        raise KeyError
    assert [task_id for task_id, _ in kit.rows(url)] == sorted([one, *many])
    # The connection that Django's users import is a proxy of one of these.
    with transaction.atomic(using=ALIAS):
        proxy: Any = ConnectionProxy(connections, ALIAS)
        greet.enqueue(proxy, "Dora")
    assert len(kit.rows(url)) == 4


def test_what_it_enqueued_is_run(connection: Any, url: str) -> None:
    other, ran = late.App(url), []

    @other.task(name="greet")
    def run(name: str, times: int = 1) -> None:
        ran.append((name, times))

    with transaction.atomic(using=ALIAS):
        greet.enqueue(connection, "Ada", times=3)
    assert drain(other) == {"done": 1}
    assert ran == [("Ada", 3)]


def test_without_an_atomic_block_a_task_is_refused(connection: Any, url: str) -> None:
    alone = greet.options(autocommit=True)
    for enqueue in (
        lambda: greet.enqueue(connection, "Ada"),
        lambda: app.enqueue_many(connection, [alone.call("Ada"), greet.call("Ada")]),
        lambda: app.cancel(connection, new_id(0)),
    ):
        with pytest.raises(InvalidTask, match=r"transaction\.atomic\(\)"):
            enqueue()
    assert kit.rows(url) == []
    alone.enqueue(connection, "Ada")
    assert len(kit.rows(url)) == 1
    with pytest.raises(InvalidTask, match="needs a transaction"):
        greet.options(unique_key="k", autocommit=True).enqueue(connection, "Ada")


def test_without_django_s_autocommit_the_driver_begins(connection: Any, url: str) -> None:
    transaction.set_autocommit(False, using=ALIAS)
    greet.enqueue(connection, "Ada")
    transaction.rollback(using=ALIAS)
    assert kit.rows(url) == []
    greet.enqueue(connection, "Ada")
    transaction.commit(using=ALIAS)
    assert len(kit.rows(url)) == 1


def test_inline_mode_opens_no_connection_and_refuses_on_an_open_one(connection: Any) -> None:
    connection.close()
    with inline(app) as box:
        greet.enqueue(connection, "Ada")
        assert connection.connection is None
        connection.ensure_connection()
        with pytest.raises(InvalidTask, match="no transaction is open"):
            greet.enqueue(connection, "Ada")
        with transaction.atomic(using=ALIAS):
            greet.enqueue(connection, "Ada")
    assert len(box.pending) == 2


def test_bad_input_leaves_the_block_as_it_was_and_errors_are_django_s(connection: Any) -> None:
    with transaction.atomic(using=ALIAS):
        with pytest.raises(late.InvalidSchedule):
            greet.options(delay=float("nan")).enqueue(connection, "Ada")
        greet.enqueue(connection, "Ada")
    with transaction.atomic(using=ALIAS):
        greet.options(unique_key="k").enqueue(connection, "Ada")
        with pytest.raises(late.KeyConflict):
            greet.options(unique_key="k").enqueue(connection, "Bob")
        greet.enqueue(connection, "Cyd")
    connection.cursor().execute("drop table late_unique")
    with transaction.atomic(using=ALIAS):
        with pytest.raises(late.SchemaMismatch, match="late migrate") as caught:
            greet.options(unique_key="k").enqueue(connection, "Ada")
        assert isinstance(caught.value.__cause__, DatabaseError)
        transaction.set_rollback(True, using=ALIAS)
        with pytest.raises(TransactionManagementError):
            greet.enqueue(connection, "in a broken block")


def test_payloads_are_not_in_django_s_log_of_queries(connection: Any) -> None:
    with transaction.atomic(using=ALIAS):
        greet.enqueue(connection, "hunter2")
    assert "hunter2" not in str(connection.queries)


def test_a_driver_of_another_kind_is_refused() -> None:
    class Oracle:
        vendor = "oracle"
        connection = object()

        def validate_no_broken_transaction(self) -> None: ...
        def ensure_connection(self) -> None: ...

    from late.outbox.adapters.django import connection as adapter

    with pytest.raises(InvalidTask, match="oracle"):
        adapter(Oracle())
    with pytest.raises(InvalidTask, match="a Django connection"):
        outbox.is_async(object())
