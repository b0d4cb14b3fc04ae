"""One stream of a `late.Consumer`. It receives tasks, and sends answers and credits."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from typing import Any

import grpc
import msgspec

from late.handler.classify import DONE, Verdict, raised, returned
from late.handler.outcomes import Signal
from late.observability import traces
from late.payload import values as payloads
from late.v1 import queue_pb2, task_pb2

logger = logging.getLogger("late.consumer")


class PulledTask(msgspec.Struct, frozen=True):
    """One attempt of one task. Times are UTC, by the database's clock."""

    task_id: str
    group: str
    queue: str
    name: str
    payload: dict[str, Any]
    headers: dict[str, str]
    attempt: int
    """1 for the first attempt."""
    enqueued_at: datetime
    due_at: datetime
    receipt: str
    is_replay: bool = False
    keeps_result: bool = False
    """True if the return value of `work` is kept, as JSON; at most 256 KiB."""

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt of the task in its group, and unique to it."""
        return f"{self.group}:{self.task_id}"


Work = Callable[[PulledTask], Any] | Callable[[PulledTask], Awaitable[Any]]


class Session:
    """One stream, from its start to its end."""

    def __init__(
        self, call: Any, work: Work, threads: ThreadPoolExecutor, visibility_s: float
    ) -> None:
        self._call = call
        self._work = work
        self._threads = threads
        self._visibility_s = visibility_s
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._answers: list[tuple[str, Verdict]] = []
        self._unconfirmed: set[str] = set()
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()
        self._ending = False

    async def run(
        self, concurrency: int, opened: Callable[[], None], stop: asyncio.Event | None
    ) -> None:
        assert stop is not None
        loops = [
            asyncio.create_task(loop)
            for loop in (
                self._read(concurrency, opened),
                self._write(),
                self._prolong(),
                self._watch(stop),
            )
        ]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                await self._ended(each)
        finally:
            # With the end of the stream its running tasks go to other consumers. Their outcomes
            # here are of no use.
            for each in [*loops, *self._busy.values()]:
                each.cancel()
            await asyncio.gather(*loops, *self._busy.values(), return_exceptions=True)
            self._call.cancel()

    async def _ended(self, loop: asyncio.Task[None]) -> None:
        """Raise the error that ended the stream, or the error of this loop.

        A loop that writes to a call after its end gets `InvalidStateError` from grpc. In that case
        the status of the call is raised.
        """
        try:
            loop.result()
        except asyncio.InvalidStateError:
            if not self._call.done():
                raise
            await _raise_status(self._call)

    async def _read(self, concurrency: int, opened: Callable[[], None]) -> None:
        while True:
            message = await self._call.read()
            if message is grpc.aio.EOF:
                if not self._ending:
                    await _raise_status(self._call)
                return
            word = message.WhichOneof("message")
            if word == "subscribed":
                opened()
                await self._send(credit=queue_pb2.Credit(tasks=concurrency))
            elif word == "deliveries":
                if self._ending:
                    continue  # It goes back to the server with the end of the stream.
                for delivery in message.deliveries.deliveries:
                    receipt = delivery.receipt
                    self._busy[receipt] = asyncio.create_task(self._one(delivery))
            elif word == "receipts":
                for result in message.receipts.results:
                    self._unconfirmed.discard(result.receipt)
                    if result.status != queue_pb2.ReceiptResult.ACCEPTED:
                        logger.warning("an answer came too late; the task may run again")
                self._news.set()
            elif word == "drain":
                self._ending = True
                self._news.set()

    async def _one(self, delivery: Any) -> None:
        """Execute one task, and queue its answer."""
        span = None
        try:
            task = _task(delivery)
            span = traces.start(_traced(task))
            if inspect.iscoroutinefunction(self._work):
                value = await self._work(task)
            else:
                loop = asyncio.get_running_loop()
                call = partial(copy_context().run, self._work, task)
                value = await loop.run_in_executor(self._threads, call)
            verdict = _judged(value, task.keeps_result)
        except asyncio.CancelledError:
            traces.end(span, "interrupted")
            raise
        except BaseException as error:
            verdict = raised(error, None)
        traces.end(span, verdict.kind, verdict.error)
        self._answers.append((delivery.receipt, verdict))
        self._unconfirmed.add(delivery.receipt)
        self._busy.pop(delivery.receipt, None)
        self._news.set()

    async def _write(self) -> None:
        """Send the queued answers together, and a credit for the next task with each of them."""
        while True:
            await self._news.wait()
            self._news.clear()
            answers, self._answers = self._answers[:1_000], self._answers[1_000:]
            done = [receipt for receipt, verdict in answers if verdict is DONE]
            other = [_answer(*pair) for pair in answers if pair[1] is not DONE]
            if done:
                await self._send(ack=queue_pb2.Ack(receipts=done))
            if other:
                await self._send(nack=queue_pb2.Nack(answers=other))
            if answers and not self._ending:
                await self._send(credit=queue_pb2.Credit(tasks=len(answers)))
            if self._answers:
                self._news.set()
            elif self._ending and not self._busy and not self._unconfirmed:
                await self._call.done_writing()
                return

    async def _prolong(self) -> None:
        while True:
            await asyncio.sleep(self._visibility_s / 3)
            if self._busy:
                receipts = list(self._busy)[:1_000]
                await self._send(extend=queue_pb2.Extend(receipts=receipts))

    async def _watch(self, stop: asyncio.Event) -> None:
        """Wait for `stop`, and then begin the end of the stream.

        No new task starts. Running tasks end, and their answers are sent.
        """
        await stop.wait()
        self._ending = True
        self._news.set()
        await asyncio.Event().wait()

    async def _send(self, **message: Any) -> None:
        async with self._writing:  # Three loops write, and gRPC takes one write at a time.
            await self._call.write(queue_pb2.ConsumeRequest(**message))


async def _raise_status(call: Any) -> None:
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(),
            await call.details(),
        )  # fmt: skip


def _judged(value: object, keep: bool) -> Verdict:
    """Return the verdict on a return value.

    Raises:
        DecodeError: the value is to be kept, and is not JSON or too large.
    """
    verdict = returned(value)
    if not keep or value is None or isinstance(value, Signal) or verdict is not DONE:
        return verdict
    return Verdict("done", result=payloads.result(value))


def _task(delivery: Any) -> PulledTask:
    task = delivery.task
    return PulledTask(
        task_id=task.task_id,
        group=task.group,
        queue=task.queue,
        name=task.name,
        payload=msgspec.json.decode(task.payload or b"{}", type=dict[str, Any]),
        headers=dict(task.headers),
        attempt=task.attempt,
        enqueued_at=task.enqueued_at.ToDatetime(tzinfo=UTC),
        due_at=task.due_at.ToDatetime(tzinfo=UTC),
        receipt=delivery.receipt,
        is_replay=task.is_replay,
        keeps_result=task.keeps_result,
    )


def _traced(task: PulledTask) -> traces.Task:
    return traces.Task(
        task.task_id,
        task.name,
        task.queue,
        task.group,
        task.attempt,
        dict(task.headers),
        target="pull",
    )


def _answer(receipt: str, verdict: Verdict) -> Any:
    answer = queue_pb2.Answer(receipt=receipt)
    reason = verdict.error or verdict.reason or ""
    match verdict.kind:
        case "done":
            answer.done.result = verdict.result or b""
            answer.done.SetInParent()
        case "snooze":
            answer.snooze.reason = reason
            answer.snooze.after.FromMicroseconds(verdict.after_us or 0)
        case "discard":
            answer.discard.reason = reason
        case "not_capable":
            answer.not_capable.reason = reason
        case "dead":  # Its return value cannot be kept.
            answer.fail.reason = reason
        case _ if not verdict.retryable:
            answer.fail.reason = reason
        case _:
            retry = task_pb2.Retry(reason=reason)
            if verdict.after_us is not None:
                retry.after.FromMicroseconds(verdict.after_us)
            answer.retry.CopyFrom(retry)
    return answer
