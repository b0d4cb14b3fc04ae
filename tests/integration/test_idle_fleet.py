"""An idle fleet on PostgreSQL asks the database for next to nothing."""

from __future__ import annotations

import asyncio
import math
from contextlib import closing

import psycopg
import pytest

import late
from late.config import load
from late.schema import migrate
from late.testing.servers.postgres import find_binaries
from late.worker.worker import Worker
from tests import servers

WORKERS = 2
FOR_S = 6.0
TRIES = 8
"""A server tells of a transaction up to ten seconds later, so those of the start may come late."""
TRANSACTIONS_PER_S = 4.0
"""For each worker: a heartbeat a second, some looks at the log and the timers every five, and as
much again for a machine that is busy. Polls of settings, offers and the log would be ten."""
FINISHED = "select xact_commit + xact_rollback from pg_stat_database where datname = %s"


def test_it_sends_few_transactions() -> None:
    if find_binaries() is None:
        pytest.skip("no PostgreSQL: binaries are needed to start a server of one's own")
    with servers.own_server({"fsync": "off", "max_prepared_transactions": "0"}) as server:
        migrate.upgrade(server.url)
        asyncio.run(_idle(server.url))


async def _idle(url: str) -> None:
    workers = [Worker(late.App(url), settings=load(prune_every_s=3600)) for _ in range(WORKERS)]
    for worker in workers:
        await worker.start()
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(120):
            # Asleep: told of commits, and the next look is seconds away. Looks are not in step,
            # so hardly ever are all of them seconds away at the same time.
            asleep: set[str] = set()
            while len(asleep) < WORKERS:
                asleep |= {w.id for w in workers if w.tailer._due_s > loop.time() + 3}
                await asyncio.sleep(0.1)
        rates: list[float] = []
        while len(rates) < TRIES and min(rates, default=math.inf) > TRANSACTIONS_PER_S:
            began_s, before = loop.time(), await asyncio.to_thread(_finished, url)
            await asyncio.sleep(FOR_S)
            sent = await asyncio.to_thread(_finished, url) - before
            rates.append(sent / (loop.time() - began_s) / WORKERS)
        assert min(rates) <= TRANSACTIONS_PER_S, rates
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))


def _finished(url: str) -> int:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        (row,) = connection.execute(FINISHED, (connection.info.dbname,)).fetchall()
    return int(row[0])
