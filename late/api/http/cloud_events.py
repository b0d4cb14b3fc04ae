"""A CloudEvent 1.0 as a task to enqueue, however `event_modes` has read it. Pure.

`type` is the task's name, `data` its payload, and `source` and `id` together its unique key. What
`late` has no field for travels in the task's headers, as `ce-source` and so on.

Source: the CloudEvents specification 1.0.2, https://cloudevents.io, and its JSON format.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import Any

import msgspec

from late.api import schemas
from late.api.errors import BadRequest
from late.dispatcher.push.cloud_event import (
    EVENT,
    OWN,
    PREFIX,
    PUSHED,
    VERSION,
    is_attribute,
    is_text,
)
from late.errors import InvalidPayload, KeyConflict, LateError, PayloadTooLarge, UnknownTask
from late.model import validation as validate
from late.model.targets import is_uri_reference
from late.observability import traces

__all__ = ["EVENT", "INTEGERS", "READ", "named", "put_of"]

UNIQUE_FOR_S = 86_400
"""The key of an event stays taken for a day: so long do brokers deliver one again."""
INTEGERS = (-(2**31), 2**31 - 1)
_JSON = re.compile(r"[\w.+-]+/(?:[\w.+-]+\+)?json\s*(?:;.*)?", re.ASCII | re.IGNORECASE)
_PLACE = re.compile(r"tasks\[[0-9]+\]: ")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,9})")
READ = frozenset(
    f"{OWN}{word}" for word in ("at", "delay", "priority", "uniquefor")
) | {"specversion", "type", "data", "expirytime", "traceparent", "tracestate"}  # fmt: skip
"""The attributes that become fields of the task, and are not among its headers."""
_ATTRIBUTES: tuple[tuple[type[LateError], str], ...] = (
    (KeyConflict, "id, source"),
    (UnknownTask, "type"),
    (PayloadTooLarge, "data"),
    (InvalidPayload, "data"),
)


def put_of(event: dict[str, Any], queue: str | None) -> schemas.Put:
    """Return the task that the attributes and the `data` of an event ask for.

    Raises:
        BadRequest: it is no event, or one that cannot be a task. The message begins with the name
            of the attribute.
    """
    # In JSON an attribute that is null is one that is not there.
    event = {name: value for name, value in event.items() if value is not None}
    for name in event:
        _check_name(name)
    if _text(event, "specversion") != VERSION:
        raise BadRequest(f"specversion: it is {VERSION} here")
    name, source, key = (_text(event, each) for each in ("type", "source", "id"))
    if not validate.is_name(name):
        raise BadRequest(f"type: the name of a task, and {validate.NAME_RULE}")
    if not is_uri_reference(source):
        raise BadRequest("source: a URI or a reference to one")
    if not _JSON.fullmatch(_text(event, "datacontenttype", "application/json")):
        raise BadRequest("datacontenttype: the data of a task is JSON")
    data = event.get("data", {})
    if not isinstance(data, dict):
        raise BadRequest("data: a JSON object, the arguments of the task by name")
    partition = _text(event, "partitionkey") if "partitionkey" in event else None
    if partition is not None and not validate.is_name(partition):
        raise BadRequest(f"partitionkey: an ordering key, and {validate.NAME_RULE}")
    _moment(event, "time")
    for optional in {"subject", "dataschema"} & event.keys():
        _text(event, optional)
    most = int(validate.DELAY_S_MAX)
    at, delay_s = _moment(event, "lateat"), _integer(event, "latedelay", 0, most)
    if at is not None and delay_s is not None:
        raise BadRequest("lateat: give lateat or latedelay, not both")
    unique_for_s = _integer(event, "lateuniquefor", 0, most)
    reach = validate.PRIORITY_MAX
    return schemas.Put(
        name=name,
        queue=queue,
        payload=data,
        at=at,
        delay_s=delay_s,
        expires_at=_moment(event, "expirytime"),
        priority=_integer(event, "latepriority", -reach, reach),
        ordering_key=partition,
        unique_key=_unique_key(source, key),
        unique_for_s=(UNIQUE_FOR_S if unique_for_s is None else unique_for_s) or None,
        headers=_headers(event),
    )


def named(error: LateError) -> LateError:
    """Return the error of an enqueue with the attribute of the event that is wrong, if one is."""
    for kind, attribute in _ATTRIBUTES:
        if isinstance(error, kind):
            # Of several events it begins with the place of the one that is wrong.
            place = found[0] if (found := _PLACE.match(str(error))) else ""
            return type(error)(f"{place}{attribute}: {str(error).removeprefix(place)}")
    return error


def _unique_key(source: str, key: str) -> str:
    """The same for each delivery of an event, and another one for any other event."""
    # Neither of them has a line break, so no two pairs are one text.
    return "event." + hashlib.sha256(f"{source}\n{key}".encode()).hexdigest()


def _check_name(name: str) -> None:
    if name == "data_base64":
        raise BadRequest("data_base64: binary data is no payload, send data")
    if not is_attribute(name):
        raise BadRequest(f"{validate.shown(name)}: an attribute's name has a-z and 0-9 alone")
    if name.startswith(OWN) and name not in READ | PUSHED:
        raise BadRequest(f"{name[:80]}: there is no such extension of {OWN}")


def _text(event: dict[str, Any], name: str, default: str | None = None) -> str:
    value = event.get(name, default)
    if value is None:
        raise BadRequest(f"{name}: it is missing")
    if not isinstance(value, str) or not value or not is_text(value):
        raise BadRequest(f"{name}: a text that is not empty, without control characters")
    return value


def _integer(event: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = event.get(name)
    if value is None:
        return None
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)  # attributes may come as texts
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadRequest(f"{name}: an integer of {least}..{most}")
    return value


def _moment(event: dict[str, Any], name: str) -> datetime | None:
    if name not in event:
        return None
    try:
        found = msgspec.convert(_text(event, name), datetime)
        if found.utcoffset() is not None:
            return found
    except msgspec.ValidationError:
        pass
    raise BadRequest(f"{name}: a time such as 2026-05-01T12:00:00Z")


def _headers(event: dict[str, Any]) -> dict[str, str]:
    """The trace, and the attributes that no field of the task has."""
    found = {
        f"{PREFIX}{name}": _as_text(name, value)
        for name, value in event.items()
        if name not in READ
    }
    for name in PUSHED:  # of a queue that pushed the event here
        found.pop(f"{PREFIX}{name}", None)
    if "traceparent" in event:
        found[traces.PARENT] = _text(event, "traceparent")
        if not traces.is_parent(found[traces.PARENT]):
            raise BadRequest("traceparent: not one of W3C Trace Context")
    if "tracestate" in event:
        found[traces.STATE] = _text(event, "tracestate")
        if len(found[traces.STATE]) > traces.STATE_LENGTH_MAX:
            raise BadRequest(f"tracestate: at most {traces.STATE_LENGTH_MAX} characters")
    try:
        validate.headers(found)
    except PayloadTooLarge:
        longest = max(found, key=lambda name: len(found[name])).removeprefix(PREFIX)
        most = validate.HEADERS_BYTES_MAX
        raise PayloadTooLarge(f"{longest[:80]}: all attributes take {most} bytes at most") from None
    return found


def _as_text(name: str, value: object) -> str:
    """Return the canonical text of an attribute's value."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() if INTEGERS[0] <= value <= INTEGERS[1]:
            return str(value)
        case str() if is_text(value):
            return value
        case _:
            raise BadRequest(f"{name[:80]}: a text, a boolean, or an integer of 32 bits")
