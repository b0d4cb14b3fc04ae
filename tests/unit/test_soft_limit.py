"""`SoftTimeLimit` in a coroutine, a thread and a child process, and `ctx.check()`."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import late
from late.dispatcher.local import soft_limit
from late.dispatcher.local.soft_limit import SoftLimitedCall
from late.errors import ConfigError
from late.handler.context import AsyncContext, Context
from late.model.task import Outcome
from tests.unit.dispatcher_kit import Task, attempt, rig, task

SOFT: dict[str, Any] = {"soft_timeout_s": 0.05, "timeout_s": 30.0}


@pytest.fixture(autouse=True)
def _no_garbage() -> Iterator[None]:
    """Leave nothing of other tests to the garbage collector: in a finalizer the limit is lost."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def spin(ctx: AsyncContext) -> None:
    await asyncio.sleep(30)


def in_thread(ctx: Context) -> None:
    while True:
        time.sleep(0.001)


@task(process=True, **SOFT)
def in_child(ctx: Context) -> None:
    """Waits in C code, where only a signal reaches it."""
    time.sleep(30)


async def one(handler: Task, **options: object) -> Outcome:
    async with rig(handler, concurrency=1, process_workers=1, **options) as it:
        (outcome,) = await it.run(attempt(handler.name))
        assert it.dispatcher.stuck.count == 0
        return outcome


HANDLERS = [Task(spin, **SOFT), Task(in_thread, **SOFT), in_child]


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: handler.name)
async def test_a_handler_that_lets_the_limit_out_has_timed_out(handler: Task) -> None:
    outcome = await one(handler)
    assert (outcome.kind, outcome.retryable, outcome.overloaded) == ("failed", True, True)
    assert (outcome.error or "").startswith("late.errors.SoftTimeLimit: the time of this attempt")
    assert outcome.busy_us >= 50_000


async def test_a_coroutine_can_clean_up_and_go_on() -> None:
    seen: list[str] = []

    @task(**SOFT)
    async def work() -> None:
        try:
            async with asyncio.timeout(120):
                await asyncio.sleep(30)
        except late.SoftTimeLimit:
            await asyncio.sleep(0.3)  # many times the limit: it comes once
            seen.append("saved")

    assert (await one(work)).kind == "done"
    assert seen == ["saved"]


async def test_a_thread_can_clean_up_and_go_on() -> None:
    seen: list[str] = []

    @task(**SOFT)
    def work() -> None:
        try:
            while True:
                time.sleep(0.001)
        except late.SoftTimeLimit:
            time.sleep(0.3)
            seen.append("saved")

    assert (await one(work)).kind == "done"
    assert seen == ["saved"]


async def test_the_time_out_still_ends_who_goes_on() -> None:
    @task(soft_timeout_s=0.02, timeout_s=0.1)
    async def work() -> None:
        try:
            await asyncio.sleep(30)
        except late.SoftTimeLimit:
            await asyncio.sleep(30)

    outcome = await one(work)
    assert (outcome.kind, outcome.error) == ("failed", "timed out after 0.1 s")


async def test_the_limit_counts_from_the_last_heartbeat() -> None:
    @task(soft_timeout_s=2, timeout_s=30)
    async def work(ctx: AsyncContext) -> None:
        began = time.monotonic()
        while time.monotonic() - began < 2.5:
            ctx.heartbeat()
            await asyncio.sleep(0.01)

    assert (await one(work)).kind == "done"


async def test_who_ends_in_time_leaves_nothing_to_the_next_in_the_same_thread() -> None:
    """The limit and the end of a handler meet again and again; nobody else ever sees the limit."""

    @task(soft_timeout_s=0.01, timeout_s=30)
    def close() -> None:
        end = time.monotonic() + 0.0101
        while time.monotonic() < end:
            pass

    @task()
    def other() -> int:
        return sum(range(2_000))

    async with rig(close, other, concurrency=1) as it:
        for _ in range(40):
            await it.run(attempt("close"), attempt("other"), attempt("other"))
    assert {o.kind for o in it.outcomes if o.attempt.record.name == "other"} == {"done"}
    assert {o.kind for o in it.outcomes if o.attempt.record.name == "close"} <= {"done", "failed"}


