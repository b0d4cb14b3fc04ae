"""Convert between the messages of `late.v1.Queue` and the values of `schemas.py`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from late.api import limits, schemas
from late.api.errors import BadRequest, of_one
from late.api.pull.deliveries import Delivery
from late.errors import PayloadTooLarge
from late.handler.classify import Verdict
from late.model.task import OnConflict
from late.payload.values import PAYLOAD_BYTES_MAX
from late.v1 import queue_pb2, task_pb2


def puts_of(tasks: Sequence[Any]) -> list[schemas.Put]:
    """Convert all `NewTask`s of a request.

    Raises:
        PayloadTooLarge, BadRequest: a task cannot be read; the message has its place.
    """
    puts: list[schemas.Put] = []
    try:
        puts.extend(map(put_of, tasks))
    except (PayloadTooLarge, BadRequest) as error:
        raise of_one(error, len(puts), len(tasks)) from None
    return puts


def put_of(task: Any) -> schemas.Put:
    """Convert one `NewTask`. Its values are checked later.

    Raises:
        PayloadTooLarge, BadRequest: it cannot be read.
    """
    if len(task.payload) > PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(f"payload: {len(task.payload)} bytes, at most {PAYLOAD_BYTES_MAX}")
    return schemas.Put(
        name=task.name,
        queue=task.queue or None,
        payload=_payload(task.payload),
        delay_s=seconds(task, "delay"),
        at=_moment(task, "at"),
        expires_s=seconds(task, "expires_in"),
        expires_at=_moment(task, "expires_at"),
        priority=task.priority if task.HasField("priority") else None,
        lane=task.lane or None,
        ordering_key=task.ordering_key or None,
        unique_key=task.unique_key or None,
        unique_for_s=seconds(task, "unique_for"),
        on_conflict=_on_conflict(task.on_conflict),
        max_wait_s=seconds(task, "max_wait"),
        headers=dict(task.headers) or None,
    )


def _payload(encoded: bytes) -> dict[str, Any]:
    try:
        return schemas.parse(encoded, dict[str, Any])
    except BadRequest as error:
        raise BadRequest(f"payload: {error}") from None


def _on_conflict(number: int) -> OnConflict | None:
    """Convert the choice; None if it is not set, as in JSON.

    "reject" is not the default here, because a choice without a unique key is refused.
    """
    words: tuple[OnConflict | None, ...] = (None, "reject", "replace")
    if not 0 <= number < len(words):
        raise BadRequest(f"on_conflict: no such choice, got {number}")
    return words[number]


def seconds(message: Any, field: str) -> float | None:
    """A `Duration` field in seconds; None if it is not set."""
    if not message.HasField(field):
        return None
    found = getattr(message, field)
    return float(found.seconds) + float(found.nanos) / 1e9


def visibility_of(message: Any, otherwise: float) -> float:
    """The field `visibility` within its bounds; raises `BadRequest`."""
    found = seconds(message, "visibility")
    if found is None:
        return otherwise
    if not 1 <= found <= limits.VISIBILITY_S_MAX:
        raise BadRequest(f"visibility: 1..{limits.VISIBILITY_S_MAX:g} seconds")
    return found


def verdict_of(answer: Any) -> Verdict:
    """Convert one `Answer` to the verdict of an attempt."""
    word = answer.WhichOneof("outcome")
    if word is None or word == "done":
        return schemas.done(answer.done.result, answer.done.counts)
    found = getattr(answer, word)
    after_s = seconds(found, "after") if word in ("retry", "snooze") else None
    if after_s is not None and not 0 <= after_s <= limits.AFTER_S_MAX:
        raise BadRequest(f"after: 0..{limits.AFTER_S_MAX:g} seconds")
    return schemas.verdict(word, after_s, found.reason[:4_096] or None)


def delivery_of(delivery: Delivery) -> Any:
    """Convert one `Delivery`."""
    attempt, record = delivery.attempt, delivery.attempt.record
    task = task_pb2.Task(
        task_id=record.task_id,
        group=attempt.group,
        queue=record.queue,
        name=record.name,
        payload=delivery.payload,
        headers=delivery.headers,
        attempt=attempt.number,
        deaths=attempt.deaths,
        is_replay=attempt.is_replay,
        keeps_result=attempt.keeps_result,
    )
    task.enqueued_at.FromMicroseconds(record.created_at_us)
    task.due_at.FromMicroseconds(attempt.due_at_us)
    if attempt.deadline_us is not None:
        task.expires_at.FromMicroseconds(attempt.deadline_us)
    found = queue_pb2.Delivery(task=task, receipt=delivery.receipt)
    found.visible_until.FromMicroseconds(delivery.visible_until_us)
    return found


def stats_of(stats: schemas.QueueStats) -> Any:
    """Convert one `QueueStats`."""
    found = queue_pb2.QueueStats(
        queue=stats.queue,
        ready=stats.ready,
        parked=stats.parked,
        running=stats.running,
        dead=stats.dead,
    )
    if stats.oldest_s is not None:
        found.oldest.FromMicroseconds(round(stats.oldest_s * 1_000_000))
    return found


def _moment(message: Any, field: str) -> datetime | None:
    if not message.HasField(field):
        return None
    try:
        found: datetime = getattr(message, field).ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadRequest(f"{field} is not a time") from None
    return found
