"""A worker that sleeps is told of commits to its SQLite file, while it asks for that."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import late
from late.config import WorkerConfig
from late.store import open_wake_ups
from late.worker.worker import Worker
from tests.support import sqlite

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")

if sys.platform == "linux":
    from late.store.sqlite.wake_ups import SqliteWakeUps

INSERT = (
    "insert into late_task (shard_id, task_id, queue, name, payload)"
    " values (0, lower(hex(randomblob(16))), 'default', 'note', '{}')"
)
OTHER = "update late_meta set value = value where key = 'schema_version'"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "shop.db"
    sqlite.database(made)
    return made


@contextmanager
def producer(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(OTHER)  # makes the file that is watched
        yield connection


@asynccontextmanager
async def listening(made: SqliteWakeUps) -> AsyncIterator[asyncio.Queue[None]]:
    heard: asyncio.Queue[None] = asyncio.Queue()
    task = asyncio.create_task(made.run(lambda: heard.put_nowait(None), lambda: None))
    try:
        await until(lambda: made.ready or made.unable)
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


async def at_rest(made: SqliteWakeUps) -> None:
    """Wait until no event is to be taken in, and no look is due."""
    await asyncio.sleep(0.05)
    await until(lambda: made._timer is None)


async def test_commits_are_told_of_from_the_announcement_until_it_is_taken_back(
    path: Path,
) -> None:
    made = SqliteWakeUps(f"sqlite:///{path}")
    with producer(path) as service:
        async with listening(made) as heard, asyncio.timeout(120):
            service.execute(INSERT)
            await at_rest(made)
            assert heard.empty()
            assert await made.announce(), "nobody had asked before"
            await at_rest(made)
            while not heard.empty():  # of the commit before, perhaps
                heard.get_nowait()
            assert not await made.announce()
            for _ in range(3):
                service.execute(INSERT)
                await heard.get()
            await made.withdraw()
            service.execute(INSERT)
            await at_rest(made)
            assert heard.empty()
            assert await made.announce(), "it was taken back, so there is one more look"


async def test_its_descriptor_never_blocks_and_no_child_gets_it(path: Path) -> None:
    made = SqliteWakeUps(f"sqlite:///{path}")
    with producer(path):
        async with listening(made):
            assert not os.get_blocking(made._inotify)
            assert not os.get_inheritable(made._inotify)


async def test_other_writes_tell_of_nothing(path: Path) -> None:
    made = SqliteWakeUps(f"sqlite:///{path}")
    with producer(path) as service:
        async with listening(made) as heard, asyncio.timeout(120):
            await made.announce()
            for _ in range(5):
                service.execute(OTHER)
                await at_rest(made)
            service.execute("begin immediate")
            service.execute(INSERT)
            service.execute("rollback")
            await at_rest(made)
            assert heard.empty()


class SlowDisk:
    """A connection that sees a commit at a later look only."""

    def __init__(self, connection: Any, seen: tuple[int, int | None], at: int) -> None:
        self.connection, self.seen, self.at, self.looks = connection, seen, at, 0

    def execute(self, statement: str) -> Any:
        self.looks += 1
        if self.looks < self.at:
            return self.connection.execute("select ?, ?", self.seen)
        return self.connection.execute(statement)


@pytest.mark.parametrize("at", [3, 9])  # within milliseconds, and half a second later
async def test_a_commit_that_is_seen_late_is_told_of(path: Path, at: int) -> None:
    made = SqliteWakeUps(f"sqlite:///{path}")
    with producer(path) as service:
        async with listening(made) as heard, asyncio.timeout(120):
            await made.announce()
            await at_rest(made)
            disk = SlowDisk(made._connection, made._seen, at)
            made._connection = disk  # type: ignore[assignment]
            service.execute(INSERT)
            await heard.get()
            assert disk.looks == at


class Busy:
    """A connection that sees a commit of others at its first look, and ours at a later one."""

    def __init__(self, connection: Any, seen: tuple[int, int | None], at: int) -> None:
        self.connection, (self.version, self.last), self.at = connection, seen, at
        self.looks = 0

    def execute(self, _: str) -> Any:
        self.looks += 1
        now = (self.version + 1, self.last)
        if self.looks >= self.at:
            now = (self.version + 2, (self.last or 0) + 1)
        return self.connection.execute("select ?, ?", now)


@pytest.mark.parametrize("at", [2, 6])
async def test_a_commit_right_behind_another_one_is_told_of(path: Path, at: int) -> None:
    made = SqliteWakeUps(f"sqlite:///{path}")
    with producer(path) as service:
        async with listening(made) as heard, asyncio.timeout(120):
            await made.announce()
            await at_rest(made)
            made._connection = Busy(made._connection, made._seen, at)  # type: ignore[assignment]
            service.execute(INSERT)
            await heard.get()


async def test_a_file_that_was_made_anew_is_watched_again(path: Path) -> None:
    made = SqliteWakeUps(f"sqlite:///{path}")
    with producer(path) as service:
        async with listening(made) as heard, asyncio.timeout(120):
            await made.announce()
            await at_rest(made)
            replace(Path(f"{path}-wal"))
            assert await made.announce(), "another file, so there is one more look"
            await at_rest(made)
            os.truncate(f"{path}-wal", 0)
            await until(lambda: made._timer is not None)
            del service, heard


def replace(path: Path) -> None:
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


async def test_without_the_file_tasks_are_found_by_polling(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma journal_mode=delete")
    made = SqliteWakeUps(f"sqlite:///{path}")
    async with listening(made):
        assert not made.ready
        assert not await made.announce()
    assert "tasks are found by polling" in caplog.text
    assert os.strerror(errno.ENOENT) in caplog.text


PRODUCER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=120)
for line in sys.stdin:
    connection.execute(sys.argv[2])
    print("committed", flush=True)
"""


