"""Values that JSON lacks, in the form that Celery's own serializer gives them.

A datetime, date, time, Decimal, UUID or bytes becomes `{"__type__": ..., "__value__": ...}`. A
tuple becomes a list, and a key that is not text becomes text, as in Celery.

Source: the form is that of `kombu/utils/json.py` (kombu 5.3 and newer).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from late.errors import InvalidPayload

FAILED = "late.failed"


class Failed(msgspec.Struct, frozen=True):
    """Stands in a stored call for `(request, exc, traceback)` of the task with this id."""

    id: str

    def __json__(self) -> object:
        """Return the form of a marked value, as `to_json` asks."""
        return {"__type__": FAILED, "__value__": self.id}


_TYPES: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (datetime, "datetime", datetime.isoformat),  # Before `date`, of which it is a subclass.
    (date, "date", date.isoformat),
    (time, "time", time.isoformat),
    (Decimal, "decimal", str),
    (UUID, "uuid", lambda value: {"hex": value.hex}),
)
_READERS: dict[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": lambda text: datetime.fromisoformat(text).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda value: UUID(**value),
    FAILED: Failed,
    "bytes": lambda text: text.encode(),
    "base64": lambda text: base64.b64decode(text.encode()),
}


def to_json(value: object) -> Any:
    """Return `value` as what JSON has.

    Raises:
        InvalidPayload: Celery's JSON serializer does not take a value either.
    """
    try:
        return json.loads(json.dumps(value, default=_marked))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"not JSON: {str(error)[:200]}") from error


def from_json(value: Any) -> Any:
    """Return the value from which `to_json` made `value`.

    Raises:
        ValueError: a marked value has an unknown type.
    """
    if isinstance(value, list):
        return [from_json(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"__type__", "__value__"}:
        return {key: from_json(one) for key, one in value.items()}
    read = _READERS.get(value["__type__"])
    if read is None:
        raise ValueError(f"unsupported type {str(value['__type__'])[:80]!r}")
    return read(value["__value__"])


def marked_as(value: Any, kind: str) -> bool:
    """Return whether a stored value is marked as one of this type."""
    return isinstance(value, dict) and value.get("__type__") == kind


def _marked(value: object) -> Any:
    for kind, name, write in _TYPES:
        if isinstance(value, kind):
            return {"__type__": name, "__value__": write(value)}
    if isinstance(value, bytes):
        try:
            return {"__type__": "bytes", "__value__": value.decode()}
        except UnicodeDecodeError:
            return {"__type__": "base64", "__value__": base64.b64encode(value).decode()}
    own = getattr(value, "__json__", None)
    if own is not None:
        return own()
    raise TypeError(f"an object of type {type(value).__name__} is not JSON")
