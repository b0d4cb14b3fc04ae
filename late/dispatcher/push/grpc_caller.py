"""gRPC push: `late.v1.Handler/Execute` on the endpoint that is up and has the least to do."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from late.dispatcher.push import responses
from late.dispatcher.push.job import Job
from late.errors import ConfigError
from late.handler.classify import Scrub, Verdict
from late.model.targets import GrpcTarget, resolve

if TYPE_CHECKING:
    from late.dispatcher.push.endpoints import Endpoint, Endpoints

SERVICE = "late.v1.Handler"


class GrpcCaller:
    """The connections to one target's endpoints."""

    def __init__(
        self, target: GrpcTarget, *, rng: random.Random, scrub: Scrub | None = None
    ) -> None:
        self.target = target
        self._where = f"target {target.name}"
        self._rng = rng
        self._scrub = scrub
        self._metadata: list[tuple[str, str]] = []
        self.endpoints: Endpoints | None = None

    async def start(self) -> None:
        try:
            from late.dispatcher.push.endpoints import Endpoints
        except ImportError as error:
            raise ConfigError(
                f"{self._where}: gRPC is not installed ({error.name}): "
                "pip install 'late-queue[grpc]'"
            ) from None
        target = self.target
        metadata = {
            name: resolve(text, f"{self._where}: metadata {name}")
            for name, text in target.metadata.items()
        }
        if target.token is not None:
            token = resolve(target.token, f"{self._where}: token")
            metadata["authorization"] = f"Bearer {token}"
        self._metadata = [*metadata.items(), ("late-target", target.name)]
        self.endpoints = Endpoints(target, SERVICE, self._metadata, self._rng)
        await self.endpoints.start()

    async def close(self) -> None:
        if self.endpoints is not None:
            await self.endpoints.close()

    async def call(self, job: Job) -> Verdict:
        deadline = time.monotonic() + job.timeout_s
        assert self.endpoints is not None
        wait_s = min(self.target.connect_s, job.timeout_s)
        endpoint = await self.endpoints.pick(wait_s)
        if endpoint is None:
            return responses.unavailable(self._where, self.endpoints.why())
        endpoint.calls += 1
        try:
            return await self._execute(endpoint, job, deadline - time.monotonic())
        finally:
            endpoint.calls -= 1

    async def _execute(self, endpoint: Endpoint, job: Job, timeout_s: float) -> Verdict:
        import grpc

        where = f"{self._where} at {endpoint.label}"
        try:
            call = endpoint.execute(
                request_of(job),
                timeout=timeout_s,
                metadata=[
                    *self._metadata,
                    ("idempotency-key", job.idempotency_key),
                    *job.trace.items(),
                ],
            )
            response = await call
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            if code == "UNAVAILABLE":
                endpoint.doubt()
            after_s = _after_s([*error.initial_metadata(), *error.trailing_metadata()])
            return responses.grpc_status(code, error.details(), after_s, where, self._scrub)
        except asyncio.CancelledError:
            # Either this attempt is over, or its connection was given up under it: then the
            # cancellation is the call's alone.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return responses.unavailable(where, "the connection was lost: it did not answer")
        return _judge(response, where, self._scrub)


def request_of(job: Job) -> Any:
    """`job` as a `late.v1.ExecuteRequest`."""
    from late.v1 import handler_pb2, task_pb2

    task = task_pb2.Task(
        task_id=job.task_id,
        group=job.group,
        queue=job.queue,
        name=job.name,
        payload=job.payload,
        codec=job.codec,
        headers=job.headers,
        attempt=job.attempt,
        max_attempts=job.max_attempts or 0,
        deaths=job.deaths,
        is_replay=job.is_replay,
        keeps_result=job.keeps_result,
    )
    _set(task.enqueued_at, job.enqueued_at)
    _set(task.due_at, job.due_at)
    if job.expires_at is not None:
        _set(task.expires_at, job.expires_at)
    return handler_pb2.ExecuteRequest(task=task, idempotency_key=job.idempotency_key)


def _set(field: Any, moment: datetime) -> None:
    field.FromDatetime(moment)


def _judge(response: Any, where: str, scrub: Scrub | None) -> Verdict:
    word = response.WhichOneof("outcome")
    if word is None or word == "done":
        return responses.done(response.done.result, response.done.counts)
    found = getattr(response, word)
    after_s = None
    if word in ("retry", "snooze") and found.HasField("after"):
        after_s = found.after.seconds + found.after.nanos / 1e9
    return responses.parse_reply(
        responses.Outcome(word, after_s, found.reason or None), where, scrub
    )


def _after_s(metadata: list[tuple[str, Any]]) -> float | None:
    """The wait that the target asks for: `retry-after` as in HTTP, gRPC's own pushback, or
    `google.rpc.RetryInfo` among the details."""
    from late.dispatcher.push import retry_info

    for name, value in metadata:
        if name == retry_info.HEADER and isinstance(value, bytes):
            asked_s = retry_info.after_s(value)
            if asked_s is not None:
                return asked_s
        text = value if isinstance(value, str) else ""
        if name == "retry-after":
            return responses.retry_after_s(text, time.time())
        if name == "grpc-retry-pushback-ms":
            after = responses.retry_after_s(text, time.time())
            return None if after is None else after / 1_000
    return None
