"""A PostgreSQL that stands in for CockroachDB in the one thing that the log needs of it.

Every version of a row of the log bears the time of its commit, and a read at T is over all
commits up to T: a deferred trigger stamps what a transaction wrote while it commits, under a
shared lock; a read takes that lock alone first, so that whoever was stamped at or before T is
visible to it. A rewritten row gets a new stamp, as there. Nothing else is CockroachDB's: not its
planner, its errors or its types. What runs here shows that the statements say what they should,
and never that CockroachDB understands them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection, crdb
from psycopg.crdb import CrdbConnectionInfo

from late.outbox.adapters import psycopg as outbox_psycopg
from late.outbox.statements import COCKROACH
from late.schema import migrate
from late.store.cockroach import statements as cockroach_sql
from tests import servers
from tests.conformance.backends import Backend, Raw

STAMPS = """
alter table late_task add column crdb_internal_mvcc_timestamp numeric not null default 0;
create function late_stamp() returns trigger language plpgsql as $$
begin
  perform pg_advisory_xact_lock_shared(26257);
  update late_task set crdb_internal_mvcc_timestamp
      = trunc(extract(epoch from clock_timestamp()) * 1000000000) + 0.0000000001
   where shard_id = new.shard_id and task_id = new.task_id;
  return null;
end $$;
create constraint trigger late_stamp after insert or update on late_task
  deferrable initially deferred for each row when (pg_trigger_depth() = 0)
  execute function late_stamp();
create function late_read_at(us bigint) returns void language plpgsql as $$
begin
  perform pg_advisory_xact_lock(26257);
end $$;
create schema crdb_internal;
create function crdb_internal.cluster_id() returns text language sql
  as $$ select current_database()::text $$;
"""


def stand_in(admin: str) -> str:
    """A database with the schema of CockroachDB and stamps of its own; its URL."""
    return servers.copied_database(admin, _fill).replace("postgresql", "cockroachdb", 1)


def _fill(plain: str) -> None:
    url = plain.replace("postgresql", "cockroachdb", 1)
    with Connection.connect(plain.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(migrate.sql(url).encode())
        connection.execute(STAMPS)


def plain_url(url: str) -> str:
    """What psycopg and PostgreSQL's own tools take."""
    return url.replace("cockroachdb", "postgresql", 1).replace("+psycopg", "", 1)


def pretend(patch: pytest.MonkeyPatch) -> None:
    """Take a PostgreSQL for a CockroachDB, and read through the stand-in."""
    patch.setattr(crdb.AsyncCrdbConnection, "is_crdb", classmethod(lambda *_: True))
    patch.setattr(CrdbConnectionInfo, "server_version", 230100)
    patch.setattr(cockroach_sql, "begin_at", lambda us: f"select late_read_at({us})")
    patch.setattr(outbox_psycopg, "_dialect", lambda _: COCKROACH)


def _admin() -> str:
    admin = servers.postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install a server")
    return admin


STAND_IN = Backend(
    name="stand-in",
    create=lambda _: stand_in(_admin()),
    create_empty=lambda _: servers.fresh_database(_admin()),
    drop=lambda url: servers.drop_database(_admin(), plain_url(url)),
    raw=lambda url: Raw(psycopg.connect(plain_url(url), autocommit=True), mark="%s"),
    make_old=lambda held: held.execute("update late_task set created_at_us = 1"),
    prunes_rows=True,
    version=lambda: "PostgreSQL, standing in",
)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    pretend(monkeypatch)
    return STAND_IN


@pytest.fixture
def url(backend: Backend, tmp_path: Path) -> Iterator[str]:
    made = backend.create(tmp_path)
    yield made
    backend.drop(made)
