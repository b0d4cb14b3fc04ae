"""What handlers share: opened before the first of them, closed behind the last."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path

import pytest

from late import App, ConfigError
from late.app import lifespan
from late.app.lifespan import Lifespan, LifespanFailed
from late.config import WorkerConfig
from late.errors import StoreClosed
from late.testing import drain
from late.worker.worker import Worker
from tests.integration.lifespan_app import app as with_children
from tests.integration.lifespan_app import tell
from tests.support import sqlite

WAIT_S = 30.0


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(sqlite.database(tmp_path / "late.db"), shards=2)


def enqueue(app: App, name: str, **arguments: object) -> None:
    from sqlalchemy import create_engine

    engine = create_engine(app.url)
    with engine.begin() as tx:
        app.tasks[name].enqueue(tx, **arguments)
    engine.dispose()


def test_what_a_generator_yields_is_there_for_handlers_and_closed_behind_them(app: App) -> None:
    seen: list[str] = []

    @app.lifespan
    def opened() -> Iterator[str]:
        seen.append(f"open in a thread: {threading.current_thread().name == 'late-lifespan'}")
        yield "the client"
        seen.append("closed")

    @app.task
    def use() -> None:
        seen.append(app.resources)

    enqueue(app, "use")
    assert app.resources is None
    assert drain(app) == {"done": 1}
    assert seen == ["open in a thread: True", "the client", "closed"]
    assert app.resources is None


def test_an_async_generator_belongs_to_the_loop_of_the_handlers(app: App) -> None:
    seen: list[object] = []

    @app.lifespan
    async def opened() -> AsyncIterator[asyncio.AbstractEventLoop]:
        yield asyncio.get_running_loop()
        seen.append("closed")

    @app.task
    async def use() -> None:
        seen.append(asyncio.get_running_loop() is app.resources)

    enqueue(app, "use")
    assert drain(app) == {"done": 1}
    assert seen == [True, "closed"]


def test_a_decorated_context_manager_is_taken_as_it_is(app: App) -> None:
    seen: list[str] = []

    @app.lifespan
    @contextmanager
    def opened() -> Iterator[str]:
        yield "open"
        seen.append("closed")

    @app.task
    def use() -> None:
        seen.append(app.resources)

    enqueue(app, "use")
    drain(app)
    assert seen == ["open", "closed"]


def test_an_error_before_the_yield_stops_the_worker_before_any_task(app: App) -> None:
    ran: list[bool] = []

    @app.lifespan
    def opened() -> Iterator[None]:
        raise ConnectionError("no such host")
        yield

    @app.task
    def use() -> None:
        ran.append(True)

    enqueue(app, "use")
    with pytest.raises(LifespanFailed, match=r"no task was started: .*no such host") as caught:
        drain(app)
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert not ran
    # the task was not lost, and a worker whose resources open runs it
    app.span = Lifespan(lambda yielded: None)
    assert drain(app) == {"done": 1}


def test_an_error_behind_the_yield_is_logged_and_changes_no_task(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.lifespan
    async def opened() -> AsyncIterator[None]:
        yield
        raise ConnectionError("it was gone already")

    @app.task
    async def use() -> None:
        pass

    enqueue(app, "use")
    assert drain(app) == {"done": 1}
    (record,) = [r for r in caplog.records if r.name == "late.lifespan"]
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "it was gone already"


def test_an_async_function_runs_in_one_task(app: App) -> None:
    """As a context variable, and a task group, need it."""
    variable: ContextVar[str] = ContextVar("variable", default="none")
    seen: list[str] = []

    @app.lifespan
    async def opened() -> AsyncIterator[None]:
        token = variable.set("set")
        yield
        variable.reset(token)
        seen.append(variable.get())

    @app.task
    async def use() -> None:
        pass

    enqueue(app, "use")
    assert drain(app) == {"done": 1}
    assert seen == ["none"]


def test_a_stop_does_not_wait_for_ever_for_what_is_behind_the_yield(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifespan, "CLOSE_S", 0.1)
    ends = threading.Event()

    @app.lifespan
    def opened() -> Iterator[None]:
        yield
        ends.wait(WAIT_S)

    @app.task
    def use() -> None:
        pass

    enqueue(app, "use")
    try:
        assert drain(app) == {"done": 1}
    finally:
        ends.set()
    assert "has not ended in 0.1 s" in caplog.text


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stop_does_not_wait_for_a_function_that_hangs(app: App, is_async: bool) -> None:
    began, ends = threading.Event(), threading.Event()

    def hangs() -> Iterator[None]:
        began.set()
        ends.wait(WAIT_S)
        yield

    async def hangs_async() -> AsyncIterator[None]:
        began.set()
        await asyncio.sleep(WAIT_S)
        yield

    app.lifespan(hangs_async if is_async else hangs)

    async def run() -> str:
        worker = Worker(app, settings=WorkerConfig())
        starting = asyncio.create_task(worker.start())
        assert await asyncio.to_thread(began.wait, WAIT_S)
        reason = worker._state().reason
        worker.ask_to_stop()
        with pytest.raises(LifespanFailed, match="a stop was asked for"):
            await starting
        return reason

    try:
        assert "app.lifespan has not yielded" in asyncio.run(run())
    finally:
        ends.set()


def test_workers_of_one_process_share_one_lifespan(app: App) -> None:
    seen: list[str] = []

    @app.lifespan
    async def opened() -> AsyncIterator[str]:
        seen.append("open")
        yield "shared"
        seen.append("closed")

    @app.task
    async def use() -> None:
        pass

    async def run() -> None:
        workers = [Worker(app, settings=WorkerConfig()) for _ in range(2)]
        for worker in workers:
            await worker.start()
        await workers[0].stop()
        assert (seen, app.resources) == (["open"], "shared")
        await workers[1].stop()

    asyncio.run(run())
    assert (seen, app.resources) == (["open", "closed"], None)


def test_a_worker_that_cannot_start_closes_nothing_of_another(app: App) -> None:
    seen: list[str] = []

    @app.lifespan
    async def opened() -> AsyncIterator[str]:
        await asyncio.sleep(0.2)
        seen.append("open")
        yield "shared"
        seen.append("closed")

    async def run() -> None:
        good, bad = (Worker(app, settings=WorkerConfig()) for _ in range(2))
        late_one = Worker(app, settings=WorkerConfig())
        starts = [asyncio.create_task(each.start()) for each in (good, late_one)]
        await asyncio.gather(*starts)
        assert seen == ["open"]  # the second one has waited for the first
        await bad._store.close()
        with pytest.raises(StoreClosed):
            await bad.start()
        assert (seen, app.resources) == (["open"], "shared")
        await late_one.stop()
        await good.stop()

    asyncio.run(run())
    assert (seen, app.resources) == (["open", "closed"], None)


def test_a_child_process_opens_its_own(tmp_path: Path) -> None:
    with_children.url = sqlite.database(tmp_path / "late.db")
    said = tmp_path / "said"
    enqueue(with_children, "tell", file=str(said))
    assert tell.process
    assert drain(with_children) == {"done": 1}
    opened_by, ran_in = said.read_text().split()
    assert opened_by == ran_in != str(os.getpid())


def test_a_generator_behind_another_decorator_is_taken(app: App) -> None:
    def noted(fn: Callable[[], Iterator[str]]) -> Callable[[], Iterator[str]]:
        return wraps(fn)(lambda: fn())

    @app.lifespan
    @noted
    def opened() -> Iterator[str]:
        yield "open"

    seen: list[str] = []

    @app.task
    def use() -> None:
        seen.append(app.resources)

    enqueue(app, "use")
    drain(app)
    assert seen == ["open"]


def test_a_child_whose_function_fails_runs_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def fails() -> Iterator[None]:
        calls.append("called")
        raise ConnectionError
        yield

    made = App(f"sqlite:///{tmp_path}/late.db")
    made.lifespan(fails)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            made.span.open_in_child()
    assert len(calls) == 2


def test_what_is_no_such_function_is_refused(app: App) -> None:
    def takes(app: object) -> Iterator[None]:
        yield

    with pytest.raises(ConfigError, match="without arguments"):
        app.lifespan(takes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="yields once"):
        app.lifespan(lambda: None)

    @app.lifespan
    def opened() -> Iterator[None]:
        yield

    with pytest.raises(ConfigError, match="already"):
        app.lifespan(opened)
