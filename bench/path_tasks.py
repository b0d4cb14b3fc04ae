"""The tasks whose path `bench/path.py` can count: a plain one, and one with each option alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import late
from late.model.task import ShardId

SHARDS = 8
SMALL = b'{"n":1000000,"note":"' + b"x" * 100 + b'"}'
LARGE = b'{"n":1000000,"note":"' + b"x" * 2_000 + b'"}'
PRIORITIES = (-10, 5, 10, 50)
KEYS = 200

Row = tuple[int, int, str, str, str, bytes, None, str | None, int, int]

app = late.App("postgresql://localhost/none")
def_app = late.App(app.url)
"""An app of its own: where a worker has handlers for threads, coroutines pay a look for them."""


@app.task(queue="bench")
async def nothing(n: int, note: str) -> None:
    """The no-op."""


@app.task(queue="bench")
async def with_context(ctx: late.AsyncContext, n: int, note: str) -> None:
    """The no-op that is given its context."""


@app.task(queue="bench", history=True)
async def with_history(n: int, note: str) -> None:
    """The no-op whose steps are kept."""


@app.task(queue="bench", result_ttl=60)
async def with_result(n: int, note: str) -> int:
    """The no-op whose result is kept."""
    return n


@def_app.task(queue="bench")
def in_thread(n: int, note: str) -> None:
    """The no-op of a plain `def`."""


def _none(number: int) -> None:
    return None


def _priority(number: int) -> str:
    return f'{{"priority":{PRIORITIES[number % len(PRIORITIES)]}}}'


def _unique(number: int) -> str:
    return f'{{"unique_key":"order-{number:012d}"}}'


def _ordering(number: int) -> str:
    return f'{{"ordering_key":"customer-{number % KEYS}","layout":1}}'


@dataclass(frozen=True)
class Shape:
    """One kind of task."""

    says: str
    name: str = nothing.name
    app: late.App = app
    payload: bytes = SMALL
    options: Callable[[int], str | None] = _none
    """The column of the task of this number."""

    def rows(self, count: int) -> dict[ShardId, list[Row]]:
        """Make rows as they come from the driver, by shard. `KEYS` is a multiple of `SHARDS`, so
        that each key has one shard."""
        found: dict[ShardId, list[Row]] = {ShardId(n): [] for n in range(SHARDS)}
        for number in range(count):
            shard = ShardId(number % SHARDS)
            task_id = f"01999999-0000-7000-8000-{number:012x}"
            payload, options = self.payload, self.options(number)
            row = (shard, number, task_id, "bench", self.name, payload, None, options, 1, 1)
            found[shard].append(row)
        return found


SHAPES = {
    "plain": Shape("`async def`, no option"),
    "def": Shape("`def`, in a thread", in_thread.name, def_app),
    "context": Shape("with a context", with_context.name),
    "payload": Shape("2 KB of payload", payload=LARGE),
    "priority": Shape("a priority, of four", options=_priority),
    "unique": Shape("a unique key", options=_unique),
    "ordering": Shape(f"an ordering key, of {KEYS}", options=_ordering),
    "history": Shape("with its history", with_history.name),
    "result": Shape("with its result", with_result.name),
}
"""By name; the first is what the others are compared with."""