def test_a_limit_after_the_end_changes_nothing() -> None:
    call = SoftLimitedCall(lambda: 7)
    assert call() == 7
    call.interrupt()
    assert sum(range(10_000)) == 49_995_000


def test_what_a_call_raises_is_never_lost_to_the_limit() -> None:
    """Whenever the limit comes, a call that fails does not look like one that succeeded."""

    def fails() -> None:
        raise LookupError

    for _ in range(300):
        call = SoftLimitedCall(fails)
        seen: list[BaseException] = []
        thread = threading.Thread(target=_keep, args=(call, seen))
        thread.start()
        call.interrupt()
        thread.join(120)
        assert isinstance(seen[0], LookupError | late.SoftTimeLimit)


def _keep(call: Callable[[], object], seen: list[BaseException]) -> None:
    try:
        call()
    except BaseException as error:
        seen.append(error)


def test_a_process_with_limits_can_be_profiled() -> None:
    """CPython 3.11 hangs under a profiler where an exception for a thread was taken back."""
    script = """
import sys, threading, time
import late
from late.dispatcher.local.soft_limit import SoftLimitedCall

def busy(seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass

for seconds in (0.0, 0.05, 30.0):
    call = SoftLimitedCall(lambda: busy(seconds))
    def run():
        try:
            call()
        except late.SoftTimeLimit:
            pass
    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.02)
    call.interrupt()
    thread.join()
sys.setprofile(lambda *_: None)
sorted([2, 1], key=lambda each: each)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_finalizer_that_swallows_the_drain_does_not_hang_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From CPython 3.12 on the exception may appear in a finalizer, and is lost there."""
    raised: list[type] = []
    real = soft_limit._raise_in

    def raise_in(thread: int, kind: type) -> None:
        raised.append(kind)
        if len(raised) > 2:  # the first two are lost
            real(thread, kind)

    monkeypatch.setattr(soft_limit, "_raise_in", raise_in)
    soft_limit._drain(threading.get_ident())
    assert len(raised) == 3


async def test_check_raises_when_the_time_is_over() -> None:
    seen: list[str] = []

    @task(soft_timeout_s=1.0, timeout_s=30)
    async def work(ctx: AsyncContext) -> None:
        ctx.check()
        seen.append("in time")
        time.sleep(1.01)  # noqa: ASYNC251  the loop cannot raise it meanwhile
        ctx.check()

    @task(timeout_s=0.05)
    async def without(ctx: AsyncContext) -> None:
        time.sleep(0.06)  # noqa: ASYNC251
        ctx.check()

    assert "SoftTimeLimit" in str((await one(work)).error)
    assert seen == ["in time"]
    assert "SoftTimeLimit" in str((await one(without)).error)


def test_the_limit_of_a_task_is_below_its_time_out() -> None:
    app = late.App("sqlite:///nowhere.db")
    with pytest.raises(ConfigError, match="soft_timeout_s is below timeout_s, 10; got 10"):
        app.task(soft_timeout_s=10, timeout_s=10)(in_thread)
    with pytest.raises(ConfigError, match="soft_timeout_s"):

        @app.task(batch=5, soft_timeout_s=1)
        def many(batch: late.Batch[int]) -> None: ...

    assert app.task(soft_timeout_s=9, timeout_s=10)(in_thread).soft_timeout_s == 9


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "timeouts.md").read_text()
    names: dict[str, Any] = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    (tmp_path / "a.png").touch()
    calls: list[str] = []
    ctx = SimpleNamespace(
        check=lambda: calls.append("check"), heartbeat=lambda: calls.append("beat")
    )
    names["thumbnails"](ctx, str(tmp_path))
    assert calls == ["check", "beat"]
    assert (names["thumbnails"].soft_timeout_s, names["thumbnails"].timeout_s) == (50, 60)
