"""Hints on their way: datagrams, seals, places, and who is told after which commit."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

import late
from late.errors import ConfigError
from late.model.ids import new_id
from late.notify import notifier as waking
from late.notify.listener import TAKEN_MAX, HintListener
from late.notify.notifier import (
    NAMED_MAX,
    PACKET_BYTES,
    Notifier,
    Shards,
    listening,
    opened,
    sealed,
)
from late.outbox import connect, connect_async
from tests.support import sqlite

SECRET = b"sixteen bytes or more"


@pytest.fixture
def heard() -> Iterator[list[Shards]]:
    """What a worker of this process is told."""
    found: list[Shards] = []
    with listening(found.append):
        yield found


@pytest.fixture
def app(tmp_path: Path) -> late.App:
    url = sqlite.database(tmp_path / "late.db")
    return late.App(url, strict=False)


def port() -> socket.socket:
    """A worker's end, on a free port of this machine."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.settimeout(20)
    return made


# ------------------------------------------------------------------ datagrams


@pytest.mark.parametrize("secret", [b"", SECRET])
@pytest.mark.parametrize("shards", [(), (0,), (7, 4095), tuple(range(NAMED_MAX))])
def test_a_datagram_says_which_shards(shards: tuple[int, ...], secret: bytes) -> None:
    packet = sealed(shards, secret)
    assert len(packet) <= PACKET_BYTES
    assert opened(packet, secret) == frozenset(shards)


def test_more_shards_than_a_datagram_names_are_any() -> None:
    assert opened(sealed(range(NAMED_MAX + 1), b""), b"") == frozenset()


def test_what_was_not_sealed_with_the_secret_is_nothing() -> None:
    good = sealed([1], SECRET)
    for forged in (
        sealed([1], b""),
        sealed([1], b"another secret of theirs"),
        good[:-1],
        good + b"x",
        good[:5] + b"\x00\x02" + good[7:],
        b"",
        b"late1",
    ):
        assert opened(forged, SECRET) is None
    assert opened(b"late2", b"") is None
    assert opened(b"late1\x00", b"") is None


# ------------------------------------------------------------------ who is told


def test_workers_of_this_process_are_told_which_shards(heard: list[Shards]) -> None:
    late.wake(new_id(3), new_id(5), new_id(3))
    late.wake()
    late.wake("no task of ours")
    assert heard == [{3, 5}, set(), set()]


def test_workers_that_the_environment_names_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with port() as one, port() as other:
        places = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other))
        monkeypatch.setenv("LATE_WAKE", places)
        monkeypatch.setenv("LATE_WAKE_SECRET", SECRET.decode())
        late.wake(new_id(9))
        assert opened(one.recv(PACKET_BYTES), SECRET) == {9}
        assert opened(other.recv(PACKET_BYTES), SECRET) == {9}


def test_a_name_is_looked_up_aside() -> None:
    with port() as one:
        waker = Notifier(f"localhost:{one.getsockname()[1]}")
        one.settimeout(0.05)
        for _ in range(400):  # hints are lost until the name is known
            waker.tell(frozenset({2}))
            try:
                packet = one.recv(PACKET_BYTES)
                break
            except TimeoutError:
                continue
        assert opened(packet, b"") == {2}