async def test_a_worker_that_never_polls_runs_what_another_process_commits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = late.App(f"sqlite:///{path}", shards=2)
    ran: asyncio.Queue[None] = asyncio.Queue()

    @app.task(name="note")
    async def note() -> None:
        await ran.put(None)

    worker = Worker(app, settings=WorkerConfig(grace_s=5.0))
    await worker.start()
    try:
        with other_process(path) as commit:
            async with asyncio.timeout(120):
                await until(lambda: worker.tailer._announcement.stands)
                monkeypatch.setattr(
                    "late.tailer.announcement.Announcement.look_after_s", lambda *_: 3_600.0
                )
                for _ in range(3):
                    await asyncio.to_thread(commit)
                    await ran.get()
    finally:
        await worker.stop()
    assert f"{path}-wal" not in map(str, path.parent.iterdir()), "nothing keeps the file open"


@contextmanager
def other_process(path: Path) -> Iterator[Callable[[], object]]:
    """Give a function that lets another process commit a task."""
    with subprocess.Popen(
        [sys.executable, "-c", PRODUCER, str(path), INSERT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    ) as service:  # fmt: skip
        assert service.stdin is not None
        assert service.stdout is not None
        into, out = service.stdin, service.stdout

        def commit() -> object:
            into.write("go\n")
            return out.readline()

        yield commit
        into.close()


def test_off_means_off() -> None:
    from late.worker.assembly import wake_ups_of

    url = "sqlite:////nowhere.db"
    assert wake_ups_of(url, WorkerConfig(waking="off")) is None
    assert open_wake_ups(url, listen_url=None, prepared=False) is not None


def test_a_look_that_is_due_at_once_is_not_asked_for_its_time(path: Path) -> None:
    """uvloop makes a handle without a time of such a timer."""
    uvloop = pytest.importorskip("uvloop")
    made = SqliteWakeUps(f"sqlite:///{path}")

    async def ask_twice() -> None:
        made._loop = asyncio.get_running_loop()
        made._look_at(0.0)
        first = made._timer
        made._look_at(made._loop.time() + 9)
        assert made._timer is first
        await made.withdraw()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask_twice())


async def test_looks_for_the_sake_of_writes_are_spaced(path: Path) -> None:
    """Whatever time has passed since the last look: the clock is a number."""
    for since_s in (0.0, 0.0005, 0.001, 0.0015, 0.5, 5.0):
        made, asked = SqliteWakeUps(f"sqlite:///{path}"), []
        reading, writing = os.pipe()
        try:
            os.write(writing, b"event")
            made._inotify, made._watch, made._looked_s = reading, 1, 100.0
            made._loop = Clock(100.0 + since_s, asked)  # type: ignore[assignment]
            made._written()
        finally:
            os.close(reading)
            os.close(writing)
        assert asked == [pytest.approx(max(100.002, 100.001 + since_s))]


class Clock:
    """An event loop whose time stands, and which keeps when it is asked to call."""

    def __init__(self, now_s: float, asked: list[float]) -> None:
        self.now_s, self.asked = now_s, asked

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, _: Callable[[], None]) -> None:
        self.asked.append(when_s)
