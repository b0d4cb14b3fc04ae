"""A file of SQLite that is replaced, moved or deleted under a running worker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import late
from late.control import Control
from late.dispatcher.local import child_main
from late.errors import DatabaseReplaced, SchemaMismatch
from late.handler.classify import raised
from late.outbox import connections
from late.schema import held_files
from late.schema.engine import make_engine, reading
from late.store.base import WorkerInfo
from late.store.sqlite.store import SqliteStore
from late.worker.worker import Worker
from tests.integration.shared_kit import business_file, until
from tests.support import sqlite

ME = WorkerInfo("me", "host:1", ("default",), handlers="{}")
PARTS = ("", "-wal", "-shm")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with business_file(tmp_path) as made:
        yield made


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def moved(path: Path) -> None:
    for part in PARTS:
        if os.path.exists(f"{path}{part}"):
            os.rename(f"{path}{part}", f"{path}.old{part}")


def replaced(path: Path) -> None:
    """Put a copy of the file in its place, as a restore does."""
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    moved(path)
    os.rename(copy, path)


def renamed_over(path: Path) -> None:
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    os.replace(copy, path)


def made_again(path: Path) -> None:
    kept = os.open(path, os.O_RDONLY)  # so that its inode is not given again
    for part in PARTS:
        Path(f"{path}{part}").unlink(missing_ok=True)
    sqlite.database(path)
    os.close(kept)


async def both_tasks(url: str, ran: list[str]) -> tuple[late.App, Callable[[], None]]:
    app = late.App(url)

    @app.task
    def once(ctx: late.Context) -> None:
        ran.append("once")
        with ctx.once() as tx:
            tx.execute("insert into effect values ('once', 1)")

    @app.task(transaction=True)
    def shared(ctx: late.Context) -> None:
        ran.append("shared")
        ctx.tx.execute("insert into effect values ('shared', 1)")

    producer = sqlite3.connect(path_of(url))  # kept open: it stays on the old file
    producer.execute("select * from late_task").fetchall()

    def enqueue() -> None:
        with producer:
            once.enqueue(producer)
            shared.enqueue(producer)

    return app, enqueue


def counted(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as tx:
        return int(tx.execute(f"select count(*) from {table}").fetchone()[0])


@pytest.mark.parametrize("change", [replaced, moved, renamed_over, made_again])
async def test_a_worker_stops_when_its_file_is_another_one(
    url: str, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    app, _enqueue = await both_tasks(url, ran)
    worker = Worker(app, settings=late.config.WorkerConfig(grace_s=5.0))
    await worker.start()
    await until(lambda: worker.trusted)
    with caplog.at_level(logging.ERROR, "late.worker"):
        change(path_of(url))
        code = await asyncio.wait_for(worker.wait(), 30)
    assert code == 1
    said = [each for each in caplog.records if each.name == "late.worker"]
    [line] = [each.getMessage() for each in said if each.levelno >= logging.ERROR]
    assert line.startswith(f"heartbeat failed, the worker stops: the file {path_of(url)} was")
    assert "late rebase" in line
    assert "\n" not in line
    assert not worker.trusted
    assert not held_files.listed()


async def test_no_effect_of_a_task_reaches_the_file_that_took_the_place(url: str) -> None:
    """The worker has the old file open, and each transaction of a handler opens the path anew."""
    ran: list[str] = []
    app, enqueue = await both_tasks(url, ran)
    worker = Worker(app, settings=late.config.WorkerConfig(grace_s=5.0))
    await worker.start()
    await until(lambda: worker.trusted)
    path = path_of(url)
    replaced(path)
    enqueue()
    assert await asyncio.wait_for(worker.wait(), 30) == 1
    assert (counted(path, "effect"), counted(Path(f"{path}.old"), "effect")) == (0, 0)
    assert counted(path, "late_worker") == 1, "what was copied: no heartbeat is in the new file"
    assert counted(Path(f"{path}.old"), "late_dead") == 0


async def test_a_worker_stops_when_a_backup_is_restored_into_its_file(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As `.restore` of sqlite3 does: the file stays the same one, and its log goes back."""
    path, copy = path_of(url), path_of(url).with_name("copy.db")
    ran: list[str] = []
    app, enqueue = await both_tasks(url, ran)
    worker = Worker(app, settings=late.config.WorkerConfig(grace_s=5.0))
    await worker.start()
    await until(lambda: worker.trusted)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    enqueue()
    await until(lambda: sorted(ran) == ["once", "shared"] and worker.scheduler.unrecorded == 0)
    told = worker.heartbeat.trusted_until
    await until(lambda: worker.heartbeat.trusted_until > told)
    with caplog.at_level(logging.ERROR, "late.worker"):
        with closing(sqlite3.connect(copy)) as source, closing(sqlite3.connect(path)) as target:
            source.backup(target)
        assert await asyncio.wait_for(worker.wait(), 30) == 1
    assert "an earlier state was restored into the file" in caplog.text
    # The next worker runs what comes then.
    again = Worker(app, settings=late.config.WorkerConfig(grace_s=5.0))
    await again.start()
    with sqlite3.connect(path) as producer:
        app.tasks["once"].enqueue(producer)
    await until(lambda: len(ran) == 3)
    await again.stop()


