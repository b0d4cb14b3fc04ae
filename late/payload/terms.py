"""Terms: the things that a seal of the second form covers besides id, name and queue. Pure.

Terms are a text that the writer and the reader make alike. There are three kinds:

- of a task: its options and headers, as its producer chose them. They are not in the frame: the
  reader makes them from the row.
- of a schedule: the rule by which its tasks are due, and their options. They stand in the frame.
  The reader checks that the row is the tick of one of these due times, and of no other.
- of a redrive with other arguments: none. The row keeps its options, and the app that sends the
  arguments need not know them.

Options that `late` itself adds to a row are left out. Later changes (a reschedule, a retry, a
redrive) do not touch the row's options, so the terms hold for a task's whole life.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

from late.errors import DecodeError, InvalidCron, InvalidName
from late.model.ids import shard_of
from late.model.task import Options, Record, Schedule
from late.model.ticks import in_order, tick_headers, tick_id

TASK, SCHEDULE, REDRIVE = b"t", b"s", b"r"
ANCHOR_US = 86_400_000_000
"""The moment from which the intervals of sealed schedules count. It is the same in all processes,
because it is sealed, and it is not 0, which stands for the time at which a schedule is stored."""
TICK_AGE_US = 86_400_000_000
"""A tick that should have been missed for so long when its row was inserted is refused."""
_LENGTH_BYTES = 4
_SECOND_FORM = (b"LS2", b"LE2")

_encode = msgspec.json.Encoder(order="sorted").encode
_headers = msgspec.json.Decoder(dict[str, str]).decode


class Terms(NamedTuple):
    """The terms of one payload."""

    kind: bytes
    text: str

    def head(self) -> bytes:
        """Return what of the terms stands in the frame."""
        if self.kind != SCHEDULE:
            return self.kind
        text = self.text.encode()
        return self.kind + len(text).to_bytes(_LENGTH_BYTES, "big") + text


OF_REDRIVE = Terms(REDRIVE, "")


class _Ticks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The terms of a schedule."""

    rule: str
    zone: str
    missed_max: int
    """The most due times of a downtime that are made up for."""
    options: Options


_ticks = msgspec.json.Decoder(_Ticks).decode


def of_task(options: Options | None, headers: str | None) -> Terms:
    """Return the terms of a task.

    Raises:
        DecodeError: `bad_signature`: the headers are no headers.
    """
    return Terms(TASK, _encode([_chosen(options or Options()), _read(headers)]).decode())


def of_schedule(schedule: Schedule) -> Terms:
    """Return the terms of a schedule's tasks. Its intervals must count from `ANCHOR_US`."""
    given = msgspec.json.decode(schedule.options, type=Options) if schedule.options else Options()
    options = in_order(given, schedule.name, schedule.overlap)
    most = schedule.catch_up_max if schedule.catch_up == "all" else 1
    return Terms(SCHEDULE, _encode(_Ticks(schedule.rule, schedule.zone, most, options)).decode())


def is_bound(payload: bytes) -> bool:
    """Tell whether a stored payload is sealed in the second form."""
    return payload.startswith(_SECOND_FORM)


def split(body: bytes) -> tuple[bytes, str, bytes]:
    """Return the kind of a frame, the terms that stand in it, and the bytes after them.

    Raises:
        DecodeError: `bad_signature`: there is no such frame.
    """
    kind, rest = body[:1], body[1:]
    if kind in (TASK, REDRIVE):
        return kind, "", rest
    end = _LENGTH_BYTES + int.from_bytes(rest[:_LENGTH_BYTES], "big")
    if kind != SCHEDULE or len(rest) < end:
        raise _refusal("the payload has no seal that this version knows")
    return kind, rest[_LENGTH_BYTES:end].decode("utf-8", "replace"), rest[end:]


def expected(
    kind: bytes, text: str, record: Record, options: Options | None
) -> tuple[str, str, str]:
    """Return what the seal of a row must cover: the subject's id, the kind, and the terms.

    Args:
        text: the terms that stand in the frame.

    Raises:
        DecodeError: `bad_signature`: the row is in the wrong shard, or can have no such terms.
    """
    try:
        shard_id = shard_of(record.task_id)
    except InvalidName:
        shard_id = None
    if shard_id != record.shard_id:
        raise _refusal("the task is not in the shard of its id")
    made_by = None if options is None else options.schedule
    if kind == REDRIVE:
        return record.task_id, kind.decode(), ""
    if (kind == SCHEDULE) != (made_by is not None):
        raise _refusal("the payload was not sealed for this task")
    if kind == SCHEDULE:
        return f"schedule:{made_by}", kind.decode(), text
    return record.task_id, kind.decode(), of_task(options, record.headers).text


def check(kind: bytes, text: str, record: Record, options: Options | None) -> None:
    """Check that a row is what the terms in its frame allow. The seal must have been checked.

    Raises:
        DecodeError: `bad_signature`: it is not.
    """
    if kind != SCHEDULE:
        return
    assert options is not None
    assert options.schedule is not None
    name, at_us = options.schedule, options.at_us
    try:
        ticks = _ticks(text)
        if at_us is None or at_us != next(_dues(ticks, at_us - 1), None):
            raise _refusal("the task is not at a due time of its schedule")
        if record.task_id != tick_id(name, record.shard_id, at_us):
            raise _refusal("the task's id is not that of its due time")
        if _read(record.headers) != tick_headers(name, at_us):
            raise _refusal("the task's headers are not those of its due time")
        if _chosen(options, schedule=None, at_us=None) != _chosen(ticks.options):
            raise _refusal("the task's options are not those of its schedule")
        # Later ones had taken its turn by then. Only owners that were down for long catch up.
        before_us = record.created_at_us - TICK_AGE_US
        later = takewhile(lambda due: due < before_us, _dues(ticks, at_us))
        if len(list(islice(later, ticks.missed_max))) == ticks.missed_max:
            raise _refusal("the task is too old for its schedule")
    except (msgspec.MsgspecError, InvalidCron, ValueError, OverflowError) as error:
        raise _refusal(f"the schedule's terms cannot be read: {type(error).__name__}") from None


def _dues(ticks: _Ticks, after_us: int) -> Iterator[int]:
    from late.model.cron import dues_us  # which imports more than a producer should wait for

    return dues_us(ticks.rule, ticks.zone, anchor_us=ANCHOR_US, after_us=after_us)


def _chosen(options: Options, **changes: None) -> Options:
    """Return what the producer chose of `options`, without what `late` adds to a row."""
    return msgspec.structs.replace(options, layout=0, committed_below=0, replay=False, **changes)


def _read(headers: str | None) -> dict[str, str]:
    try:
        return {} if headers is None else _headers(headers)
    except msgspec.MsgspecError:
        raise _refusal("the task's headers cannot be read") from None


def _refusal(message: str) -> DecodeError:
    return DecodeError(message, reason="bad_signature")
