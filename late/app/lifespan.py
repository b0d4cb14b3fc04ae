"""Resources that handlers share for as long as a worker runs: a client, a pool, a model.

A service writes one function that yields once, as Starlette's and FastAPI's lifespan is written.
What is before the `yield` runs before the first handler, what is after it runs behind the last.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any

from late.errors import ConfigError, DispatchError
from late.handler.classify import describe

logger = logging.getLogger("late.lifespan")

LOOK_S = 0.05

_Block = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]


class LifespanFailed(DispatchError):
    """The function of `app.lifespan` failed before its `yield`, so no task was started."""


def blocks_of(fn: Callable[[], Any]) -> Callable[[], _Block]:
    """Return what makes a block of a lifespan function: a generator, or a context manager.

    Raises:
        ConfigError: it is neither.
    """
    plain = inspect.unwrap(fn)
    if inspect.isasyncgenfunction(plain):
        return fn if fn is not plain else asynccontextmanager(fn)
    if inspect.isgeneratorfunction(plain):
        return fn if fn is not plain else contextmanager(fn)
    raise ConfigError(
        "app.lifespan takes a function without arguments that yields once what handlers share,"
        f" got {getattr(fn, '__qualname__', fn)!r}"
    )


class Lifespan:
    """The lifespan of an app in one process. Workers of one app in one process share it: the first
    opens it, the last closes it. Without a function it does nothing."""

    def __init__(self, on_change: Callable[[Any], None]) -> None:
        """
        Args:
            on_change: gets what was yielded when it is opened, and None when it is closed.
        """
        self._on_change = on_change
        self._make: Callable[[], _Block] | None = None
        self._block: _Block | None = None
        self._users = 0
        self.waits_for = ""
        """The reason why a worker is not ready, while the function runs up to its `yield`."""

    @property
    def is_set(self) -> bool:
        return self._make is not None

    def set(self, fn: Callable[[], Any]) -> None:
        """
        Raises:
            ConfigError: there is one already, or `fn` is no such function.
        """
        if self._make is not None:
            raise ConfigError("the app has a lifespan already: one function yields all of it")
        self._make = blocks_of(fn)

    async def open(self, stop_asked: asyncio.Event) -> None:
        """Run the function up to its `yield`; one that is not async runs in a thread.

        Raises:
            LifespanFailed: it raised an error, which is the cause; or a stop was asked for. A
                thread that has not come to an end is left alone then.
        """
        # Another worker of this process is at it, perhaps in another event loop.
        while self.waits_for:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        if self._make is not None and not self._users:
            await self._enter(self._make(), stop_asked)
        self._users += 1

    async def _enter(self, block: _Block, stop_asked: asyncio.Event) -> None:
        self.waits_for = "it starts: the function of app.lifespan has not yielded yet"
        entering = asyncio.ensure_future(_entered(block))
        asking = asyncio.ensure_future(stop_asked.wait())
        try:
            await asyncio.wait({entering, asking}, return_when=asyncio.FIRST_COMPLETED)
            if not entering.done():
                raise LifespanFailed("a stop was asked for while the function of app.lifespan ran")
            if (error := entering.exception()) is not None:
                raise LifespanFailed(
                    f"the function of app.lifespan failed, no task was started: {describe(error)}"
                ) from error
            self._block = block
            self._on_change(entering.result())
        finally:
            self.waits_for = ""
            asking.cancel()
            entering.cancel()

    async def close(self) -> None:
        """Run the rest of the function, if this is the last of those that have opened it. What it
        raises is logged: the tasks have ended."""
        self._users -= 1
        block = self._block
        if block is None or self._users:
            return
        self._block = None
        self._on_change(None)
        try:
            await _left(block)
        except Exception:
            logger.exception("the function of app.lifespan failed behind its yield")

    def open_in_child(self) -> None:
        """Run the function up to its `yield` in a child process, whose end closes it.

        Only one that is not async runs there: a child runs handlers that are not async either.
        """
        if self._make is None or self._block is not None:
            return
        block = self._make()
        if isinstance(block, AbstractContextManager):
            self._block = block
            self._on_change(block.__enter__())


async def _entered(block: _Block) -> Any:
    if isinstance(block, AbstractAsyncContextManager):
        return await block.__aenter__()
    return await _in_own_thread(block.__enter__)


async def _left(block: _Block) -> None:
    if isinstance(block, AbstractAsyncContextManager):
        await block.__aexit__(None, None, None)
    else:
        await _in_own_thread(lambda: block.__exit__(None, None, None))


async def _in_own_thread(call: Callable[[], Any]) -> Any:
    """Run `call` in a thread that does not hold up the end of the process, as those of the event
    loop do: a service that cannot be reached must not make Ctrl-C useless."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def tell(value: Any, error: BaseException | None) -> None:
        if done.done():
            return
        done.set_result(value) if error is None else done.set_exception(error)

    def run() -> None:
        value, failure = None, None
        try:
            value = call()
        except BaseException as error:
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, value, failure)

    threading.Thread(target=run, name="late-lifespan", daemon=True).start()
    return await done
