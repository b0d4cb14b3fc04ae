"""A call of Celery as a payload of `late`, in the form of Celery's own serializer."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, TypedDict

_OF_THE_PROCESS = {"connection", "producer", "publisher", "router"}
"""Options that are objects of the caller's process."""


class Message(TypedDict):
    """The arguments and options of one call, serialized once, as the task's serializer does."""

    content_type: str
    encoding: str
    body: str
    """Text, or base64 where the encoding is `binary`."""


def pack(args: Any, kwargs: Any, options: Mapping[str, Any], serializer: str | None) -> Message:
    """Serialize a call. Times that count from the call become moments.

    Raises:
        kombu.exceptions.EncodeError: the serializer does not take a value.
    """
    serialization = _serialization()
    kept = {key: value for key, value in options.items() if key not in _OF_THE_PROCESS}
    now = datetime.now(UTC)
    if (countdown := kept.pop("countdown", None)) is not None:
        kept["eta"] = now + timedelta(seconds=countdown)
    if isinstance(kept.get("expires"), int | float):
        kept["expires"] = now + timedelta(seconds=kept["expires"])
    content_type, encoding, body = serialization.dumps(
        [list(args or ()), dict(kwargs or {}), kept], serializer or "json"
    )
    if isinstance(body, bytes):
        text = base64.b64encode(body).decode() if encoding == "binary" else body.decode(encoding)
    else:
        text = body
    return Message(content_type=content_type, encoding=encoding, body=text)


def unpack(message: Message) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Return the positional arguments, the keywords and the options of a call."""
    content_type, encoding, body = message["content_type"], message["encoding"], message["body"]
    data: Any = base64.b64decode(body) if encoding == "binary" else body
    # The type is the one of the task that packed it, which trusts it on its own broker too.
    args, kwargs, options = _serialization().loads(data, content_type, encoding, {content_type})
    return args, kwargs, options


def _serialization() -> Any:
    """Return kombu's module, which has no types. Celery brings it; `late` does not need it."""
    return import_module("kombu.serialization")
