"""One shared transaction of `async def` handlers, one after the other, on the worker's loop.

Only what blocks is done in a thread: to begin, and to commit.
"""

from __future__ import annotations

import asyncio
from typing import Any

from late.dispatcher.local.threads import Threads
from late.dispatcher.transactions.run import Run, Turn
from late.handler.context import AttemptOver, tag_of
from late.handler.shared_context import SharedAsyncContext
from late.observability import conflicts
from late.outbox.shared import SharedTransaction


class AsyncRun(Run):
    """A transaction and its turns, which are coroutines."""

    _handler: asyncio.Task[Any] | None = None

    async def serve(self, threads: Threads) -> None:
        began = False
        try:
            self.tx = tx = await threads.run(lambda: self._begin(True))
            began = True
            await self._take_turns_here(tx)
            await threads.run(lambda: self._last(tx))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not began and isinstance(error, RuntimeError):
                raise  # No thread.
            self.lost, self.error = True, error

    def interrupt(self) -> None:
        if self._handler is not None:
            self._handler.cancel()

    async def _take_turns_here(self, tx: SharedTransaction) -> None:
        began, first = self._monotonic(), True
        while self._goes_on(began):
            if not first:
                await tx.next_async()
            if (turn := self._next(began)) is None:
                return
            await self._take_turn_here(tx, turn, first=first)
            first = False
            self._over(turn)

    async def _take_turn_here(self, tx: SharedTransaction, turn: Turn, *, first: bool) -> None:
        kept, error = False, None
        try:
            turn.context.heartbeat()  # Its time-out counts from here.
            kept = await self._in_task(tx, turn)
        except BaseException as failure:
            error = self._raised(turn, failure)
        turn.busy_s = self._monotonic() - turn.begun
        await tx.end_session_async()
        if not kept:
            self._undone(tx, turn, error, await tx.undo_async(), first=first)

    async def _in_task(self, tx: SharedTransaction, turn: Turn) -> bool:
        """Run the handler in a task of its own, which a time-out can cancel alone."""

        async def call() -> bool:
            conflicts.use(tag_of(turn.attempt))
            context = SharedAsyncContext(turn.context, tx)
            value: object = await turn.fn(context)  # type: ignore[misc]
            if is_done := self._is_done(turn, context.counted(value)):
                await tx.flush_async()
                self._check(tx)
            return is_done

        if self.over:
            raise AttemptOver("its time was over before it began")
        self._handler = asyncio.get_running_loop().create_task(call(), context=turn.variables)
        try:
            await asyncio.wait([self._handler])
            kept: bool = self._handler.result()
            return kept
        except asyncio.CancelledError:
            if not self._handler.done():  # The loop ends.
                self.over = True
                self._handler.cancel()
            raise
        finally:
            self._handler = None
