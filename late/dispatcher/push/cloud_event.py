"""A task as a CloudEvent 1.0 in structured mode: the JSON that a target gets. Pure.

A task that was put as an event has the event's attributes in its headers, as `ce-source` and so on.
It goes out as that event, with the same `id` and `source`. Any other task becomes an event of this
queue, whose `id` is the key by which a repeated attempt is known.

Source: the CloudEvents specification 1.0.2, https://cloudevents.io, with its JSON format, its
binding to HTTP, and its extensions for traces, partitions and the expiry time.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from late.dispatcher.push.job import Job

EVENT = "application/cloudevents+json"
VERSION = "1.0"
PREFIX = "ce-"
"""The beginning of a header that has an attribute of an event, as in the binding to HTTP."""
OWN = "late"
"""The beginning of the extension attributes of `late`."""
PUSHED = frozenset(
    f"{OWN}{word}"
    for word in (
        "taskid", "group", "queue", "attempt", "maxattempts", "deaths", "replay", "keepsresult",
        "dueat",
    )
)  # fmt: skip
"""The extension attributes that a target gets."""

_NAME = re.compile(r"[a-z0-9]+")
_NO_CHARACTERS = "".join(
    chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF)
)
_REFUSED = re.compile(f"[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef{_NO_CHARACTERS}]")
_encode = msgspec.json.Encoder().encode


def is_attribute(name: str) -> bool:
    """Tell whether an attribute of an event may have this name."""
    return _NAME.fullmatch(name) is not None


def is_text(text: str) -> bool:
    """Tell whether the value of an attribute may be this text: it has no control characters."""
    return _REFUSED.search(text) is None


def body_of(job: Job, source: str | None, ordering_key: str | None) -> bytes:
    """Return `job` as an event in JSON.

    Args:
        source: the `source` of tasks that were not put as events; `/queues/QUEUE` if None.
        ordering_key: the task's, if it has one.
    """
    if job.codec:
        data: Any = msgspec.msgpack.decode(job.payload)
    else:
        data = msgspec.Raw(job.payload)  # as it came: decoding would lose digits
    event: dict[str, Any] = {"specversion": VERSION, "type": job.name}
    kept = _kept(job)
    if not kept:
        event |= {
            "id": job.idempotency_key,
            "source": source or f"/queues/{job.queue}",
            "subject": job.task_id,
        }
    event |= {
        "time": job.enqueued_at,
        "datacontenttype": "application/json",
        "partitionkey": ordering_key,
        "expirytime": job.expires_at,
        **kept,
        **_trace(job),
        "latetaskid": job.task_id,
        "lategroup": job.group,
        "latequeue": job.queue,
        "lateattempt": job.attempt,
        "latemaxattempts": job.max_attempts,
        "latedeaths": job.deaths,
        "latereplay": job.is_replay,
        "latekeepsresult": job.keeps_result,
        "latedueat": job.due_at,
    }
    event = {name: value for name, value in event.items() if value is not None}
    return _encode({**event, "data": data})


def _kept(job: Job) -> dict[str, str]:
    """The attributes of the event as which the task was put; empty if it was put as a task."""
    if not job.headers.keys() >= {f"{PREFIX}id", f"{PREFIX}source"}:
        return {}
    found = {
        name.removeprefix(PREFIX): text
        for name, text in job.headers.items()
        if name.startswith(PREFIX) and text and is_text(text)
    }
    fixed = {"specversion", "type", "data"}
    return {
        name: text
        for name, text in found.items()
        if is_attribute(name) and name not in fixed and not name.startswith(OWN)
    }


def _trace(job: Job) -> dict[str, str]:
    """The trace in which the task began. The headers of the request have that of the attempt."""
    began = job.headers if "traceparent" in job.headers else job.trace
    names = [name for name in ("traceparent", "tracestate") if name in began]
    return {name: began[name] for name in names if is_text(began[name])}