async def test_connections_are_refused_before_they_write(url: str) -> None:
    store = SqliteStore(url)
    await store.open()
    await store.heartbeat(ME, 5.0)
    engine = make_engine(url)
    with reading(engine):
        pass
    replaced(path_of(url))
    with pytest.raises(DatabaseReplaced), connections.begin(url):
        pass
    with pytest.raises(DatabaseReplaced):
        async with connections.begin_async(url):
            pass
    with pytest.raises(DatabaseReplaced):
        connections.shared(url, 1).begin(False)
    with pytest.raises(DatabaseReplaced), reading(engine):
        pass
    with pytest.raises(DatabaseReplaced):
        Control(url).status.read()
    other = SqliteStore(url)
    with pytest.raises(DatabaseReplaced):
        await other.open()
    with pytest.raises(DatabaseReplaced):
        await store.heartbeat(ME, 5.0)
    await other.close()
    await store.close()
    with connections.begin(url):
        pass  # nothing of this process is on the old file any more


async def test_a_file_that_is_gone_is_told_as_moved_while_it_is_open(url: str) -> None:
    store = SqliteStore(url)
    await store.open()
    moved(path_of(url))
    with pytest.raises(DatabaseReplaced), connections.begin(url):
        pass
    await store.close()
    with pytest.raises(SchemaMismatch, match="no database file"), connections.begin(url):
        pass


async def test_a_file_is_held_until_the_last_store_closes(url: str) -> None:
    first, second = SqliteStore(url), SqliteStore(url)
    await first.open()
    await second.open()
    await second.open()
    await first.close()
    await first.close()
    assert list(held_files.listed()) == [str(path_of(url))]
    await second.close()
    assert not held_files.listed()


async def test_a_store_that_does_not_open_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "late.db").write_bytes(b"not a database at all" * 100)
    store = SqliteStore(f"sqlite:///{tmp_path}/late.db")
    with pytest.raises(late.errors.StoreError):
        await store.open()
    assert not held_files.listed()


def test_a_child_process_holds_what_its_worker_holds(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_files, "held", {})
    file = held_files.hold(path_of(url))
    told = held_files.listed()
    held_files.release(path_of(url))

    def ended(*_: object) -> Any:
        raise ChildProcessError

    monkeypatch.setattr(signal, "signal", ended)  # right after it has taken them in
    with pytest.raises(ChildProcessError):
        child_main.main(None, url, None, (), told)  # type: ignore[arg-type]
    assert held_files.listed() == {str(path_of(url)): file}


def test_an_attempt_that_was_refused_a_connection_costs_nothing() -> None:
    verdict = raised(DatabaseReplaced("the file was replaced"), None)
    assert verdict.kind == "snooze"
    assert verdict.after_us
    assert "replaced" in (verdict.error or "")