def test_a_wake_never_raises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, heard: list[Shards]
) -> None:
    monkeypatch.setenv("LATE_WAKE", "nowhere")
    with caplog.at_level(logging.ERROR):
        late.wake(new_id(1))
        late.wake(new_id(1))
    assert len(caplog.records) == 1, "said once"
    assert heard == [{1}, {1}], "and who can be told is told"
    with port() as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    monkeypatch.setenv("LATE_WAKE", address)
    for _ in range(3):
        late.wake(new_id(1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_tell_the_worker_of_its_parent(heard: list[Shards]) -> None:
    """Its loop is the parent's, copied: nothing would ever take what is put there, and each hint
    would make the child larger and wake the parent for nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        late.wake()
        os.write(writer, str(len(heard)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"0"
    os.close(reader)
    os.close(writer)
    late.wake()
    assert heard == [set()], "and the parent tells it as before"


def test_a_wake_never_raises_whatever_the_process_has_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)  # too many, or at the end of the process
    monkeypatch.setenv("LATE_WAKE", "localhost:7788")
    monkeypatch.setenv("LATE_WAKE_SECRET", "\udcff" * 16)  # bytes that are no UTF-8
    late.wake(new_id(1))
    assert waking.secret() == b"\xff" * 16
    with caplog.at_level(logging.WARNING):
        Notifier("a..b:7788", SECRET)._look_up()
    assert "cannot be found" in caplog.text, "a name that no name server can be asked for"


@pytest.mark.parametrize(
    "places",
    ["nowhere", "host:", "host:0", "host:70000", "a b:1", ":7788", "127.0.0.1:1,", "::1:7"],
)
def test_a_place_is_a_host_and_a_port(places: str) -> None:
    with pytest.raises(ConfigError, match=r"write host:port|LATE_WAKE_SECRET"):
        Notifier(places)


@pytest.mark.parametrize("place", ["10.0.0.1:7788", "workers.default.svc:7788", "0.0.0.0:1"])
def test_other_machines_are_told_with_a_secret_only(place: str) -> None:
    with pytest.raises(ConfigError, match="need LATE_WAKE_SECRET"):
        Notifier(place)
    with pytest.raises(ConfigError, match="shorter than 16 bytes"):
        Notifier(place, b"short")


def test_this_machine_is_told_without() -> None:
    for place in ("127.0.0.1:7788", "127.8.8.8:1", "[::1]:7788", "localhost:7788"):
        Notifier(place)


# ------------------------------------------------------------------ after which commits


def test_what_we_commit_ourselves_wakes(app: late.App, heard: list[Shards]) -> None:
    with connect(app.url) as tx:
        one = app.send(tx, "a")
        two = app.send(tx, "b")
        assert heard == [], "not before the commit"
    assert heard == [{waking.shard_of(one), waking.shard_of(two)}]


def test_what_is_rolled_back_or_empty_wakes_nobody(app: late.App, heard: list[Shards]) -> None:
    with pytest.raises(KeyError), connect(app.url) as tx:  # noqa: PT012
        app.send(tx, "a")
        raise KeyError
    with connect(app.url) as tx:
        tx.execute("select 1")
    assert heard == []


async def test_what_an_async_handler_commits_wakes(app: late.App, heard: list[Shards]) -> None:
    async with connect_async(app.url) as tx:
        task_id = await app.send(tx, "a")
    assert heard == [{waking.shard_of(task_id)}]


def test_a_service_can_wake_after_each_commit_of_its_sessions(
    app: late.App, heard: list[Shards]
) -> None:
    """The line that `docs/waking.md` gives."""
    tell = lambda session: late.wake()  # noqa: E731
    engine = create_engine(app.url)
    event.listen(Session, "after_commit", tell)
    try:
        with Session(engine) as session, session.begin():
            app.send(session, "a")
            assert heard == []
        assert heard == [set()]
        with Session(engine) as session:
            app.send(session, "a")
            session.rollback()
        assert heard == [set()]
    finally:
        event.remove(Session, "after_commit", tell)
        engine.dispose()


# ------------------------------------------------------------------ the worker's end


async def hear(ear: HintListener, found: list[Shards], count: int) -> None:
    """Until `count` hints have been handed on."""
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(ear.run())
        while len(found) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        running.cancel()
    ear.close()


async def test_a_datagram_is_heard_and_a_forged_one_is_not() -> None:
    found: list[Shards] = []
    ear = HintListener("127.0.0.1", 0, SECRET, found.append)
    Notifier(f"127.0.0.1:{ear.port}").tell(frozenset({1}))
    Notifier(f"127.0.0.1:{ear.port}", SECRET).tell(frozenset({2}))
    await hear(ear, found, 1)
    assert found == [{2}]
    ear.close()


async def test_a_flood_is_taken_some_at_a_time() -> None:
    found: list[Shards] = []
    ear = HintListener("127.0.0.1", 0, b"", found.append)
    waker = Notifier(f"127.0.0.1:{ear.port}")
    for shard in range(2 * TAKEN_MAX):
        waker.tell(frozenset({shard}))
    await hear(ear, found, 2)
    assert found == [set(range(TAKEN_MAX)), set(range(TAKEN_MAX, 2 * TAKEN_MAX))]


async def test_any_shard_among_several_hints_is_any_shard() -> None:
    found: list[Shards] = []
    ear = HintListener("127.0.0.1", 0, b"", found.append)
    waker = Notifier(f"127.0.0.1:{ear.port}")
    waker.tell(frozenset({1}))
    waker.tell(frozenset())
    await hear(ear, found, 1)
    assert found == [set()]


def test_who_listens_to_other_machines_needs_a_secret() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1"):
        with pytest.raises(ConfigError, match=r"wake_host=.*need LATE_WAKE_SECRET"):
            HintListener(host, 0, b"", print)


def test_a_machine_without_ipv6_refuses_its_addresses_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(*_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", none)
    with pytest.raises(ConfigError, match="wake_host='::1', wake_port=1: Address family"):
        HintListener("::1", 1, b"", print)


def test_a_port_that_is_taken_is_refused_by_name() -> None:
    with port() as taken:
        number = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"wake_port={number}: .*choose a free port"):
            HintListener("127.0.0.1", number, b"", print)
