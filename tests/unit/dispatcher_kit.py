"""A registered function without an app, and a dispatcher whose outcomes can be awaited."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from late.dispatcher.dispatcher import Dispatcher
from late.errors import DecodeError
from late.handler.outcomes import Retry
from late.model.ids import new_id
from late.model.task import Attempt, Kind, Options, Outcome, Record, TaskId

NOW_US = 1_800_000_000_000_000


@dataclass
class Task:
    """The least that satisfies `late.dispatcher.handler.Handler`."""

    fn: Callable[..., Any]
    process: bool = False
    timeout_s: float | None = None
    retry: Retry | None = None
    soft_timeout_s: float | None = None
    overlap_on_timeout: bool = False

    @property
    def name(self) -> str:
        return self.fn.__name__

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.fn)

    @property
    def wants_context(self) -> bool:
        return "ctx" in inspect.signature(self.fn).parameters

    def decode(self, record: Record, options: Options | None) -> dict[str, Any]:
        try:
            arguments: dict[str, Any] = json.loads(record.payload)
        except ValueError as error:
            raise DecodeError("not JSON", reason="undecodable") from error
        return arguments


def task(**options: Any) -> Callable[[Callable[..., Any]], Task]:
    """Puts a `Task` where the function was, as `@app.task` does."""
    return lambda fn: Task(fn, **options)


def attempt(
    name: str = "work",
    *,
    shard_id: int = 0,
    epoch: int = 1,
    number: int = 1,
    deadline_us: int | None = None,
    payload: bytes | None = None,
    task_id: TaskId | None = None,
    headers: str | None = None,
    **arguments: Any,
) -> Attempt:
    """An attempt of `name` with these arguments."""
    record = Record(
        shard_id,
        1,
        task_id or new_id(shard_id),
        "payments",
        name,
        json.dumps(arguments).encode() if payload is None else payload,
        headers,
        None,
        NOW_US - 2_000_000,
        0,
    )
    return Attempt("default", record, number, 0, epoch, NOW_US - 1_000_000, None, deadline_us)


class Rig:
    """A dispatcher, and what it reported."""

    def __init__(
        self,
        *tasks: Task,
        on_batch: Callable[[list[Outcome]], None] | None = None,
        **options: Any,
    ) -> None:
        self.batches: list[list[Outcome]] = []
        self._news = asyncio.Event()
        self._on_batch = on_batch
        self.dispatcher = Dispatcher(
            {task.name: task for task in tasks},
            worker_id="w1",
            now_us=lambda: NOW_US,
            on_finished=self._finished,
            rng=random.Random(1),
            **({"url": "sqlite:///nowhere.db"} | options),
        )

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for batch in self.batches for outcome in batch]

    @property
    def kinds(self) -> list[Kind]:
        return [outcome.kind for outcome in self.outcomes]

    def _finished(self, batch: list[Outcome]) -> None:
        self.batches.append(batch)
        self._news.set()
        if self._on_batch is not None:
            self._on_batch(batch)

    async def ended(self, count: int) -> list[Outcome]:
        """The first `count` outcomes, as soon as there are that many."""
        await self.until(lambda: len(self.outcomes) >= count)
        return self.outcomes

    async def until(self, condition: Callable[[], bool], limit_s: float = 120) -> None:
        """Wait for something that comes with an outcome."""
        async with asyncio.timeout(limit_s):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def run(self, *attempts: Attempt) -> list[Outcome]:
        """Submit, and wait for all of them."""
        before = len(self.outcomes)
        self.dispatcher.submit(attempts)
        return (await self.ended(before + len(attempts)))[before:]


@asynccontextmanager
async def rig(*tasks: Task, **options: Any) -> AsyncIterator[Rig]:
    """A started dispatcher, stopped at the end."""
    made = Rig(*tasks, **options)
    await made.dispatcher.start()
    try:
        yield made
    finally:
        await made.dispatcher.stop(0)


def by_id(outcomes: Sequence[Outcome]) -> dict[TaskId, Outcome]:
    return {outcome.attempt.record.task_id: outcome for outcome in outcomes}
