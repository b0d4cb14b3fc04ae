"""The record of a command: `cancel`, `reschedule` or `redrive` of another task of its shard.

A command is a row of the task log in the shard of its task, with a reserved name and a small JSON
object as its payload. It is part of the SQL contract: a producer that can insert tasks can insert
commands too.

A record `late.changed` is for the caches of services (`late/cache`), which read the log by
themselves. Workers settle it and do nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from late.errors import DecodeError, PayloadTooLarge
from late.model.ids import new_id, shard_of
from late.model.task import CONTROL_QUEUE, NewTask, Record, TaskId
from late.model.validation import RESERVED
from late.payload import values as payloads

Kind = Literal["cancel", "reschedule", "redrive"]

PREFIX = RESERVED
QUEUE = CONTROL_QUEUE
NAMES: dict[str, Kind] = {
    "late.cancel": "cancel",
    "late.reschedule": "reschedule",
    "late.redrive": "redrive",
}


CLOSED = "late.closed"
"""The name of the record after the last one of a closed version of the lane
(`docs/design/0019`)."""
CHANGED = "late.changed"
"""The name of the record that says which keys of caches have changed."""
CHANGES_SHARD = 0
"""The shard of these records: the first one of the lane `default`, which each of its sizes has."""

DUE_AFTER_US_MAX = 366 * 86_400_000_000 + 3_600_000_000
"""The longest delay of a reschedule, plus an hour for clocks that differ."""


class _Body(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    task_id: TaskId
    group: str | None = None
    at_us: int | None = None
    delay_us: int = 0
    payload: bytes | None = None


class Command(msgspec.Struct, frozen=True):
    """A command about one task."""

    kind: Kind
    task_id: TaskId
    group: str | None = None
    """The consumer group that executes it; None stands for all groups."""
    at_us: int | None = None
    """The new due time, for a reschedule."""
    delay_us: int = 0
    """The delay of a reschedule without `at_us`, from the insert of the command."""
    payload: bytes | None = None
    """The payload of a redrive, instead of the task's own, as it is stored."""

    def due_us(self, record: Record) -> int:
        """Return the task's new due time. `record` is the record of the command."""
        return record.created_at_us + self.delay_us if self.at_us is None else self.at_us

    def row(self) -> NewTask:
        """Return the row to insert.

        Raises:
            InvalidName: `task_id` is not a task id.
            PayloadTooLarge: with the new payload in base64, the row's payload is above 1 MiB.
        """
        shard_id = shard_of(self.task_id)
        body = msgspec.json.encode(
            _Body(self.task_id, self.group, self.at_us, self.delay_us, self.payload)
        )
        if len(body) > payloads.PAYLOAD_BYTES_MAX:
            limit = payloads.PAYLOAD_BYTES_MAX
            raise PayloadTooLarge(f"a redrive of {len(body)} bytes, the limit is {limit}")
        return NewTask(shard_id, new_id(shard_id), QUEUE, f"{PREFIX}{self.kind}", body)


class _Closed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int


def closing(shard_id: int, version: int) -> NewTask:
    """Return the row that closes `version` of the lane in a shard."""
    body = msgspec.json.encode(_Closed(version))
    return NewTask(shard_id, new_id(shard_id), QUEUE, CLOSED, body)


def closed_version(record: Record) -> int:
    """Return the version that a record closes.

    Raises:
        DecodeError: `invalid_command`: it cannot be read.
    """
    try:
        return msgspec.json.decode(record.payload, type=_Closed).version
    except msgspec.MsgspecError as error:
        raise DecodeError(f"{record.name}: {error}", reason="invalid_command") from None


class _Changed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[str, ...]


def changed(keys: Sequence[str]) -> NewTask:
    """Return the row that says that the values of `keys` have changed.

    Raises:
        PayloadTooLarge: the keys take more than 1 MiB.
    """
    body = msgspec.json.encode(_Changed(tuple(keys)))
    if len(body) > payloads.PAYLOAD_BYTES_MAX:
        limit = payloads.PAYLOAD_BYTES_MAX
        raise PayloadTooLarge(f"changed keys of {len(body)} bytes, the limit is {limit}")
    return NewTask(CHANGES_SHARD, new_id(CHANGES_SHARD), QUEUE, CHANGED, body)


def changed_keys(record: Record) -> tuple[str, ...]:
    """Return the keys whose values a record says have changed.

    Raises:
        DecodeError: `invalid_command`: it cannot be read.
    """
    try:
        return msgspec.json.decode(record.payload, type=_Changed).keys
    except msgspec.MsgspecError as error:
        raise DecodeError(f"{record.name}: {error}", reason="invalid_command") from None


_decode = msgspec.json.Decoder(_Body).decode


def decode(record: Record) -> Command | None:
    """Return the command in `record`; None if it is a task.

    Raises:
        DecodeError: `invalid_command`: its name is reserved and its payload cannot be read.
    """
    kind = NAMES.get(record.name)
    if kind is None:
        return None
    try:
        body = _decode(record.payload)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"{record.name}: {error}", reason="invalid_command") from None
    due_us = record.created_at_us + body.delay_us if body.at_us is None else body.at_us
    if not 0 <= due_us <= record.created_at_us + DUE_AFTER_US_MAX:
        raise DecodeError(f"{record.name}: due at {due_us}", reason="invalid_command")
    return Command(kind, body.task_id, body.group, body.at_us, body.delay_us, body.payload)
