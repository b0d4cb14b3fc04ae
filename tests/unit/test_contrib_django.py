"""`late.contrib.django` without a server: settings, URLs, connections, checks, migrations."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from contextvars import copy_context
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import django
import django_tasks
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router, transaction
from django.test import override_settings
from sqlalchemy import make_url

import late

if not settings.configured:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        USE_TZ=True,
        DEBUG=True,
    )
    django.setup()

from late.concurrency import drained
from late.contrib.django import (
    application,
    checks,
    migrations,
    results,
    schema,
    tasks_api,
    waiting_tasks,
)
from late.contrib.django import connections as ours
from late.contrib.django.models import WaitingTask
from late.control import Control
from late.model.ids import new_id
from late.schema import migrate
from late.schema.engine import parse
from late.schema.version import SCHEMA_VERSION
from late.store.postgres.connection import conninfo_of

ALIAS = "contrib"
POSTGRES = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "shop",
    "USER": "ada@home",
    "PASSWORD": "p:/@?",  # pragma: allowlist secret
    "HOST": "db.example.org",
    "PORT": "6432",
    "OPTIONS": {"sslmode": "require", "application_name": "shop", "pool": False},
}


@pytest.fixture
def database() -> Iterator[Any]:
    """Return a function that adds a database to the settings, and removes it afterwards."""

    def add(given: dict[str, Any]) -> Any:
        connections.databases[ALIAS] = connections.databases["default"] | given
        return connections[ALIAS]

    yield add
    if ALIAS in connections.databases:
        connections[ALIAS].close()
        del connections[ALIAS], connections.databases[ALIAS]


def test_the_url_of_a_file_is_absolute(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database({"NAME": "shop.db"})
    assert ours.database_url(ALIAS) == f"sqlite:///{tmp_path / 'shop.db'}"


def test_the_url_of_a_server_keeps_what_libpq_knows(database: Any) -> None:
    database(POSTGRES)
    url = make_url(ours.database_url(ALIAS))
    assert (url.drivername, url.username, url.password) == ("postgresql", "ada@home", "p:/@?")
    assert (url.host, url.port, url.database) == ("db.example.org", 6432, "shop")
    assert dict(url.query) == {"sslmode": "require", "application_name": "shop"}


@pytest.mark.parametrize("value", ["a b", "50%", "p:/@?#&=+'[]", "é", "%20", "a  b "])
def test_the_worker_and_the_commands_read_the_same_of_it(database: Any, value: str) -> None:
    options = {"options": f"-c search_path={value}"}
    database(POSTGRES | {"NAME": value, "USER": value, "PASSWORD": value, "OPTIONS": options})
    url = ours.database_url(ALIAS)
    given = conninfo_of(url)
    assert [given[key] for key in ("dbname", "user", "password")] == [value] * 3
    assert given["options"] == options["options"]
    parsed = parse(url)
    assert [parsed.database, parsed.username, parsed.password] == [value] * 3
    assert parsed.query["options"] == options["options"]


def test_a_socket_is_not_a_host_name(database: Any) -> None:
    database(POSTGRES | {"HOST": "/run/postgresql", "OPTIONS": {}})
    url = make_url(ours.database_url(ALIAS))
    assert (url.host, dict(url.query)) == (None, {"host": "/run/postgresql"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["SHARDS"], "must be a dictionary"),
        ({"SHARD": 8, "GROUPS": 1}, "LATE has no GROUPS, SHARD"),
        ({"SHARDS": 0}, r"LATE\['SHARDS'\]: Expected `int` >= 1"),
        ({"SHARDS": 5_000}, r"LATE\['SHARDS'\]: Expected `int` <= 4096"),
        ({"GROUP": "my shop"}, r"LATE\['GROUP'\]: Expected `str` matching"),
        ({"DATABASE": "nowhere"}, r"LATE\['DATABASE'\]: there is no 'nowhere' in DATABASES"),
        ({"CODEC": 5}, "codec 5 is neither"),
        ({"CODEC": late.Signed}, "is neither 'json', 'msgpack' nor a codec"),
        ({"TARGETS": ["billing"]}, "not a late.GrpcTarget or late.HttpTarget: 'billing'"),
        ({"MAX_BACKLOG": {"my mail": 9}}, r"LATE\['MAX_BACKLOG'\]: Expected `str` matching"),
        ({"HISTORY": 1, "SHARDS": "8"}, r"LATE\['SHARDS'\]: .*; LATE\['HISTORY'\]: "),
        ({"SHARDS": "8"}, r"LATE\['SHARDS'\]: Expected `int`, got `str`"),
        ({"CODEC": "pickle"}, "pickle"),
        ({"HISTORY": 1}, r"LATE\['HISTORY'\]: Expected `bool`, got `int`"),
        ({"MAX_BACKLOG": {"mail": "9"}}, r"LATE\['MAX_BACKLOG'\]: Expected `int`, got `str`"),
        ({"MAX_BACKLOG": -1}, r"LATE\['MAX_BACKLOG'\]: Expected `int` >= 0"),
        ({"TARGETS": "billing"}, r"LATE\['TARGETS'\]: Expected `array`, got `str`"),
    ],
)
def test_a_wrong_setting_says_what_is_wrong(given: Any, words: str) -> None:
    with override_settings(LATE=given):
        with pytest.raises(ImproperlyConfigured, match=words):
            application.make_app()
        found = checks.check_settings()
        assert {each.id for each in found} == {"late.E004"}
        assert re.search(words, "; ".join(each.msg for each in found))
        assert checks.check_schema(databases=["default"]) == []


@pytest.mark.parametrize("given", [{"SHARDS": 0}, {"SHARD": 8}, [], {"DATABASE": "nowhere"}])
def test_the_check_of_django_has_an_app_to_look_at(
    monkeypatch: pytest.MonkeyPatch, given: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["manage.py", "check", "--deploy"])
    with override_settings(LATE=given):
        monkeypatch.delitem(sys.modules, "late.cli", raising=False)
        assert isinstance(application.make_app(), late.App)
        monkeypatch.setitem(sys.modules, "late.cli", ModuleType("late.cli"))  # `late check`.
        with pytest.raises(ImproperlyConfigured, match="LATE"):
            application.make_app()


def test_a_database_that_late_does_not_run_on_is_a_finding(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database({}), "vendor", "oracle")
    with override_settings(LATE={"DATABASE": ALIAS}):
        (found,) = checks.check_settings()
    assert (found.id, "is oracle with" in found.msg) == ("late.E004", True)


def test_the_settings_are_those_of_the_app() -> None:
    with override_settings(LATE={"SHARDS": 3, "GROUP": "shop"}):
        app = application.make_app()
    assert (app.shards, app.group, app.url) == (3, "shop", ours.IN_MEMORY)


@pytest.mark.parametrize("many", [False, True])
def test_a_connection_to_another_database_is_refused(many: bool) -> None:
    """No worker of the project would ever read the task."""
    app = application.make_app()
    call = _note(app).call()

    def enqueue(alias: str, name: str) -> None:
        tx: Any = SimpleNamespace(alias=alias, settings_dict={"NAME": name}, commit=lambda: None)
        if many:
            app.enqueue_many(tx, [call])
        else:
            app.enqueue(tx, call)

    with pytest.raises(late.InvalidTask, match=r"DATABASES\['orders'\].*in DATABASES\['default'\]"):
        enqueue("orders", "orders")
    for alias, name in (("default", ":memory:"), ("pooled", ":memory:")):
        with pytest.raises(late.InvalidTask, match="SimpleNamespace"):  # It is no transaction.
            enqueue(alias, name)


def _note(app: late.App) -> Any:
    @app.task
    def note() -> None: ...

    return note


def test_the_url_is_that_of_the_test_database_once_there_is_one(
    database: Any, tmp_path: Path
) -> None:
    connection = database({"NAME": tmp_path / "shop.db"})
    with override_settings(LATE={"DATABASE": ALIAS}):
        app = application.make_app()
        connection.settings_dict["NAME"] = tmp_path / "test.db"
        assert app.url == f"sqlite:///{tmp_path / 'test.db'}"


@django_tasks.task
def report() -> None: ...


@pytest.mark.parametrize(
    ("value", "error"), [(object(), TypeError), (None, SystemExit), ((1, "x"), None)]
)
def test_the_signal_tells_how_an_attempt_ended(value: Any, error: Any) -> None:
    told: list[Any] = []
    finished = lambda task_result, **_: told.append(task_result)  # noqa: E731
    context: Any = SimpleNamespace(
        own=SimpleNamespace(options=None), queue="default", task_id=new_id(0), attempt=1
    )
    context.is_last_attempt = True
    results.task_finished.connect(finished, weak=False)
    try:
        with (
            nullcontext() if error is None else pytest.raises(error),
            results.running(report, context, [], {}, None, "default") as attempt,
        ):
            if error is SystemExit:
                raise SystemExit
            attempt.value = value
    finally:
        results.task_finished.disconnect(finished)
    (result,) = told
    if error is None:
        assert (result.status.value, result.return_value) == ("SUCCESSFUL", [1, "x"])
    else:
        assert (result.status.value, result.errors[0].exception_class) == ("FAILED", error)
    assert result.enqueued_at == results.enqueued_at(context.task_id) <= result.started_at


class _Cut:
    """Counts, in place of Django's connections."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    def __call__(self) -> None:
        self.closed.append("close")


