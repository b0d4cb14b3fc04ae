"""The target *this process*: coroutines on the event loop, functions in threads, and in child
processes where the handler asks for one.

A coroutine runs inside its slot's task, driven step by step in a `contextvars` context of its
own. A task per attempt would give the same isolation for 7.7 µs; a copied context and one more
frame cost 0.9 µs (measured by `bench/micro_dispatch.py` and its predecessor on the same machine).
What remains shared is `asyncio.current_task()`: it is the slot's and serves one attempt after the
other, so a handler must not keep it, cancel it later, or key a registry by it without clearing
that when it ends.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from late.dispatcher.handler import Bound, Handler
from late.dispatcher.local.process_pool import Processes
from late.dispatcher.local.slot import Slot
from late.dispatcher.local.soft_limit import SoftLimitedCall
from late.dispatcher.local.threads import Threads
from late.dispatcher.subject_keys import arguments_with, fetch
from late.handler.classify import INTERRUPTED, Refused
from late.handler.context import AsyncContext, Context
from late.handler.outcomes import AlreadyDone
from late.model.task import Attempt
from late.outbox.connections import load_driver
from late.outbox.idle_connections import IdleConnections
from late.payload.subject_keys import SubjectKeyNeeded

_C = TypeVar("_C", AsyncContext, Context)


class Waiting:
    """A handler that has not ended yet: `await waiting.work` for what it returns or raises."""

    __slots__ = ("work",)

    def __init__(self, work: Awaitable[object]) -> None:
        self.work = work


class InProcess:
    """Calls handlers. One per dispatcher; `start` and `close` may be called twice."""

    def __init__(self, *, url: str, processes: Processes, concurrency: int) -> None:
        self._url = url
        self._idle = IdleConnections(concurrency)
        self._threads = Threads()
        self._processes = processes

    async def start(self, handlers: Collection[Handler]) -> None:
        """Start the child processes if any of `handlers` wants one. Does not wait for them.

        Raises:
            ConfigError: a child could not find one of the handlers.
        """
        if any(handler.wants_context for handler in handlers):
            load_driver(self._url)
        await self._processes.start([handler for handler in handlers if handler.process])

    async def close(self) -> None:
        """Kill the children, whatever they do; let threads end by themselves.

        The connections of handlers are closed last, and those of such threads when they end.
        """
        self._threads.close()
        await self._processes.close()
        self._idle.close()

    def call(self, slot: Slot, bound: Bound, attempt: Attempt) -> object:
        """Return what a coroutine returned, or the `Verdict` of a child process; `Waiting` for it
        where it takes longer than one step. No coroutine: a no-op would pay for one of ours.

        Sets the slot's deadline when the handler starts. Cancellation is thrown into a coroutine
        and kills a child.

        Raises: whatever decoding and the handler raise.
        """
        if bound.process:
            return Waiting(self._processes.call(slot, bound, attempt))
        if not bound.is_async:  # It was registered after the attempt had come.
            slot.interruptible = False
            return Waiting(self.in_thread(partial(self.call_here, slot, bound, attempt)))
        try:
            arguments = bound.decode(attempt.record, attempt.options)
        except SubjectKeyNeeded as needed:
            return Waiting(self._call_with(needed, slot, bound, attempt))
        slot.run(bound)
        context = None
        if bound.wants_context:
            context = self._context(AsyncContext, slot, bound, attempt)
            work = bound.fn(context, **arguments)
        else:
            work = bound.fn(**arguments)
        if type(work) is not types.CoroutineType:
            work = _as_coroutine(work)
        variables = copy_context()
        try:
            step = variables.run(work.send, None)
        except StopIteration as end:  # It never waited: no further machinery.
            return end.value if context is None else context.counted(end.value)
        except AlreadyDone as signal:
            return signal if context is None else context.counted(signal)
        return Waiting(_resume(work, variables, step, slot, context))

    async def _call_with(
        self, needed: SubjectKeyNeeded, slot: Slot, bound: Bound, attempt: Attempt
    ) -> object:
        """Read the key that is needed, and return what `call` does then."""
        slot.deadline = slot.begun + bound.timeout_s  # The database may not answer.
        await self.in_thread(partial(fetch, self._url, needed, self._idle))
        value = self.call(slot, bound, attempt)
        return await value.work if isinstance(value, Waiting) else value

    async def in_thread(self, call: Callable[[], object]) -> object:
        """Return or raise what `call()` does in a thread; see `Threads.run`."""
        return await self._threads.run(call)

    def call_here(self, slot: Slot, bound: Bound, attempt: Attempt) -> object:
        """Return what a `def` handler does in this thread, which `in_thread` has given.

        Raises: whatever decoding and the handler raise; `Refused` after a stop.
        """
        fn, context = bound.fn, None
        try:
            arguments = bound.decode(attempt.record, attempt.options)
        except SubjectKeyNeeded as needed:
            arguments = arguments_with(needed, bound, attempt, self._url, self._idle)
        if bound.wants_context:
            context = self._context(Context, slot, bound, attempt)
            fn = partial(fn, context)
        if bound.soft_timeout_s is not None:
            fn = slot.soft_call = SoftLimitedCall(partial(fn, **arguments))
            arguments = {}
        slot.run(bound)
        if slot.is_over(attempt):  # Reported by a stop: it must not start after that.
            raise Refused(INTERRUPTED)
        if context is None:
            return fn(**arguments)
        try:
            value = fn(**arguments)
        except AlreadyDone as signal:
            value = signal
        return context.counted(value)

    def _context(self, kind: type[_C], slot: Slot, bound: Bound, attempt: Attempt) -> _C:
        return kind(
            attempt,
            slot.started_us,
            bound.timeout_s,
            bound.attempts_max,
            self._url,
            slot.beat,
            bound.soft_timeout_s,
            slot,
            self._idle,
        )


@types.coroutine
def _resume(
    work: Coroutine[Any, Any, Any],
    variables: Variables,
    step: Any,
    slot: Slot,
    context: AsyncContext | None,
) -> Generator[Any, Any, Any]:
    """`yield from work`, from its first `step` on, with every further step inside `variables`."""
    run = variables.run
    try:
        while True:
            try:
                sent = yield step
            except BaseException as thrown:
                step = run(work.throw, slot.thrown(thrown))
            else:
                step = run(work.send, sent)
    except StopIteration as end:
        value = end.value
    except AlreadyDone as signal:
        value = signal
    return value if context is None else context.counted(value)


async def _as_coroutine(work: Awaitable[Any]) -> Any:
    return await work
