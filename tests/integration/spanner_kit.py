"""An emulator of the test's own, with faults if wanted, and databases on it."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from google.cloud import spanner

from late.testing.servers.spanner import ensure_instance
from tests.servers import spanner_host

PROJECT, INSTANCE = "late-test", "late"
TABLES = (
    """CREATE TABLE late_task (
  shard_id INT64 NOT NULL,
  created_at TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  task_id STRING(36) NOT NULL, queue STRING(MAX) NOT NULL, name STRING(MAX) NOT NULL,
  payload BYTES(MAX) NOT NULL, headers STRING(MAX), options STRING(MAX)
) PRIMARY KEY (shard_id, created_at, task_id)""",
    """CREATE TABLE late_unique (
  unique_key STRING(MAX) NOT NULL, task_id STRING(36) NOT NULL, digest STRING(MAX) NOT NULL,
  created_at_us INT64 NOT NULL, expires_at_us INT64) PRIMARY KEY (unique_key)""",
    "CREATE TABLE late_meta (key STRING(MAX) NOT NULL, value STRING(MAX)) PRIMARY KEY (key)",
)
TRIP = "CREATE TABLE trip (id INT64 NOT NULL) PRIMARY KEY (id)"


@contextmanager
def emulator(*flags: str) -> Iterator[str]:
    """Start one on a free loopback port; yields `host:port`. Killed at the end.

    Where there is no program to start, the emulator of the session is as good, but has no faults.
    """
    gcloud = shutil.which("gcloud")
    program = Path(gcloud or "/").resolve().parent / "cloud_spanner_emulator" / "emulator_main"
    if not program.exists():
        shared = None if flags else spanner_host()
        if shared is not None:
            yield shared
            return
        pytest.skip("no Spanner emulator: gcloud components install cloud-spanner-emulator")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    process = subprocess.Popen(
        [str(program), f"--host_port={host}", *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while not _listens(host):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield host
    finally:
        process.kill()
        process.wait()


@contextmanager
def environment(host: str) -> Iterator[None]:
    """What every client of the emulator reads."""
    wanted = {
        "SPANNER_EMULATOR_HOST": host,
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "GOOGLE_CLOUD_SPANNER_MULTIPLEXED_SESSIONS_FOR_RW": "false",
        "GOOGLE_CLOUD_SPANNER_MULTIPLEXED_SESSIONS_PARTITIONED_OPS": "false",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def fresh(*ddl: str) -> str:
    """A new database on the emulator that the environment names; its URL."""
    client: Any = spanner.Client(project=PROJECT, disable_builtin_metrics=True)
    instance = client.instance(
        INSTANCE,
        configuration_name=f"projects/{PROJECT}/instanceConfigs/emulator-config",
        node_count=1,
        display_name=INSTANCE,
    )
    ensure_instance(instance)
    name = f"late-{secrets.token_hex(6)}"
    instance.database(name, ddl_statements=ddl).create().result(30)
    return f"spanner+spanner:///projects/{PROJECT}/instances/{INSTANCE}/databases/{name}"


def rows(database: Any, table: str, *columns: str) -> list[list[Any]]:
    """What is committed, in key order."""
    with database.snapshot() as snapshot:
        found = list(snapshot.read(table, columns, spanner.KeySet(all_=True)))
    return sorted(found)


def _listens(host: str) -> bool:
    name, _, port = host.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((name, int(port))) == 0
