"""A handler whose body is in what it returned has not run: it is never called done."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import late
from late.control import Control
from late.errors import DecodeError
from late.handler.classify import returned
from late.outbox import connect
from late.schema import migrate
from late.testing import drain, inline


def timed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as services have them: a plain function around any other."""

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return run


ran: list[int] = []


@timed
async def decorated(n: int) -> None:
    ran.append(n)


@timed
async def together(batch: late.Batch[int]) -> None:
    ran.extend(item.value for item in batch)


async def forgotten(n: int) -> Any:
    return decorated(n)


def lazily(ctx: late.Context, n: int) -> Any:
    ctx.count("calls")
    return decorated(n)


KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "a decorator": (decorated, {}),
    "its coroutine": (forgotten, {}),
    "a context": (lazily, {}),
    "a transaction": (lazily, {"transaction": True}),
    "a batch": (together, {"batch": 5}),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_dead_letter_that_says_so(kind: str, tmp_path: Path) -> None:
    fn, options = KINDS[kind]
    app = late.App(f"sqlite:///{tmp_path}/a.db")
    migrate.upgrade(app.url)
    task: Any = app.task(name="it", **options)(fn)
    with connect(app.url) as tx:
        task.enqueue(tx, 7)
    assert drain(app) == {"dead": 1}
    assert ran == []
    with Control(app.url) as control:
        [letter] = control.dead_letters.find()
    assert letter.reason == "invalid_result"
    assert "nobody runs" in letter.errors[-1].error


def test_a_second_block_is_no_done_task(tmp_path: Path) -> None:
    app = late.App(f"sqlite:///{tmp_path}/a.db")
    migrate.upgrade(app.url)

    @app.task(retry=late.Retry(max_attempts=3, base=0.01))
    def two(ctx: late.Context) -> None:
        with ctx.once() as tx:
            tx.execute("create table effect (n integer)")
        with ctx.once() as tx:
            tx.execute("insert into effect values (2)")

    with connect(app.url) as tx:
        two.enqueue(tx)
    assert drain(app) == {"dead": 1}
    with Control(app.url) as control:
        [letter] = control.dead_letters.find()
    assert [each.attempt for each in letter.errors] == [1]
    assert "SecondBlock: two: a task has one block of once()" in letter.errors[0].error


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["a decorator", "its coroutine", "a context", "a batch"])
def test_a_box_raises_it(kind: str) -> None:
    fn, options = KINDS[kind]
    app = late.App("sqlite:///x.db")
    task: Any = app.task(name="it", **options)(fn)
    with inline(app) as box:
        task.enqueue(None, 7)
        with pytest.raises(DecodeError, match="nobody runs"):
            box.run()
    assert ran == []


def test_what_only_can_be_awaited_is_a_value() -> None:
    class Later:
        def __await__(self) -> Iterator[None]:
            yield

    assert returned(Later()).kind == "done"
