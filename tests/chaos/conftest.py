"""What the storms run against: each test has a database of its own, behind networks of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from late.schema import migrate
from late.testing.servers.postgres import find_binaries
from tests import servers
from tests.chaos.network import Direct, Networks, TcpNetworks
from tests.chaos.plan import Traits
from tests.chaos.producers import TABLE
from tests.chaos.target import Target
from tests.conformance.backends import Backend

TTL_S, TTL_EMULATED_S = 2.0, 5.0
"""A heartbeat that waits its turn on an emulator must not look like a worker's death."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the processes of a storm write."""
    made = tmp_path / "history"
    made.mkdir()
    return made


@pytest.fixture
def target(backend: Backend, url: str) -> Target:
    """A database on the servers that all tests share: nobody kills those."""
    return _target(backend, url)


@pytest.fixture
def mortal(request: pytest.FixtureRequest, backend: Backend) -> Iterator[Target]:
    """A database whose server may be killed, where one can be started and survives that."""
    if backend.network != "tcp" or not backend.two_phases or find_binaries() is None:
        yield _target(backend, request.getfixturevalue("url"))
        return
    with servers.own_server({}) as server:
        url = server.url_of("storm")
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("create database storm")
        migrate.upgrade(url)
        made = _target(backend, url)
        made.server = server
        yield made


def _target(backend: Backend, url: str) -> Target:
    with closing(backend.raw(url)) as raw:
        raw.execute(f"create table {TABLE} (tx varchar(64) primary key)")
    traits = Traits(
        savepoints=backend.savepoints,
        prepared=backend.two_phases,
        network=bool(backend.network),
        writers=backend.network == "tcp",
    )

    def heal() -> None:
        if backend.two_phases:
            end_prepared(url)

    return Target(
        backend.name,
        url,
        traits,
        _networks(backend, url),
        ttl_s=TTL_EMULATED_S if backend.emulated else TTL_S,
        heal=heal,
        abort=(lambda: cancel_settlements(url)) if backend.two_phases else None,
    )


def _networks(backend: Backend, url: str) -> Networks:
    if backend.network == "tcp":
        return TcpNetworks(url)
    if backend.network == "grpc":
        from tests.chaos.network_grpc import GrpcNetworks

        return GrpcNetworks(url, servers.spanner_host() or "")
    return Direct(url)


def end_prepared(url: str) -> None:
    """Whoever prepared them is dead: half of them is committed, the others are rolled back."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "select gid from pg_prepared_xacts where database = current_database() order by gid"
        ).fetchall()
        for number, (gid,) in enumerate(rows):
            connection.execute(f"{'commit' if number % 2 else 'rollback'} prepared '{gid}'")


def cancel_settlements(url: str) -> None:
    """Hold what wants to settle, as a lock of an operator does, and cancel it."""
    waiting = (
        "from pg_locks l join pg_stat_activity a using (pid)"
        " where not l.granted and l.relation = 'late_settlement'::regclass"
    )
    with (
        psycopg.connect(url) as holder,
        psycopg.connect(url, autocommit=True) as other,
    ):
        holder.execute("lock table late_settlement in exclusive mode")
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            if other.execute(f"select pg_cancel_backend(a.pid) {waiting}").fetchall():
                return
            time.sleep(0.01)
