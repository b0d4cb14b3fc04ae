"""Notices of commits when others misbehave: a storm, dead sleepers, a crash of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import late
from late.config import WorkerConfig
from late.control import Control
from late.notify import notifier
from late.outbox import connect
from late.schema import migrate
from late.store.postgres.wake_ups import ANNOUNCED_S, CHANNEL, PostgresWakeUps
from late.tailer import announcement, read_hints
from late.worker.worker import Worker
from tests import servers
from tests.integration.kill_app import count
from tests.integration.kill_kit import Fleet
from tests.integration.waking_kit import (
    INSERT,
    database,
    listening,
    nothing_heard,
    producer,
    until,
)

AHEAD = "select last_value - extract(epoch from clock_timestamp()) from late_waiting"
RUBBISH = (
    f"select pg_notify('{CHANNEL}', payload) from (select '' payload union all"
    " select repeat('x', 7900) || n from generate_series(1, 500) n union all"
    " select 'public' || n from generate_series(1, 20000) n union all"
    " select U&'\\00fc\\2603 ' || n from generate_series(1, 500) n) s"
)
FORGED = 3_000
FORGE = f"""
do $$ begin
  for n in 1..{FORGED} loop
    perform pg_notify('{CHANNEL}', current_schema()::text);
    commit;
  end loop;
end $$
"""


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


class Asleep:
    """A worker that has announced that it sleeps."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        app = late.App(url, shards=2)
        self.ran: asyncio.Queue[int] = asyncio.Queue()
        self.told = 0

        @app.task
        async def note(number: int) -> None:
            await self.ran.put(number)

        self._url = url
        self._note = note
        self.worker = Worker(app, settings=WorkerConfig(waking="on", grace_s=5.0))
        tailer = self.worker.tailer
        heard = tailer.told

        def told() -> None:
            self.told += 1
            heard()

        monkeypatch.setattr(tailer, "told", told)
        monkeypatch.setattr(notifier, "_here", set())  # no hints within this process

    async def __aenter__(self) -> Asleep:
        await self.worker.start()
        await self.stands()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.worker.stop()

    async def stands(self) -> None:
        await until(lambda: self.worker.tailer._announcement.stands)

    async def runs(self, number: int) -> None:
        with connect(self._url) as tx:
            self._note.enqueue(tx, number)
        async with asyncio.timeout(120):
            assert await self.ran.get() == number


async def test_a_storm_of_rubbish_leads_to_no_look(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Asleep(url, monkeypatch) as asleep:
        with closing(producer(url)) as outsider:
            await asyncio.to_thread(outsider.execute, RUBBISH)
        await asleep.runs(1)  # told of behind all the others: they have been heard
        assert asleep.told <= 2, "only what names the schema of the log counts"
        assert asleep.worker.tailer._wake_ups.ready  # type: ignore[union-attr]


async def test_a_storm_of_forged_notices_leads_to_few_looks(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Asleep(url, monkeypatch) as asleep:
        tailer = asleep.worker.tailer
        before, began_s = tailer.reads, asyncio.get_running_loop().time()
        with closing(producer(url)) as outsider:
            await asyncio.to_thread(outsider.execute, FORGE)
        await until(lambda: asleep.told >= FORGED)
        took_s = asyncio.get_running_loop().time() - began_s
        # What all of them may cost, and a poll every 5 ms while nothing is announced.
        bound = announcement.NOTICES + read_hints.CREDIT + 10
        per_s = announcement.NOTICES_PER_S + read_hints.CREDIT_PER_S + 1 / 0.005
        assert tailer.reads - before <= bound + took_s * per_s
        await asleep.runs(1)
        await asleep.stands()


async def test_a_notice_that_comes_with_an_answer_is_heard(url: str) -> None:
    """It comes while a statement runs, such as the one that renews the announcement."""
    made = PostgresWakeUps(url, prepared=True)
    async with listening(made) as heard, asyncio.timeout(120):
        await made._call(f"select pg_notify('{CHANNEL}', current_schema()::text)")
        await heard.get()
        await made._call(f"select pg_notify('{CHANNEL}', 'another')")
        assert await nothing_heard(heard, made)


async def test_a_time_far_ahead_does_not_stand(url: str) -> None:
    """Announced before the clock was set back, or by somebody else: it would cost until then."""
    made = PostgresWakeUps(url, prepared=True)
    async with listening(made) as heard, asyncio.timeout(120):
        with closing(producer(url)) as service:
            ahead = "select setval('late_waiting', extract(epoch from now())::bigint + 86400)"
            service.execute(ahead)
            service.execute(INSERT)
            await heard.get()
            await made.announce()
            assert service.execute(AHEAD).fetchall()[0][0] <= ANNOUNCED_S + 1
            await until(lambda: service.execute(AHEAD).fetchall()[0][0] < 0)
            service.execute(INSERT)
            assert await nothing_heard(heard, made)


async def test_producers_do_not_pay_for_a_sleeper_who_was_killed(url: str, tmp_path: Path) -> None:
    """Its row in `late_worker` is there for an hour; its announcement ends within seconds."""
    fleet = Fleet(url, tmp_path, {"LATE_WAKING": "on"})
    made = PostgresWakeUps(url, prepared=True)
    try:
        with closing(producer(url)) as service:
            fleet.start()
            await until(lambda: service.execute(AHEAD).fetchall()[0][0] > 0)
            await asyncio.to_thread(fleet.kill)
            await until(lambda: service.execute(AHEAD).fetchall()[0][0] < 0)
            assert service.execute("select count(*) from late_worker").fetchall() == [(1,)]
            async with listening(made) as heard:
                with connect(url) as tx:
                    for number in range(9):
                        count.enqueue(tx, number)
                assert await nothing_heard(heard, made)
            fleet.start()
            await until(lambda: fleet.started() >= 9)
            assert await asyncio.to_thread(fleet.stop) == [0]
            with Control(url) as control:
                assert control.verify().problems == ()
                assert sum(control.verify().ledgers[n].ended.get("done", 0) for n in range(8)) == 9
    finally:
        fleet.close()


def test_a_crash_of_the_server_takes_the_announcement_and_no_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unlogged sequence begins anew after a crash; who sleeps announces it again."""
    with servers.own_server({"fsync": "off", "max_prepared_transactions": "0"}) as server:
        migrate.upgrade(server.url)

        async def crash() -> None:
            async with Asleep(server.url, monkeypatch) as asleep:
                await asleep.runs(1)
                await asleep.stands()
                await asyncio.to_thread(server.kill)
                await until(lambda: not asleep.worker.tailer._wake_ups.ready)  # type: ignore[union-attr]
                await asyncio.to_thread(server.start)
                await asleep.runs(2)
                await asleep.stands()
                with closing(producer(server.url)) as service:
                    await until(lambda: service.execute(AHEAD).fetchall()[0][0] > 0)
                before = asleep.told
                await asleep.runs(3)
                # A look may have found it before: the notice comes all the same.
                await until(lambda: asleep.told > before)
            with Control(server.url) as control:
                assert control.verify().problems == ()

        asyncio.run(crash())
        # And where nobody listens, an insert works and tells nobody.
        server.kill()
        server.start()
        with closing(producer(server.url)) as service:
            if service.info.server_version >= 150_000:
                assert service.execute("select last_value from late_waiting").fetchall() == [(1,)]
            service.execute(INSERT)
