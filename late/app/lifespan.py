"""Resources that handlers share for as long as a worker runs: a client, a pool, a model.

A service writes one function that yields once, as Starlette's and FastAPI's lifespan is written.
What is before the `yield` runs before the first handler, what is after it runs behind the last; an
async function runs in one task of asyncio, as a task group or a context variable needs it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable
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
CLOSE_S = 10.0
"""The longest time that what is behind the `yield` may take: a stop does not wait for ever."""

_Block = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]


class LifespanFailed(DispatchError):
    """The function of `app.lifespan` failed before its `yield`, so no task was started."""


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
        self._task: asyncio.Task[None] | None = None
        """Holds the resources until `_end`, from a function that has yielded."""
        self._end = asyncio.Event()
        self._users = 0
        self._in_child: AbstractContextManager[Any] | None = None
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
        self._make = _blocks_of(fn)

    async def open(self, stop_asked: asyncio.Event) -> None:
        """Run the function up to its `yield`; one that is not async runs in a thread.

        Who has opened it closes it once.

        Raises:
            LifespanFailed: it raised an error, which is the cause; or a stop was asked for. A
                thread that has not come to an end is left alone then.
        """
        # Another worker of this process is at it, perhaps in another event loop.
        while self.waits_for:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        if self._make is not None and not self._users:
            self.waits_for = "it starts: the function of app.lifespan has not yielded yet"
            try:
                await self._begin(self._make, stop_asked)
            finally:
                self.waits_for = ""
        self._users += 1

    async def _begin(self, make: Callable[[], _Block], stop_asked: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        yielded: asyncio.Future[Any] = loop.create_future()
        self._end = asyncio.Event()
        holding = loop.create_task(self._hold(make, yielded, self._end), name="late-lifespan")
        asking = loop.create_task(stop_asked.wait())
        try:
            await asyncio.wait({yielded, holding, asking}, return_when=asyncio.FIRST_COMPLETED)
            if holding.done() and (error := holding.exception()) is not None:
                raise LifespanFailed(
                    f"the function of app.lifespan failed, no task was started: {describe(error)}"
                ) from error
            if not yielded.done():
                raise LifespanFailed("a stop was asked for while the function of app.lifespan ran")
        except BaseException:
            holding.cancel()
            raise
        finally:
            asking.cancel()
        self._task = holding
        self._on_change(yielded.result())

    @staticmethod
    async def _hold(
        make: Callable[[], _Block], yielded: asyncio.Future[Any], end: asyncio.Event
    ) -> None:
        block = make()
        entered = _in_threads(block) if isinstance(block, AbstractContextManager) else block
        async with entered as value:
            yielded.set_result(value)
            await end.wait()

    async def close(self) -> None:
        """Run the rest of the function, if nobody else has it open, for `CLOSE_S` at most. What it
        raises is logged: the tasks have ended."""
        self._users -= 1
        task = self._task
        if task is None or self._users:
            return
        self._task = None
        self._on_change(None)
        self._end.set()
        try:
            async with asyncio.timeout(CLOSE_S):
                await task
        except TimeoutError:
            logger.error("app.lifespan: what is behind the yield has not ended in %g s", CLOSE_S)
        except Exception:
            logger.exception("the function of app.lifespan failed behind its yield")

    def open_in_child(self) -> None:
        """Run the function up to its `yield` in a child process, whose end closes it.

        Only one that is not async runs there: a child runs handlers that are not async either.
        """
        if self._make is None or self._in_child is not None:
            return
        block = self._make()
        if isinstance(block, AbstractContextManager):
            self._on_change(block.__enter__())
            self._in_child = block


def _blocks_of(fn: Callable[[], Any]) -> Callable[[], _Block]:
    """Return what makes a block of a lifespan function: a generator, or a context manager.

    Raises:
        ConfigError: it is neither, or takes arguments.
    """
    plain = inspect.unwrap(fn)
    named = getattr(fn, "__qualname__", fn)
    if not (inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain)):
        raise ConfigError(
            f"app.lifespan takes a function that yields once what handlers share, got {named!r}"
        )
    try:
        inspect.signature(fn).bind()
    except TypeError as error:
        raise ConfigError(f"app.lifespan calls {named!r} without arguments: {error}") from None

    def make() -> _Block:
        made = fn()
        if inspect.isgenerator(made):
            return contextmanager(lambda: made)()
        return asynccontextmanager(lambda: made)() if inspect.isasyncgen(made) else made

    return make


@asynccontextmanager
async def _in_threads(block: AbstractContextManager[Any]) -> AsyncIterator[Any]:
    value = await _in_own_thread(block.__enter__)
    yield value
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
