"""One attempt as a target receives it, and the seam to the callers of targets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from late.handler.classify import Verdict
from late.handler.context import AsyncContext
from late.observability import traces

_PASSED_ON = ("traceparent", "tracestate", "baggage")


class Job(msgspec.Struct, frozen=True):
    """One attempt as a target receives it. Times are UTC."""

    task_id: str
    group: str
    queue: str
    name: str
    payload: bytes
    """An object, name to value, in JSON or as `codec` says; no longer sealed."""
    codec: str
    headers: Mapping[str, str]
    attempt: int
    max_attempts: int | None
    deaths: int
    is_replay: bool
    keeps_result: bool
    enqueued_at: datetime
    due_at: datetime
    expires_at: datetime | None
    timeout_s: float

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt of the task in its group, and for no other task.
        It has no full stop, which the signature of HTTP requests uses to separate its parts."""
        return f"{self.group.replace('.', '%2E')}:{self.task_id}"

    @property
    def trace(self) -> dict[str, str]:
        """The headers of the task that belong into the headers of the call."""
        headers = self.headers
        found = {name: headers[name] for name in _PASSED_ON if name in headers}
        found = traces.of_call(found)
        return {name: text for name, text in found.items() if is_header_text(text)}


class Caller(Protocol):
    """The way to one target. Everything happens on the loop that called `start`."""

    async def start(self) -> None:
        """Begin to connect, without waiting: a target that is down must not keep a worker down.

        Raises:
            ConfigError: a secret or certificate is not there, or a library is not installed.
        """

    async def call(self, job: Job) -> Verdict:
        """Have `job` executed and return how it ended. Cancellation ends the call.

        It raises nothing else: a failure is a verdict.
        """

    async def close(self) -> None:
        """End the connections. Calls that are under way end as failed."""


def job_of(context: AsyncContext, payload: bytes, codec: str) -> Job:
    """Describe the attempt of `context` for a target."""
    return Job(
        task_id=context.task_id,
        group=context.group,
        queue=context.queue,
        name=context.name,
        payload=payload,
        codec=codec,
        headers=context.headers,
        attempt=context.attempt,
        max_attempts=context.max_attempts,
        deaths=context.deaths,
        is_replay=context.is_replay,
        keeps_result=context.keeps_result,
        enqueued_at=context.enqueued_at,
        due_at=context.due_at,
        expires_at=context.expires_at,
        timeout_s=context.timeout_s,
    )


def is_header_text(text: str) -> bool:
    """Tell whether `text` may be a header's value: printable ASCII and not long. A producer's text
    must not be able to end a header and begin another one."""
    return len(text) <= 8192 and text.isascii() and text.isprintable()
