"""The column `open` of the journal: the tasks that a checkpoint's cursor covers and that go on.

Each settlement repeats all of them, so they are kept short: some 13 characters a task, where JSON
has 60. An empty list is `[]`. Any other is `1:` and base64url, without padding, of

| bytes | what |
|---|---|
| 1 | the form: 0 with ids that are UUIDs, 1 for all else |
| 3 | the number of tasks |
| 1 for 8 tasks | a bit for each: started |
| 1, and so many | the first position |
| 1, and so many for each task but the first | the difference of each position to the one before |
| 2 | a bit for each of the 16 bytes of an id: it is not the same in all ids |
| 0 to 16 | the bytes that are the same in all ids: the shard, and mostly the time |
| the rest | the others, all first ones before all second ones |

Ids made by one process at about the same time share most of their bytes (`late/model/ids.py`). All
works on whole columns: a loop over the tasks would take twenty times as long. Form 1 is msgpack of
all tasks, for ids that are no UUIDs.

A row that another one follows is history. A store may then keep only its **outline**, `0:` and two
numbers: how many tasks it had open, and the lowest position of one.

Rows of older versions are JSON, and are read as well. An older worker cannot read `1:`, and says
so: it never takes a shard with open tasks for one without.
"""

from __future__ import annotations

import binascii
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from operator import not_, sub

import msgspec

from late.model.task import OpenTask, TaskId

PREFIX = "1:"
OUTLINE = "0:"
EMPTY = "[]"
_UUIDS, _ANY = 0, 1
_DASHES = (8, 13, 18, 23)
_BITS = tuple(1 << n for n in range(16))
_DIGITS = bytes.maketrans(b"\0\1", b"01")
_BIG_ENDIAN = sys.byteorder == "big"
_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_+/", b"+/!!")  # `!` is refused

_json = msgspec.json.Decoder(tuple[OpenTask, ...]).decode
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[OpenTask, ...]).decode


def open_text(tasks: Sequence[OpenTask]) -> str:
    """Encode open tasks for the journal. Their order is kept."""
    if not tasks:
        return EMPTY
    body = _uuid_form(tasks)
    if body is None:
        body = bytes((_ANY,)) + _pack(tuple(tasks))
    text = binascii.b2a_base64(body, newline=False).translate(_TO_URL).rstrip(b"=")
    return PREFIX + text.decode()


def open_of(text: str) -> tuple[OpenTask, ...]:
    """Decode what `open_text` wrote, or the JSON of older versions.

    Raises:
        msgspec.DecodeError: it is damaged, or of a newer version.
    """
    with _refusing():
        if not text.startswith(PREFIX):
            return _json(text)
        body = _body_of(text)
        return _unpack(body[1:]) if body[0] == _ANY else _from_uuid_form(body)


class Outline(msgspec.Struct, frozen=True):
    """The number of tasks that a settlement had open, and where they begin."""

    count: int
    floor: int | None
    """The lowest position of an open task; None: nothing is open."""


def outline_text(tasks: Sequence[OpenTask]) -> str:
    """Encode the outline of some open tasks."""
    return f"{OUTLINE}{len(tasks)} {min(task.position for task in tasks)}" if tasks else EMPTY


def outline_of(text: str) -> Outline:
    """Read the outline of an `open`, whether it was shortened or not.

    Raises:
        msgspec.DecodeError: as `open_of`.
    """
    with _refusing():
        if text.startswith(OUTLINE):
            return Outline(*map(int, text[len(OUTLINE) :].split(" ", 1)))
        if text.startswith(PREFIX):
            body = _body_of(text)
            if body[0] == _UUIDS:
                return Outline(*_Reader(body).head()[::2])
    tasks = open_of(text)
    return Outline(len(tasks), min((task.position for task in tasks), default=None))


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise msgspec.DecodeError(
            f"open tasks cannot be read: they are damaged, or a newer version of late wrote them:"
            f" {error}"
        ) from None