def test_connections_are_looked_at_around_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = _Cut()
    monkeypatch.setattr(ours, "close_old_connections", cut)
    app = application.make_app()

    @app.task
    def work(n: int) -> int:
        cut.closed.append("work")
        return 10 // n

    assert work(5) == 2
    with pytest.raises(ZeroDivisionError):
        work(0)
    assert cut.closed == ["close", "work", "close"] * 2
    assert work.fn.__qualname__.endswith("work")  # A child process finds it by its name.


async def test_those_of_an_async_handler_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = _Cut()
    monkeypatch.setattr(ours, "close_old_connections", cut)
    app = application.make_app()

    @app.task
    async def work() -> None:
        await sync_to_async(cut.closed.append)("work")

    await work()
    assert cut.closed == ["close", "work", "close"]


def test_a_schema_of_another_version_is_a_finding(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database({"NAME": tmp_path / "shop.db"})
    monkeypatch.setattr(checks, "setting", lambda key: ALIAS if key == "DATABASE" else 8)
    assert [each.id for each in checks.check_schema(databases=[ALIAS])] == ["late.W003"]
    (tmp_path / "shop.db").write_text("no database at all, but a text of some length")
    assert [each.id for each in checks.check_schema(databases=[ALIAS])] == ["late.E001"]
    (tmp_path / "shop.db").unlink()
    migrate.upgrade(ours.database_url(ALIAS))
    assert checks.check_schema(databases=[ALIAS]) == []
    assert checks.check_schema(databases=["default"]) == checks.check_schema() == []
    monkeypatch.setattr(checks, "SCHEMA_VERSION", "9999")
    assert [each.id for each in checks.check_schema(databases=[ALIAS])] == ["late.W002"]
    monkeypatch.setattr(checks, "SCHEMA_VERSION", SCHEMA_VERSION)
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("update late_meta set value = '9999' where key = 'schema_version'")
    connection.commit()
    assert checks.check_schema(databases=[ALIAS]) == []
    connection.execute("update late_meta set value = '9999' where key = 'schema_oldest'")
    connection.commit()
    connection.close()
    assert [each.id for each in checks.check_schema(databases=[ALIAS])] == ["late.E002"]


def test_a_transaction_that_a_handler_leaves_open_is_said(
    database: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database({"NAME": tmp_path / "shop.db", "CONN_MAX_AGE": 600})

    @ours.fresh
    def leaves_open(write: bool) -> None:
        transaction.set_autocommit(False, using=ALIAS)
        if write:
            connections[ALIAS].cursor().execute("insert into kept values (1)")

    @ours.fresh
    def ends_it() -> None:
        with transaction.atomic(using=ALIAS):
            connections[ALIAS].cursor().execute("create table if not exists kept (n integer)")

    ends_it()
    leaves_open(False)
    ends_it()
    assert not caplog.records
    assert connections[ALIAS].connection is not None, "it is kept for the next handler"
    leaves_open(True)
    (record,) = caplog.records
    assert "leaves_open has left a transaction of DATABASES['" in record.getMessage()
    assert connections[ALIAS].connection is None


def test_a_handler_of_a_drain_keeps_no_connection(database: Any, tmp_path: Path) -> None:
    database({"NAME": tmp_path / "shop.db", "CONN_MAX_AGE": 600})
    seen: list[bool] = []

    @ours.fresh
    def look() -> None:
        connections[ALIAS].ensure_connection()

    def run() -> None:
        drained.set(True)
        look()
        seen.append(connections[ALIAS].connection is None)

    copy_context().run(run)
    assert seen == [True]


def test_a_database_without_autocommit_is_a_warning(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "setting", lambda _: ALIAS)
    database({"AUTOCOMMIT": False})
    assert [each.id for each in checks.check_settings()] == ["late.W001"]
    connections[ALIAS].settings_dict["AUTOCOMMIT"] = True
    assert checks.check_settings() == []


def test_each_schema_has_a_migration_of_django() -> None:
    (folder,) = migrations.__path__
    names = [path.stem for path in Path(folder).glob("[0-9]*.py")]
    found = any(name.endswith(f"schema_{SCHEMA_VERSION}") for name in names)
    assert found, "add one, which runs `schema.upgrade`"


@pytest.mark.parametrize("wanted", [3, 8, 20])
def test_a_new_database_is_as_wide_as_the_setting_says(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    connection = database({"NAME": tmp_path / "shop.db"})
    editor = SimpleNamespace(connection=connection)
    with override_settings(LATE={"DATABASE": ALIAS, "SHARDS": wanted}):
        schema.upgrade(None, editor)
        assert _shards(ours.database_url(ALIAS)) == wanted
        assert checks.check_schema(databases=[ALIAS]) == []
    with override_settings(LATE={"DATABASE": ALIAS, "SHARDS": 40}):
        schema.upgrade(None, editor)  # There may be tasks by now: the width stays.
        (found,) = checks.check_schema(databases=[ALIAS])
        assert (found.id, _shards(ours.database_url(ALIAS))) == ("late.E003", wanted)
        assert f"has {wanted} shards" in found.msg
        assert "late shards --resize 40" in str(found.hint)
        with Control(ours.database_url(ALIAS)) as control:
            control.lanes.resize("default", 21)
        assert checks.check_schema(databases=[ALIAS]) == []  # The database's number applies now.


def test_a_database_in_memory_is_so_too(database: Any) -> None:
    connection = database({"NAME": ":memory:"})
    with override_settings(LATE={"DATABASE": ALIAS, "SHARDS": 5}), connection.cursor() as cursor:
        schema.upgrade(None, SimpleNamespace(connection=connection))
        cursor.execute("select shards from late_lane")
        assert cursor.fetchall() == [(5,)]


def _shards(url: str) -> int:
    with Control(url) as control:
        (lane,) = control.lanes.all()
    return lane.shards


NEW = ("0.12.0", "0.12.1", "0.12rc1", "1.0", "1.0rc1", "1.0.dev3", "1", "2026.1+local")


@pytest.mark.parametrize("found", [None, "0.8.0", "0.11.0", "0.11rc1", "unknown", *NEW])
def test_only_a_new_django_tasks_is_taken(found: str | None) -> None:
    fits = found in NEW
    raises = nullcontext() if fits else pytest.raises(ImproperlyConfigured)
    with raises as raised:
        tasks_api.refuse_old(found)
    if not fits:
        there = "neither is installed" if found is None else f"this is django-tasks {found}"
        assert there in str(raised.value)
        assert "django-tasks>=0.12" in str(raised.value)


class Router:
    """A project's router."""

    def __init__(self, alias: str | None) -> None:
        self.alias = alias

    def db_for_read(self, model: Any, **_: Any) -> str | None:
        """Choose a database for the tasks that wait, and for nothing else."""
        return self.alias if model is WaitingTask else None


def test_the_list_is_read_where_the_project_s_routers_say(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database({"NAME": tmp_path / "shop.db"})
    with override_settings(LATE={"DATABASE": ALIAS}):
        monkeypatch.setattr(router, "routers", [])
        assert waiting_tasks.read_alias() == ALIAS
        monkeypatch.setattr(router, "routers", [Router("replica")])
        assert waiting_tasks.read_alias() == "replica"
        monkeypatch.setattr(router, "routers", [Router(None)])
        assert waiting_tasks.read_alias() == ALIAS
        assert "manage.py migrate late" in waiting_tasks.sections({})["error"]


@pytest.mark.parametrize(
    "query",
    [
        {"older_s": "soon"},
        {"older_s": "nan"},
        {"older_s": "1e400"},
        {"state": "logged", "after": "1"},
        {"state": "logged", "after": "-1.01a21be4-750d-7003-8000-07971aef27f8"},
        {"state": "logged", "after": "1.x'; drop table late_task; --"},
    ],
)
def test_a_query_that_cannot_be_read_is_a_message(query: dict[str, str]) -> None:
    assert waiting_tasks.sections(query)["error"] == "The filter cannot be read."


def test_a_database_in_memory_has_no_list() -> None:
    assert "in memory" in waiting_tasks.sections({"state": "nonsense"})["error"]
