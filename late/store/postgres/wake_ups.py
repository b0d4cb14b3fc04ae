"""Notices of commits by LISTEN, asked for by a sequence.

The trigger of the log (`migrations/0012_functions.sql`) notifies where the last value of the
sequence `late_waiting`, seconds of the database's clock, lies ahead. So an announcement is a
`setval`, which every statement sees at once, whatever its snapshot; and that of a worker that died
ends by itself. The sequence is unlogged where PostgreSQL has that (15 and newer): to write it then
costs no transaction id, no WAL and no flush.

LISTEN needs a session. A PgBouncer in transaction mode has none to give, and accepts LISTEN all the
same, so each new connection first waits for a notice of another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable
from typing import Any

import psycopg

from late.model.backoff import Backoff
from late.observability import repeats
from late.schema.notices import CHANNEL, FLEET, LOG_SCHEMA, WITHDRAWN
from late.store.postgres.connection import Connection, connect, conninfo_of, translate

TEST_S = 2.0
"""The longest time that a connection waits for its own notice."""
CALL_S = 5.0
LEAVE_S = 1.0
CHECK_S = 60.0
"""The time between two checks of a connection on which nothing happens."""
AGAIN_S = 300.0
"""The time after which what cannot work is tried again."""
ANNOUNCED_S = 20
"""An announcement stands for this time unless it is renewed; seconds."""

FACTS = f"""
select {LOG_SCHEMA}, current_setting('max_prepared_transactions')::int,
       to_regclass('late_waiting') is not null
       and has_sequence_privilege(to_regclass('late_waiting'), 'UPDATE')
"""
# A time further ahead than anybody announces is from before the clock was set back, perhaps of a
# worker that is dead by now. It must not stand until then.
ANNOUNCE = f"""
select setval('late_waiting', t + {ANNOUNCED_S}), s.last_value <= t
  from late_waiting s, (select ceil(extract(epoch from clock_timestamp()))::bigint as t) c
 where s.last_value not between t + {ANNOUNCED_S} - 1 and t + {ANNOUNCED_S}
