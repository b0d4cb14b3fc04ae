"""The audit of what a declaration of the code changes in a stored schedule: no payloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, RowMapping

from late.control import audit
from late.model.task import Schedule

ACTION = "schedule.declare"


def record(
    connection: Connection,
    spec: Schedule,
    row: RowMapping | None,
    fields: Mapping[str, Any],
    jitter_us: int,
    *,
    by: str | None,
    at_us: int,
) -> None:
    """Write what a declaration has changed, before and after, in the caller's transaction.

    Args:
        row: as it was stored; None if it is new.
        fields: the columns that change, with their new values.
        jitter_us: the former jitter.
        by: the worker that applies it; None: who runs the command.
    """
    after = _shown(fields)
    before = _shown({name: row[name] for name in fields}) if row is not None else {}
    if spec.jitter_us != jitter_us:
        before |= {} if row is None else {"jitter_us": jitter_us}
        after["jitter_us"] = spec.jitter_us
    audit.record(
        connection, action=ACTION, subject=f"schedule:{spec.name}", by=by, at_us=at_us,
        before=None if row is None else before, after=after,
    )  # fmt: skip


def _shown(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as the audit has them: of a payload its size alone."""
    found = dict(fields)
    if "payload" in found:
        found["payload_bytes"] = len(found.pop("payload"))
    if found.get("options"):
        found["options"] = msgspec.json.decode(found["options"])
    return found
