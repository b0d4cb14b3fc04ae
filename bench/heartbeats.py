"""`python -m bench.heartbeats`: what a heartbeat of one worker costs, by the size of its fleet.

It starts a PostgreSQL of its own. The rows of the other workers and their leases are written by
hand, and their leases are renewed before each heartbeat, as they would be once a second. Bytes are
counted on the way between the two; processor time is that of the server's process for this worker,
and of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from bench.peers.table import rows
from late.schema import migrate
from late.store.base import WorkerInfo
from late.store.common.statement_counts import statements
from late.store.postgres.store import PostgresStore
from late.tailer.placement import announced
from late.testing.servers.postgres import PostgresServer

SIZES = ((4, 32), (16, 128), (64, 512), (1000, 10_000))
GROUPS = 5
TTL_S = 5.0
NOW = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
RENEW = f"update late_worker set expires_at_us = {NOW} + 5000000 where worker_id <> 'me'"
MOVE = "update late_lease set epoch = epoch + 1 where shard_id = 1 and consumer_group = 'group-0'"
BACKENDS = "select pid from pg_stat_activity where application_name = 'late'"
RAISE = (
    "insert into late_meta as m (key, value) values ('changes:lease:1', '1')"
    " on conflict (key) do update set value = (m.value::bigint + 1)::text"
)


class Relay:
    """Passes bytes on between one client and the server, and counts them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bytes = 0

    @asynccontextmanager
    async def run(self) -> AsyncIterator[str]:
        """Yield the URL to use in place of the server's."""
        parts = urlsplit(self.url)
        self._target = (parts.hostname, parts.port)
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            yield parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{port}")).geturl()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self.bytes += len(data)
            writer.write(data)
            await writer.drain()
        writer.close()


def fill(connection: psycopg.Connection[Any], workers: int, shards: int) -> None:
    """Write the rows of all workers but one, and who holds each shard."""
    connection.execute("truncate late_worker, late_lease")
    groups = [f"group-{n}" for n in range(GROUPS)] if workers > 100 else ["group-0"]
    each = shards // len(groups)
    names = [f"w-{n:016x}" for n in range(workers - 1)]
    with connection.cursor() as cursor:
        cursor.executemany(
            "insert into late_worker (worker_id, expires_at_us, started_at_us, address,"
            " consumer_groups, capacity, version) values (%s, 0, 0, %s, '[\"group-0\"]', 1, %s)",
            [(name, f"host-{n}:4711", announced("0.1.0")) for n, name in enumerate(names)],
        )
        cursor.executemany(
            "insert into late_lease (consumer_group, shard_id, owner, epoch)"
            " values (%s, %s, %s, 7)",
            [(g, n, names[n % len(names)]) for g in groups for n in range(each)],
        )
    connection.execute("update late_lane set shards = %s", (each,))
    connection.execute("vacuum analyze late_worker, late_lease, late_meta")


def cpu_s(pids: Sequence[tuple[int]]) -> float:
    """Return the processor time that these processes have used."""
    spent = (Path(f"/proc/{pid}/schedstat").read_text().split()[0] for (pid,) in pids)
    return sum(map(int, spent)) / 1e9


async def measured(url: str, workers: int, shards: int, beats: int, *, moves: bool) -> list[str]:
    relay, me = Relay(url), WorkerInfo("me", "host:1", ("group-0",), version=announced("0.1.0"))
    with psycopg.connect(url, autocommit=True) as connection:
        fill(connection, workers, shards)
        connection.execute(RENEW)
        async with relay.run() as through:
            store = PostgresStore(through)
            await store.open()
            fleet = await store.heartbeat(me, TTL_S)
            assert len(fleet.workers) == workers
            assert len(fleet.leases) == shards
            await store.heartbeat(me, TTL_S)
            pids = connection.execute(BACKENDS).fetchall()
            spent = [0.0] * 4
            for _ in range(beats):
                connection.execute(RENEW)
                if moves:
                    connection.execute("begin")
                    connection.execute(MOVE)
                    connection.execute(RAISE)
                    connection.execute("commit")
                before = (relay.bytes, cpu_s(pids), time.process_time())
                counted = statements.total()
                fleet = await store.heartbeat(me, TTL_S)
                after = (relay.bytes, cpu_s(pids), time.process_time())
                spent[3] += statements.total() - counted
                for place in range(3):
                    spent[place] += after[place] - before[place]
            assert len(fleet.workers) == workers
            await store.close()
    sent, server_s, worker_s, sent_statements = (each / beats for each in spent)
    return [
        f"{workers:,} / {shards:,}",
        "one shard moves" if moves else "nothing",
        f"{sent_statements:.1f}",
        f"{sent:,.0f}",
        f"{server_s * 1e3:.2f}",
        f"{worker_s * 1e3:.2f}",
    ]


async def table(beats: int, sizes: list[int]) -> str:
    body = []
    with PostgresServer() as server:
        migrate.upgrade(server.url)
        for workers, shards in SIZES:
            for moves in (False, True) if workers in sizes else ():
                body += [await measured(server.url, workers, shards, beats, moves=moves)]
    head = ["workers / shards", "between two", "statements", "bytes", "server, ms", "worker, ms"]
    return rows(head, body)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.heartbeats", description=__doc__)
    parser.add_argument("--beats", type=int, default=100, help="heartbeats for each row")
    parser.add_argument("--workers", type=int, nargs="*", default=[size for size, _ in SIZES])
    asked = parser.parse_args()
    print(asyncio.run(table(asked.beats, asked.workers)), flush=True)


if __name__ == "__main__":
    main()
