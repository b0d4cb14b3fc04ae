"""Handlers with `transaction=True` in a shadow: one transaction each, which is rolled back.

Its settlement is not in it: what happened is recorded as for other tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from late.dispatcher.local.threads import Threads
from late.handler.context import AsyncContext, tag_of
from late.handler.shared_context import SharedAsyncContext, SharedContext
from late.observability import conflicts
from late.outbox.shared import SharedTransaction, SharedTransactions


class ShadowRuns:
    """Runs handlers without effects."""

    def __init__(self, transactions: SharedTransactions, threads: Threads) -> None:
        self._transactions = transactions
        self._threads = threads

    async def run(
        self, context: AsyncContext, call: Callable[[Any], Any], *, is_async: bool
    ) -> object:
        """Return or raise what the handler does. What it did is rolled back.

        Cancelled, it ends when the handler does: no repeat runs beside it.
        """
        if is_async:
            return await self._run_here(context, call)
        work = asyncio.ensure_future(self._threads.run(lambda: self._run(context, call)))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise

    def _run(self, context: AsyncContext, call: Callable[[Any], Any]) -> object:
        tx = self._begin(False)
        try:
            value: object = copy_context().run(_tagged, context, call, SharedContext(context, tx))
            tx.flush()
            _check(tx)
            return value
        finally:
            tx.end_session()
            _end(tx)

    async def _run_here(self, context: AsyncContext, call: Callable[[Any], Any]) -> object:
        tx = await self._threads.run(lambda: self._begin(True))
        try:
            value: object = await _tagged(context, call, SharedAsyncContext(context, tx))
            await tx.flush_async()
            _check(tx)
            return value
        finally:
            try:
                await tx.end_session_async()
            finally:
                await asyncio.shield(self._threads.run(lambda: _end(tx)))

    def _begin(self, is_async: bool) -> SharedTransaction:
        tx = self._transactions.begin(is_async)
        try:
            tx.hold()
        except BaseException:
            _end(tx)
            raise
        return tx


def _tagged(context: AsyncContext, call: Callable[[Any], Any], given: object) -> Any:
    conflicts.use(tag_of(context.own))
    return call(given)


def _check(tx: SharedTransaction) -> None:
    if (error := tx.error) is not None:
        raise error


def _end(tx: SharedTransaction) -> None:
    tx.roll_back()
    tx.close()
