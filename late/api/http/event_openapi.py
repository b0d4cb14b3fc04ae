"""The OpenAPI schemas of events and of signed URLs. Pure.

They refuse nothing that the server takes; what they cannot say, its messages do.
"""

from __future__ import annotations

from typing import Any

from late.api.http.cloud_events import EVENT, INTEGERS, READ
from late.api.http.event_modes import BATCH
from late.api.http.signed_urls import EXPIRES_S_MAX
from late.dispatcher.push.cloud_event import OWN, PUSHED
from late.model import validation as validate
from late.observability import traces

__all__ = ["BATCH", "EVENT_SCHEMA", "KIND", "SIGNED_BODY", "SIGNED_PARAMETERS"]

KIND = EVENT
_NAME = {"type": "string", "pattern": r"^[A-Za-z0-9._:-]{1,128}$"}
_TEXT = {"type": "string", "minLength": 1, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"}
_PARENT = r"^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$"
_OURS = "|".join(sorted(name for name in READ | PUSHED if name.startswith(OWN)))
_TIME = {"type": "string", "format": "date-time"}
_VALUE = {
    "anyOf": [
        {"type": ["string", "boolean", "null"]},
        {"type": "integer", "minimum": INTEGERS[0], "maximum": INTEGERS[1]},
    ]
}


def _or_null(schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}], "description": text}


def _integer(least: int, most: int, text: str) -> dict[str, Any]:
    digits = {"type": "string", "pattern": "^-?[0-9]+$"}
    return {
        "anyOf": [{"type": "integer", "minimum": least, "maximum": most}, digits, {"type": "null"}],
        "description": text,
    }


_FAR = int(validate.DELAY_S_MAX)
_REACH = validate.PRIORITY_MAX

EVENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "CloudEvent",
    "description": "A CloudEvent 1.0 as a task. `source` and `id` together are its unique key.",
    "required": ["specversion", "id", "source", "type"],
    "propertyNames": {"pattern": f"^(?!{OWN})[a-z0-9]+$|^({_OURS})$"},
    "properties": {
        "specversion": {"const": "1.0"},
        "id": _TEXT,
        "source": {**_TEXT, "format": "uri-reference"},
        "type": {**_NAME, "description": "The task's name."},
        "data": _or_null({"type": "object"}, "The task's payload."),
        "datacontenttype": _or_null(
            {"type": "string", "pattern": r"^[A-Za-z0-9_.-]+/([A-Za-z0-9_.-]+\+)?json$"},
            "A type of JSON; it may have parameters.",
        ),
        "time": _or_null(_TIME, "It travels in the task's headers, as others without a field do."),
        "subject": _or_null(_TEXT, "It travels in the task's headers."),
        "dataschema": _or_null(_TEXT, "It travels in the task's headers."),
        "partitionkey": _or_null(_NAME, "The ordering key."),
        "expirytime": _or_null(_TIME, "The task ends as expired at this time."),
        "traceparent": _or_null(
            {"type": "string", "pattern": _PARENT},
            "The trace of the task, in place of the request's.",
        ),
        "tracestate": _or_null({**_TEXT, "maxLength": traces.STATE_LENGTH_MAX}, "Its state."),
        "latedelay": _integer(0, _FAR, "Not before so many seconds are over."),
        "lateat": _or_null(_TIME, "Not before this time."),
        "latepriority": _integer(-_REACH, _REACH, "Higher first."),
        "lateuniquefor": _integer(0, _FAR, "The key stays taken for so many seconds; a day."),
    },
    "additionalProperties": _VALUE,
    "not": {
        "required": ["lateat", "latedelay"],
        "properties": {name: {"not": {"type": "null"}} for name in ("lateat", "latedelay")},
    },
}

SIGNED_PARAMETERS: list[dict[str, Any]] = [
    {"name": name, "in": "query", "required": required, "description": text, "schema": schema}
    for name, required, schema, text in (
        ("name", True, _NAME, "The task's name."),
        ("token", True, {"type": "string"}, "The name of the token that signed the URL."),
        (
            "expires",
            True,
            {"type": "integer"},
            f"Seconds since the Unix epoch, at most {EXPIRES_S_MAX} ahead.",
        ),
        ("max_bytes", False, {"type": "integer"}, "The most bytes of the body."),
        ("once", False, _NAME, "It puts one task only; URLs with the same text share the use."),
        (
            "payload",
            False,
            {"type": "string"},
            "The payload, a JSON object; then there is no body.",
        ),
        ("signature", True, {"type": "string"}, "HMAC-SHA256 of all of them, in hexadecimal."),
    )
]
SIGNED_BODY: dict[str, Any] = {
    "required": False,
    "content": {"application/json": {"schema": {"type": "object"}}},
}
