"""Convert between the messages of `late.v1.Handler` and attempts with their verdicts. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from late.handler.classify import Verdict
from late.model.task import Attempt, Record, TaskId
from late.v1 import handler_pb2, task_pb2


def attempt_of(task: Any) -> Attempt:
    """Convert the `Task` of a request. Its shard, position and epoch are unknown here."""
    record = Record(
        shard_id=0,
        position=0,
        task_id=TaskId(task.task_id),
        queue=task.queue,
        name=task.name,
        payload=task.payload,
        headers=msgspec.json.encode(dict(task.headers)).decode() if task.headers else None,
        options=None,
        created_at_us=_us(task.enqueued_at),
        sequence=0,
    )
    return Attempt(
        group=task.group,
        record=record,
        number=task.attempt,
        deaths=task.deaths,
        epoch=0,
        due_at_us=_us(task.due_at),
        deadline_us=_us(task.expires_at) if task.HasField("expires_at") else None,
        is_replay=task.is_replay,
        keeps_result=task.keeps_result,
    )


def response_of(verdict: Verdict) -> Any:
    """Convert a verdict to an `ExecuteResponse`."""
    reason = verdict.error or verdict.reason or ""
    message: Any
    match verdict.kind:
        case "snooze":
            message = task_pb2.Snooze(reason=reason)
            message.after.FromMicroseconds(verdict.after_us or 0)
            return handler_pb2.ExecuteResponse(snooze=message)
        case "discard":
            return handler_pb2.ExecuteResponse(discard=task_pb2.Discard(reason=reason))
        case "not_capable":
            return handler_pb2.ExecuteResponse(not_capable=task_pb2.NotCapable(reason=reason))
        case "failed" if verdict.retryable:
            message = task_pb2.Retry(reason=reason)
            if verdict.after_us is not None:
                message.after.FromMicroseconds(verdict.after_us)
            return handler_pb2.ExecuteResponse(retry=message)
        case "failed":
            return handler_pb2.ExecuteResponse(fail=task_pb2.Fail(reason=reason))
    done = task_pb2.Done(result=verdict.result or b"", counts=dict(verdict.counts))
    return handler_pb2.ExecuteResponse(done=done)


def _us(moment: Timestamp) -> int:
    return int(moment.ToMicroseconds())
