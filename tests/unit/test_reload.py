"""SIGHUP: what may change does, what may not is named, and wrong settings change nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from late.config import LIVE, WorkerConfig
from late.errors import ConfigError
from late.worker import assembly
from late.worker.maintenance import jobs_of
from late.worker.reload import Reading, Reloader

FIRST = Reading(WorkerConfig(), {"log_level": "INFO", "processes": None})


class World:
    """A process whose settings are read from memory."""

    def __init__(self) -> None:
        self.wanted: Reading | ConfigError = FIRST
        self.taken: list[WorkerConfig] = []
        self.reload = Reloader(self.read, FIRST, self.taken.append)

    def read(self) -> Reading:
        if isinstance(self.wanted, ConfigError):
            raise self.wanted
        return self.wanted

    def want(self, command: dict[str, Any] | None = None, **worker: Any) -> None:
        self.wanted = Reading(WorkerConfig(**worker), {**FIRST.command, **(command or {})})


def told(caplog: pytest.LogCaptureFixture) -> tuple[str, dict[str, Any]]:
    (record,) = [each for each in caplog.records if each.name == "late.config"]
    caplog.clear()
    return record.levelname, record.__dict__.get("late_fields", {})


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    caplog.set_level(logging.INFO, "late.config")
    return World()


def test_what_may_change_is_taken_and_the_rest_is_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.want({"processes": 4}, grace_s=5.0, concurrency=32, window=1500)
    assert world.reload()
    assert world.taken == [WorkerConfig(grace_s=5.0)]
    level, said = told(caplog)
    assert level == "WARNING"
    assert said["changed"] == "grace_s"
    assert said["needs_restart"] == "concurrency, processes, window"
    assert world.reload()
    level, said = told(caplog)
    assert "changed" not in said
    assert said["needs_restart"] == "concurrency, processes, window", "it is still so"
    assert len(world.taken) == 1


def test_nothing_has_changed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert world.reload()
    assert told(caplog)[0] == "INFO"
    assert not world.taken


def test_wrong_settings_change_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.wanted = ConfigError("late.toml: no such key: x")
    assert not world.reload()
    assert "stay as they were: late.toml: no such key: x" in caplog.text
    assert told(caplog)[0] == "ERROR"
    assert not world.taken
    world.want(grace_s=1.0)
    assert world.reload()
    assert world.taken == [WorkerConfig(grace_s=1.0)]


def test_the_level_of_the_log(world: World) -> None:
    logger = logging.getLogger("late")
    before = logger.level
    try:
        world.want({"log_level": "debug"})
        world.reload()
        assert logger.level == logging.DEBUG
        assert not world.taken
    finally:
        logger.setLevel(before)


def test_a_value_that_is_taken_away_is_the_default_again(world: World) -> None:
    world.want(lag_alarm_s=5.0, exit_when_stuck=1)
    world.reload()
    world.wanted = FIRST
    world.reload()
    assert world.taken[-1] == WorkerConfig()


class Service:
    """A service that waits for its stop."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.taken: list[WorkerConfig] = []
        self.started = asyncio.Event()

    async def start(self) -> None:
        self.started.set()

    async def wait(self) -> int:
        await self.stop.wait()
        return 0

    def ask_to_stop(self) -> None:
        self.stop.set()

    def take(self, settings: WorkerConfig) -> None:
        self.taken.append(settings)


@pytest.mark.parametrize("terminal", ["none", "open", "closed"])
async def test_a_hang_up_reads_the_settings_unless_the_terminal_is_gone(
    monkeypatch: pytest.MonkeyPatch, terminal: str
) -> None:
    at_terminal = [terminal != "none"]
    monkeypatch.setattr(os, "isatty", lambda _: at_terminal[0])
    monkeypatch.setattr(assembly, "freeze_gc", lambda: None)
    service = Service()
    wanted = Reading(WorkerConfig(grace_s=1.0))
    reload = Reloader(lambda: wanted, Reading(WorkerConfig()), service.take)
    running = asyncio.create_task(assembly.run_until_signal(service, reload))
    try:
        await service.started.wait()
        if terminal == "closed":
            at_terminal[0] = False
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(60):
            while not (service.taken or service.stop.is_set()):  # noqa: ASYNC110  a signal tells
                await asyncio.sleep(0)
        assert service.stop.is_set() == (terminal == "closed")
        service.ask_to_stop()
        assert await running == 0
    finally:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def test_a_stop_says_what_it_waits_for_and_how_not_to_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(assembly, "freeze_gc", lambda: None)
    caplog.set_level("INFO", "late.worker")

    class Busy(Service):
        asked = 0

        def ask_to_stop(self) -> None:
            self.asked += 1
            if self.asked == 2:
                self.stop.set()

    service = Busy()
    reload = Reloader(lambda: Reading(WorkerConfig()), Reading(WorkerConfig()), service.take)
    running = asyncio.create_task(assembly.run_until_signal(service, reload))
    try:
        await service.started.wait()
        for asked in (1, 2):
            os.kill(os.getpid(), signal.SIGINT)
            async with asyncio.timeout(60):
                while service.asked < asked:  # noqa: ASYNC110  a signal tells
                    await asyncio.sleep(0)
        assert await running == 0
    finally:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    first, second = caplog.messages
    assert "LATE_GRACE_S" in first
    assert "a second signal does not wait" in first
    assert second == "stopping at once"


async def test_the_jobs_of_a_worker_go_by_its_settings_of_the_moment() -> None:
    asked: list[tuple[float, ...]] = []

    class Store:
        async def prune(self, **keep: float) -> Any:
            asked.append(tuple(keep.values()))
            return SimpleNamespace(tasks=0, partitions=0, settlements=0, workers=0, compacted=0)

    control = SimpleNamespace(sweep=lambda history_keep_s: asked.append((history_keep_s,)))
    worker: Any = SimpleNamespace(
        settings=WorkerConfig(),
        control=lambda: control,
        is_maintainer=lambda: True,
        refusals=SimpleNamespace(job=SimpleNamespace(name="refusals")),
        backlog=SimpleNamespace(publish=None, due=None),
        groups=("default",),
        app=SimpleNamespace(url="sqlite://"),
    )
    jobs = {job.name: job for job in jobs_of(worker, Store())}
    assert jobs["lag alarm"].condition()
    worker.settings = msgspec.structs.replace(
        worker.settings, journal_keep_s=3.0, journal_detail_s=1.0, journal_minute_s=2.0,
        lag_alarm_s=0.0,
    )  # fmt: skip
    await jobs["prune"].run()
    await jobs["sweep"].run()
    assert asked == [(3.0, 1.0, 2.0), (3.0,)]
    assert not jobs["lag alarm"].condition()


def test_every_setting_that_may_change_has_its_test() -> None:
    tested = {"journal_keep_s", "journal_detail_s", "journal_minute_s", "lag_alarm_s"}
    read_when_needed = {"grace_s", "exit_when_stuck", "look_every_s"}
    assert tested | read_when_needed == LIVE