"""
# It tells the others: they would sleep on for seconds, and nobody would tell them of commits.
WITHDRAW = (
    f"select setval('late_waiting', 1), pg_notify('{CHANNEL}', {LOG_SCHEMA} || '{WITHDRAWN}')"
)

logger = logging.getLogger("late.notify")


class Unable(Exception):
    """Commits cannot be told of here; the message says why."""


class PostgresWakeUps:
    """See `late.store.base.WakeUps`. It has one connection, made by `run`.

    Args:
        url: where LISTEN works: the server itself, or a pooler in session mode.
        prepared: announce also where the server allows prepared transactions. A transaction that
            has notified cannot be prepared.

    Raises:
        ConfigError: the URL cannot be read.
    """

    def __init__(self, url: str, *, prepared: bool = False) -> None:
        self._conninfo = conninfo_of(url)
        self._prepared = prepared
        self._connection: Connection | None = None
        self._heard: Callable[[], None] = lambda: None
        self._lapsed: Callable[[], None] = lambda: None
        self._changed: Callable[[], None] = lambda: None
        self._schema = ""
        self._socket = -1
        self._asked = False
        self._broken = asyncio.Event()
        self._calls = asyncio.Lock()
        self._backoff = Backoff(random.Random())
        self.unable = ""
        """Why there are no notices; empty if there are, or if the database is away."""

    @property
    def ready(self) -> bool:
        return self._connection is not None

    @property
    def tells_of_fleet(self) -> bool:
        return True

    async def run(
        self,
        heard: Callable[[], None],
        lapsed: Callable[[], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Listen until cancelled, and connect again after an error."""
        self._heard, self._lapsed, self._changed = heard, lapsed, changed
        while True:
            try:
                await self._listen()
                wait_s = self._backoff.next_s()
            except Unable as refused:
                wait_s = AGAIN_S
                if self.unable != str(refused):
                    self.unable = str(refused)
                    logger.warning("no notices of commits, tasks are found by polling: %s", refused)
            except (psycopg.Error, TimeoutError, OSError) as error:
                wait_s = self._backoff.next_s()
                _tell_away(error)
            await asyncio.sleep(wait_s)

    async def announce(self) -> bool:
        """Ask for notices, for `ANNOUNCED_S` seconds; True: nobody had asked."""
        self._asked = True
        rows = await self._call(ANNOUNCE)
        return any(lapsed for _, lapsed in rows)

    async def withdraw(self) -> None:
        """Take that back, for all workers."""
        self._asked = False
        await self._call(WITHDRAW)

    async def _listen(self) -> None:
        """Make the connection, and return when it is broken.

        Raises:
            Unable: there can be no notices.
            psycopg.Error, TimeoutError, OSError: the database did not answer.
        """
        async with asyncio.timeout(TEST_S + 4 * CALL_S):
            connection = await connect(self._conninfo)
        loop = asyncio.get_running_loop()
        self._socket = descriptor = connection.fileno()
        try:
            async with asyncio.timeout(2 * CALL_S + TEST_S):
                self._schema = await self._check(connection)
            self._broken.clear()
            self._backoff.reset()
            # Of what comes while a statement runs: the driver takes it off the socket itself.
            connection.add_notify_handler(lambda notice: self._take(notice.payload))
            self._connection, self.unable = connection, ""
            loop.add_reader(descriptor, self._read)
            while not self._broken.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_S):
                        await self._broken.wait()
                if not self._broken.is_set():
                    await self._call("select 1")
        finally:
            loop.remove_reader(descriptor)
            if self._asked and self._connection is not None:
                # Nobody would hear what is told from now on; others that sleep ask again soon.
                with contextlib.suppress(psycopg.Error, TimeoutError, OSError):
                    async with asyncio.timeout(LEAVE_S):
                        await connection.execute(WITHDRAW)
            self._connection = None
            await connection.close()

    async def _call(self, statement: str) -> list[Any]:
        """Run a statement on the connection that listens; after an error it is made anew."""
        async with self._calls:
            connection = self._connection
            if connection is None:
                return []
            loop = asyncio.get_running_loop()
            # The driver watches the socket itself while it waits for an answer.
            loop.remove_reader(self._socket)
            try:
                async with asyncio.timeout(CALL_S):
                    cursor = await connection.execute(statement)
                    rows = await cursor.fetchall()
                loop.add_reader(self._socket, self._read)
                self._read()
                return rows
            except (psycopg.Error, TimeoutError, OSError) as error:
                _tell_away(error)
                self._connection = None
                self._broken.set()
                self._lapsed()
                return []

    def _take(self, payload: str) -> None:
        """Take in a notice. Its payload begins with the schema of the log."""
        if payload == self._schema:
            self._heard()
        elif payload == self._schema + WITHDRAWN:
            self._lapsed()
        elif payload == self._schema + FLEET:
            self._changed()

    def _read(self) -> None:
        """Take in what has come on the socket."""
        connection = self._connection
        if connection is None:
            return
        try:
            connection.pgconn.consume_input()
            while (notice := connection.pgconn.notifies()) is not None:
                self._take(notice.extra.decode(errors="replace"))
        except psycopg.Error:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._connection = None
            self._broken.set()
            self._lapsed()

    async def _check(self, connection: Connection) -> str:
        """Listen, and hear what another connection tells; return the schema of the log.

        Raises:
            Unable: there can be no notices, and why.
        """
        cursor = await connection.execute(FACTS)
        row: Any = await cursor.fetchone()
        schema, transactions, allowed = row
        if not allowed:
            raise Unable(
                "the sequence late_waiting is missing, or this role may not write it: run `late"
                " migrate` and `late roles sql`"
            )
        if transactions and not self._prepared:
            raise Unable(
                f"max_prepared_transactions is {transactions}, and a transaction that has notified"
                " cannot be prepared: see docs/waking.md"
            )
        word = secrets.token_hex(8)
        await connection.execute(f"listen {CHANNEL}")
        # From another session: behind a pooler the answer to a statement may carry its own notice,
        # and what comes between two statements is lost.
        async with await connect(self._conninfo) as other:
            await other.execute("select pg_notify(%s, %s)", (CHANNEL, word))
        with contextlib.suppress(TimeoutError):
            async for notice in connection.notifies(timeout=TEST_S):
                if notice.payload == word:
                    return str(schema)
        raise Unable(
            "LISTEN does not work over this connection (a pooler in transaction mode?): set"
            " LATE_LISTEN_URL to the server's own address"
        )


def _tell_away(error: Exception) -> None:
    message = "no notices of commits for now: %s"
    repeats.default.log(logger, message, translate(error), level=logging.INFO)
