"""The tasks that a worker declares to handle, once, when it joins the fleet.

They are a map: the name of a task (a former name too) -> the fingerprint of its arguments. The
names of a routed queue are not known, so it has one entry, `@QUEUE`, that stands for all of them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import msgspec

ROUTE = "@"
"""Before the name of a queue: all of its tasks that are not known by name. No task's name can begin
with it."""
TEXT_CHARS_MAX = 1_000_000
"""Some 25,000 names. A worker that has more declares none, and is as one of which nothing is
known."""

_decode = msgspec.json.Decoder(dict[str, str]).decode


def text_of(handlers: Mapping[str, str]) -> str | None:
    """Return the column `late_worker.handlers`; None if it would be too long."""
    text = msgspec.json.encode(handlers, order="sorted").decode()
    return text if len(text) <= TEXT_CHARS_MAX else None


def read(text: str | None) -> Mapping[str, str] | None:
    """Read the column; None if nothing is known: the worker, or its text, is of another version."""
    try:
        return None if text is None else _decode(text)
    except msgspec.MsgspecError:
        return None


def handles(handlers: Container[str], queue: str, name: str) -> bool:
    """Tell whether a task of `queue` is among the declared ones."""
    return name in handlers or ROUTE + queue in handlers