def _body_of(text: str) -> bytes:
    coded = text[len(PREFIX) :].encode("ascii").translate(_FROM_URL)
    body = binascii.a2b_base64(coded + b"=" * (-len(coded) % 4), strict_mode=True)
    if body[0] not in (_UUIDS, _ANY):
        raise ValueError("unknown form")
    return body


def _uuid_form(tasks: Sequence[OpenTask]) -> bytes | None:
    """Return the short form, or None if an id or a position does not fit."""
    count = len(tasks)
    raw = _raw_ids([task.task_id for task in tasks])
    positions = [task.position for task in tasks]
    first = positions[0]
    if raw is None or count >= 1 << 24 or not 0 <= first < 1 << 64:
        return None
    steps = list(map(sub, positions[1:], positions))
    try:
        stepped = array("Q", steps)
    except OverflowError:  # they do not ascend, or are too far apart
        return None
    if _BIG_ENDIAN:
        stepped.byteswap()
    step_bytes = stepped.tobytes()
    width = (max(steps, default=0).bit_length() + 7) // 8
    first_width = (first.bit_length() + 7) // 8
    bits = int(bytes([task.started for task in tasks]).translate(_DIGITS), 2)
    columns = [raw[n::16] for n in range(16)]
    differs = [column.lstrip(column[:1]) for column in columns]  # empty: all bytes are the same
    return b"".join(
        (
            bytes((_UUIDS,)),
            count.to_bytes(3, "little"),
            bits.to_bytes((count + 7) // 8, "little"),
            bytes((first_width,)),
            first.to_bytes(first_width, "little"),
            bytes((width,)),
            *[step_bytes[n::8] for n in range(width)],
            sum(compress(_BITS, differs)).to_bytes(2, "little"),
            bytes(compress(raw, map(not_, differs))),
            *compress(columns, differs),
        )
    )


def _raw_ids(ids: Sequence[str]) -> bytes | None:
    """Return the 16 bytes of each id; None if one of them is not a UUID in its usual form."""
    count = len(ids)
    joined = "\n".join(ids)
    if joined[36::37] != "\n" * (count - 1):
        return None
    if any(joined[n::37] != "-" * count for n in _DASHES):
        return None
    if any(map(joined.__contains__, "ABCDEF")):  # each a search, which takes less than `lower`
        return None
    try:
        raw = bytes.fromhex(joined.replace("-", " "))
    except ValueError:
        return None
    # `fromhex` passes over white space. All that are no digits have their places by now, so white
    # space or dashes elsewhere make it shorter.
    return raw if len(raw) == 16 * count else None


class _Reader:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 1

    def take(self, size: int) -> bytes:
        part = self._body[self._at : self._at + size]
        if len(part) != size:
            raise ValueError("too short")
        self._at += size
        return part

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def head(self) -> tuple[int, int, int]:
        """Take the number of tasks, the bits of those that have started, and the first position,
        which is the lowest."""
        count = self.number(3)
        if not count:
            raise ValueError("no task")
        bits = self.number((count + 7) // 8)
        if bits >> count:
            raise ValueError("more bits than tasks")
        return count, bits, self.number(_at_most(self.number(1), 8))

    def end(self) -> None:
        if self._at != len(self._body):
            raise ValueError("too long")


def _from_uuid_form(body: bytes) -> tuple[OpenTask, ...]:
    reader = _Reader(body)
    count, bits, position = reader.head()
    width = _at_most(reader.number(1), 8)
    steps = [reader.take(count - 1) for _ in range(width)]
    mask = reader.number(2)
    same = {n: reader.take(1) * count for n in range(16) if not mask >> n & 1}
    columns = [same[n] if n in same else reader.take(count) for n in range(16)]
    reader.end()
    tasks = []
    for number, raw in enumerate(zip(*columns, strict=True)):
        if number:
            position += sum(column[number - 1] << 8 * n for n, column in enumerate(steps))
        text = bytes(raw).hex()
        task_id = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
        started = bool(bits >> (count - 1 - number) & 1)
        tasks.append(OpenTask(position, TaskId(task_id), started))
    return tuple(tasks)


def _at_most(size: int, most: int) -> int:
    if size > most:
        raise ValueError("a number is too long")
    return size
