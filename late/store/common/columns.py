"""Columns that have the same form in every store: JSON as text, and the rows made of it."""

from __future__ import annotations

from typing import Any

import msgspec

from late.model.task import AttemptError, DeadLetter, Parked, Record
from late.store.base import Settlement
from late.store.common.open_tasks import open_text
from late.store.common.suspects import suspects_text

_encode = msgspec.json.Encoder().encode
_errors_of = msgspec.json.Decoder(tuple[AttemptError, ...]).decode


def journal_values(settlement: Settlement) -> tuple[Any, ...]:
    """The row of the journal without its time: consumer_group, shard_id, seq, settlement_id,
    epoch, owner, cursor, open, usage, suspects."""
    return (
        settlement.group,
        settlement.shard_id,
        settlement.seq,
        settlement.settlement_id,
        settlement.epoch,
        settlement.owner,
        settlement.cursor,
        open_text(settlement.open),
        _encode(settlement.usage).decode() if settlement.usage else None,
        suspects_text(settlement.suspects),
    )


def carried(task: Parked | DeadLetter) -> tuple[Any, ...]:
    """The columns that timers and dead letters share: position, sequence, queue, name, payload,
    headers, options, created_at_us, attempts, deaths, errors."""
    record = task.record
    return (
        record.position,
        record.sequence,
        record.queue,
        record.name,
        record.payload,
        record.headers,
        record.options,
        record.created_at_us,
        task.attempts,
        task.deaths,
        _encode(task.errors).decode() if task.errors else None,
    )


def parked_of(row: Any) -> Parked:
    """A timer from a row: due_at_us, reason, attempts, deaths, held_key, errors, and the fields of
    `Record`."""
    due_at_us, reason, attempts, deaths, held_key, errors, *record = row
    return Parked(
        Record(*record),
        due_at_us,
        reason,
        attempts,
        deaths,
        held_key,
        _errors_of(errors) if errors else (),
    )


def errors_of(text: str | None) -> tuple[AttemptError, ...]:
    """The errors of a task's attempts, from the column `errors`."""
    return _errors_of(text) if text else ()
