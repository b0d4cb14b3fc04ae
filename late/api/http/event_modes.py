"""The ways in which HTTP carries CloudEvents: one in JSON, several in JSON, one in headers. Pure.

Source: the CloudEvents specification 1.0.2, https://cloudevents.io, its JSON format with batches,
and its binding to HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from late.api import errors, schemas
from late.api.errors import BadRequest
from late.api.http.cloud_events import EVENT, put_of
from late.dispatcher.push.cloud_event import PREFIX
from late.errors import LateError

BATCH = "application/cloudevents-batch+json"
BINARY = f"{PREFIX}specversion"
"""The header that a request with an event in its headers has, and no other one."""

_OF_THE_BODY = {"data": "the body is the data", "datacontenttype": "send it as Content-Type"}
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def puts_of_batch(body: bytes, queue: str | None) -> list[schemas.Put]:
    """Return the tasks of a list of events in JSON.

    Raises:
        BadRequest, PayloadTooLarge: see `put_of`. Of several events the message begins with the
            place of the one that is wrong.
    """
    events = schemas.parse(body, list[dict[str, Any]])
    puts: list[schemas.Put] = []
    try:
        for event in events:
            puts.append(put_of(event, queue))  # noqa: PERF401  # Its length says which one failed.
    except LateError as error:
        raise errors.of_one(error, len(puts), len(events)) from None
    return puts


def event_of(body: bytes, kind: str, headers: Iterable[tuple[str, str]]) -> dict[str, Any] | None:
    """Return the event of a request: from its body, or else from its headers; None without one.

    Args:
        kind: the type of the body, without parameters.
        headers: names in lower case, and values.

    Raises:
        BadRequest: the body is no JSON object, or a header cannot be an attribute.
    """
    if kind == EVENT:
        return schemas.parse(body, dict[str, Any])
    pairs = list(headers)
    if not any(name == BINARY for name, _ in pairs):
        return None
    event: dict[str, Any] = {}
    for header, value in pairs:
        name = header.removeprefix(PREFIX)
        if name == header:
            continue
        if name in event:
            raise BadRequest(f"{name[:80]}: it is there twice")
        if name in _OF_THE_BODY:
            raise BadRequest(f"{name}: {_OF_THE_BODY[name]}")
        event[name] = _attribute(name, value)
    event["datacontenttype"] = dict(pairs)["content-type"]
    return event | ({"data": schemas.parse(body, dict[str, Any])} if body else {})


def _attribute(name: str, value: str) -> str:
    """Return the text that a header's value stands for."""
    if quoted := _QUOTED.fullmatch(value):
        value = _ESCAPED.sub(r"\1", quoted[1])
    try:
        if value.isascii():
            return unquote(value, errors="strict")
    except UnicodeDecodeError:
        pass
    raise BadRequest(f"{name[:80]}: what is not ASCII is sent as UTF-8 in percent-encoding")
