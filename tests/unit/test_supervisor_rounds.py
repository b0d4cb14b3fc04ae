"""The parent of several workers, whose children are no processes but answer as they are told."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from late.config import WorkerConfig
from late.errors import ConfigError
from late.supervisor import supervisor
from late.supervisor.supervisor import Supervisor
from late.worker.reload import Reading
from late.worker.watch.health import State

READY = State("child", live=True, ready=True)
NOT_READY = State("child", live=True, ready=False, reason="starts")
STALLED = State("child", live=False, ready=False, stalled=("heartbeat",))
LONG_S = 60.0
"""Never waited for: a limit against a hang."""


class Fake:
    """A child that ends by a signal, unless it is told to be deaf to SIGTERM.

    Attributes:
        answers: what each start of it answers to a check, the last one for all later starts.
        codes: exit codes of starts that end at once, the first first.
    """

    made: dict[int, Fake]
    answers: list[State | None]
    codes: list[int]
    deaf: bool
    broken: bool
    busy = False
    """It ends by the second SIGTERM only, as a worker whose handlers run."""

    def __init__(self, number: int, command: object) -> None:
        self.number = number
        self.pid: int | None = None
        self.starts = 0
        self.told: list[signal.Signals] = []
        self.closed = False
        self._ended: asyncio.Future[int] | None = None
        self.made[number] = self

    async def start(self, life_line: int) -> None:
        self.starts += 1
        if self.broken:
            raise OSError("no memory")
        self._ended = asyncio.get_running_loop().create_future()
        self.pid = self.starts
        if self.codes:
            self.end(self.codes.pop(0))

    async def wait(self) -> int:
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    def end(self, code: int) -> None:
        self.pid = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(code)

    def tell(self, number: signal.Signals) -> None:
        if self.pid is not None:
            self.told.append(number)
            busy = self.busy and self.told.count(signal.SIGTERM) % 2 == 1
            if number is signal.SIGKILL or not (self.deaf or busy):
                self.end(-number if number is signal.SIGKILL else 0)

    async def state(self) -> State | None:
        return self.answers[min(self.starts, len(self.answers)) - 1]

    async def metrics(self) -> bytes:
        return b"# HELP late_a A.\n# TYPE late_a counter\nlate_a 1\n"

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    kind = type("Own", (Fake,), {"made": {}, "answers": [READY], "codes": []})
    kind.deaf = kind.broken = False
    monkeypatch.setattr(supervisor, "Child", kind)
    monkeypatch.setattr(supervisor, "CHECK_S", 0.0)
    monkeypatch.setattr(supervisor, "STALLED_S", 0.0)
    return kind


async def parent_of(count: int, **settings: Any) -> Supervisor:
    parent = Supervisor(["worker"], count, lambda: Reading(WorkerConfig(**settings)))
    await parent.start()
    return parent


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def stop(parent: Supervisor) -> int:
    parent.ask_to_stop("test")
    async with asyncio.timeout(LONG_S):
        return await parent.wait()


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [about for about in events(caplog) if about["event"] == event]


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    each = [record.__dict__.get("late_fields", {}) for record in caplog.records]
    return [about for about in each if "event" in about]


async def test_it_is_ready_with_all_children_and_stops_them_cleanly(fake: type[Fake]) -> None:
    parent = await parent_of(2)
    assert parent.state().reason == "not ready: process 1, 2"
    await until(lambda: parent.state().ready)
    assert parent.state() == State("parent of 2", live=True, ready=True)
    page = (await parent.metrics()).decode()
    assert 'late_a{process="1"} 1\nlate_a{process="2"} 1\n' in page
    assert await stop(parent) == 0
    assert [(child.told, child.closed) for child in fake.made.values()] == [
        ([signal.SIGTERM], True)
    ] * 2


async def test_a_child_that_was_ready_and_stalls_is_replaced(
    fake: type[Fake], caplog: pytest.LogCaptureFixture
) -> None:
    parent = await parent_of(1)
    await until(lambda: parent.state().ready)
    fake.answers = [STALLED, READY]
    await until(lambda: fake.made[1].starts == 2)
    await until(lambda: parent.state().ready)
    assert [about["answers"] for about in said(caplog, "process_stalls")] == [True, True]
    assert fake.made[1].told == [signal.SIGTERM]
    assert await stop(parent) == 0


async def test_a_silent_child_is_named_and_killed_if_it_does_not_stop(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STALLED_S", LONG_S)
    monkeypatch.setattr(supervisor, "SILENT_GRACE_S", 0.0)
    parent = await parent_of(1)
    await until(lambda: parent.state().ready)
    fake.deaf, fake.answers = True, [None, READY]
    await until(lambda: parent.state().stalled)
    assert parent.state().stalled == ("process 1: no answer",)
    monkeypatch.setattr(supervisor, "STALLED_S", 0.0)
    await until(lambda: fake.made[1].starts == 2)
    assert fake.made[1].told == [signal.SIGTERM, signal.SIGKILL]
    fake.deaf = False
    assert await stop(parent) == 0


async def test_a_child_that_was_never_ready_is_left_alone(fake: type[Fake]) -> None:
    fake.answers = [STALLED]
    parent = await parent_of(1)
    await until(lambda: parent.state().stalled)
    for _ in range(50):
        await asyncio.sleep(0)
    assert (fake.made[1].starts, fake.made[1].told) == (1, [])
    await stop(parent)


async def test_wrong_settings_end_the_parent_with_the_childs_code(
    fake: type[Fake], caplog: pytest.LogCaptureFixture
) -> None:
    fake.codes, fake.answers = [2], [None]
    parent = await parent_of(1)
    async with asyncio.timeout(LONG_S):
        assert await parent.wait() == 2
    (about,) = said(caplog, "processes_given_up")
    assert about["ended_by"] == "exit code 2"


async def test_a_child_that_dies_is_named_by_its_signal_and_replaced(
    fake: type[Fake], caplog: pytest.LogCaptureFixture
) -> None:
    parent = await parent_of(1)
    await until(lambda: parent.state().ready)
    fake.made[1].end(-signal.SIGSEGV)
    await until(lambda: fake.made[1].starts == 2)
    (about,) = said(caplog, "process_ended")
    assert (about["ended_by"], about["wait_s"]) == ("SIGSEGV", 0.0)
    assert await stop(parent) == 0


async def test_a_process_that_cannot_be_started_is_tried_again(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("late.supervisor.restarts.WAIT_MAX_S", 0.0)
    monkeypatch.setattr("late.supervisor.restarts.WAIT_MIN_S", 0.0)
    fake.broken = True
    parent = await parent_of(1)
    await until(lambda: fake.made[1].starts >= 2)
    fake.broken = False
    await until(lambda: parent.state().ready)
    assert "process cannot be started: no memory" in caplog.text
    assert await stop(parent) == 0


async def test_what_does_not_stop_within_the_grace_is_killed(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "ENDING_S", 0.0)
    fake.deaf = True
    parent = await parent_of(1, grace_s=0.0)
    await until(lambda: parent.state().ready)
    assert await stop(parent) == 1
    assert fake.made[1].told == [signal.SIGTERM, signal.SIGKILL]
    assert said(caplog, "processes_killed")[0]["processes"] == 1


async def test_a_second_request_tells_the_children_again(fake: type[Fake]) -> None:
    fake.deaf = True
    parent = await parent_of(1)
    await until(lambda: parent.state().ready)
    parent.ask_to_stop()
    ends = asyncio.create_task(parent.wait())
    await until(lambda: fake.made[1].told == [signal.SIGTERM])
    fake.deaf = False
    parent.ask_to_stop()
    async with asyncio.timeout(LONG_S):
        assert await ends == 0
    assert fake.made[1].told == [signal.SIGTERM] * 2


async def test_a_round_replaces_each_child_and_one_asked_meanwhile_follows(
    fake: type[Fake], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "late.supervisor")
    parent = await parent_of(2)
    await until(lambda: parent.state().ready)
    parent.reload()
    await until(lambda: fake.made[1].starts == 2)
    parent.roll()
    parent.roll()
    await until(lambda: parent._rolling is not None and parent._rolling.done())
    assert [about["process"] for about in said(caplog, "process_replaced")] == [1, 2, 1, 2]
    assert [child.starts for child in fake.made.values()] == [3, 3]
    assert await stop(parent) == 0


async def test_a_round_ends_with_a_child_that_does_not_get_ready(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parent = await parent_of(2)
    await until(lambda: parent.state().ready)
    fake.answers = [READY, NOT_READY]
    monkeypatch.setattr(supervisor, "READY_S", 0.0)
    parent.reload()
    await until(lambda: said(caplog, "process_not_ready"))
    await until(lambda: parent._rolling is not None and parent._rolling.done())
    await until(lambda: fake.made[1].starts == 2)
    assert (fake.made[2].starts, fake.made[2].told) == (1, [])
    assert await stop(parent) == 0


@pytest.fixture
def memory(fake: type[Fake], monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """The memory of children by how often they were started, in MB."""
    found: dict[int, float] = {}
    monkeypatch.setattr(supervisor, "memory_mb", lambda starts: found.get(starts, 100.0))
    monkeypatch.setattr(supervisor, "MEMORY_EVERY_S", 0.0)
    monkeypatch.setattr(supervisor, "RECYCLE_PAUSE_S", 0.0)
    return found


async def test_children_with_too_much_memory_are_replaced_one_by_one(
    fake: type[Fake], memory: dict[int, float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "late.supervisor")
    parent = await parent_of(2, process_memory_mb=500)
    await until(lambda: parent.state().ready)
    assert not said(caplog, "process_memory")
    memory[1] = 500.4
    await until(lambda: [child.starts for child in fake.made.values()] == [2, 2])
    await until(lambda: parent.state().ready)
    told = said(caplog, "process_memory")
    assert [(about["process"], about["mb"], about["limit_mb"]) for about in told] == [
        (1, 500, 500),
        (2, 500, 500),
    ]
    names = [about["event"] for about in events(caplog)]
    assert [name for name in names if name != "process_started"] == [
        "process_memory", "process_replaced", "process_ended"
    ] * 2  # fmt: skip
    assert await stop(parent) == 0


async def test_without_a_limit_no_child_is_replaced_because_of_memory(
    fake: type[Fake], memory: dict[int, float]
) -> None:
    memory[1] = 1e9
    parent = await parent_of(1)
    await until(lambda: parent.state().ready)
    for _ in range(100):
        await asyncio.sleep(0)
    assert fake.made[1].starts == 1
    assert await stop(parent) == 0


async def test_a_round_that_is_asked_for_while_one_is_replaced_follows(
    fake: type[Fake], memory: dict[int, float]
) -> None:
    parent = await parent_of(2, process_memory_mb=500)
    await until(lambda: parent.state().ready)
    memory[1] = 600
    await until(lambda: fake.made[1].starts == 2)
    memory.clear()
    parent.roll()
    await until(lambda: parent._rolling is not None and parent._rolling.done())
    assert [child.starts for child in fake.made.values()] == [3, 2]
    assert await stop(parent) == 0


async def test_wrong_settings_replace_nothing(fake: type[Fake]) -> None:
    wrong: list[ConfigError] = []

    def read() -> Reading:
        if wrong:
            raise wrong[0]
        return Reading(WorkerConfig())

    parent = Supervisor(["worker"], 1, read)
    await parent.start()
    await until(lambda: parent.state().ready)
    wrong.append(ConfigError("no such setting"))
    parent.reload()
    assert parent._rolling is None
    assert await stop(parent) == 0


async def test_a_change_of_the_sources_kills_no_handler(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill would count as a death of each task that runs."""
    monkeypatch.setattr(supervisor, "RELOAD_S", 0.01)
    monkeypatch.setattr(fake, "busy", True)
    parent = await parent_of(1)
    await until(lambda: parent.state().ready)

    async def changes() -> AsyncIterator[object]:
        yield "one"
        await until(lambda: all(child.starts == 2 for child in fake.made.values()))
        parent.ask_to_stop()
        parent.ask_to_stop()

    await parent.reload_on(changes())
    async with asyncio.timeout(LONG_S):
        assert await parent.wait() == 0
    assert set(fake.made[1].told) == {signal.SIGTERM}


async def test_a_change_of_the_sources_starts_all_children_again(
    fake: type[Fake], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "late.supervisor")
    parent = await parent_of(2)
    await until(lambda: parent.state().ready)

    async def changes() -> AsyncIterator[object]:
        yield "one"
        await until(lambda: all(child.starts == 2 for child in fake.made.values()))
        parent.ask_to_stop()
        yield "too late"

    await parent.reload_on(changes())
    assert caplog.text.count("sources have changed") == 1
    async with asyncio.timeout(LONG_S):
        assert await parent.wait() == 0
    assert all(child.starts == 2 for child in fake.made.values())
