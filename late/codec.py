"""The outer layer of a payload: none, a signature, or what an application brings.

A `Codec` seals encoded bytes for one task, and the worker opens them. `Signed` is one; encryption
can be another without a change here. `late.payload` makes the bytes that are sealed.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from late import validate
from late.errors import ConfigError, DecodeError
from late.payload import PAYLOAD_BYTES_MAX, Format
from late.task import Options, Record


class Subject(NamedTuple):
    """The task that a payload belongs to: a codec that signs binds the payload to it."""

    task_id: str
    """`schedule:<name>` for a tick, whose id is made long after its payload."""
    name: str
    queue: str


class Codec(Protocol):
    """The outer layer of a payload. Pure: called from any thread, any number of times."""

    @property
    def name(self) -> str:
        """Stored with each task, so that the worker knows how to read it."""

    @property
    def format(self) -> Format:
        """How the values inside are encoded."""

    @property
    def require(self) -> bool:
        """Whether a task stored under another codec's name is refused."""

    def seal(self, payload: bytes, subject: Subject) -> bytes:
        """The bytes to store."""

    def open(self, payload: bytes, subject: Subject) -> bytes:
        """What `seal` was given.

        Raises:
            DecodeError: the bytes are not what `seal` made for this subject.
        """


class Plain(msgspec.Struct, frozen=True):
    """No outer layer: the encoded values as they are."""

    format: Format = "json"

    @property
    def name(self) -> str:
        return self.format

    @property
    def require(self) -> bool:
        return False

    def seal(self, payload: bytes, subject: Subject) -> bytes:
        return payload

    def open(self, payload: bytes, subject: Subject) -> bytes:
        return payload


JSON = Plain("json")
MSGPACK = Plain("msgpack")
_BUILTIN: dict[str, Codec] = {"json": JSON, "msgpack": MSGPACK}


class Signed:
    """Signs every payload with HMAC-SHA256: write access to the table is not enough to run code.

    The signature covers the payload and the task's id, name and queue, so that it cannot be moved
    to another task. A tick of a schedule is bound to the schedule's name instead of an id.

    Rotation: add the new key everywhere, make it `current` everywhere, remove the old one when
    no task signed with it is left. Introduction: `require=False` accepts unsigned tasks until
    all producers sign.

    Args:
        inner: what is signed: `"json"`, `"msgpack"` or another codec.
        keys: key id to secret of at least 16 bytes.
        current: id of the key that signs.
        require: refuse tasks that are not signed.

    Raises:
        ConfigError: an empty ring, a short key, an unknown `current`.
    """

    _MAGIC = b"LS1"

    def __init__(
        self,
        inner: Codec | Format = "json",
        *,
        keys: Mapping[str, bytes],
        current: str,
        require: bool = True,
    ) -> None:
        self._inner = resolve(inner)
        self.require = require
        if current not in keys:
            raise ConfigError(f"the current key {validate.shown(current)} is not in the key ring")
        for key_id, secret in keys.items():
            if not isinstance(key_id, str) or not validate.is_name(key_id):
                raise ConfigError(f"key id {validate.shown(key_id)} is no name")
            if not isinstance(secret, bytes) or len(secret) < 16:
                raise ConfigError(f"key {key_id!r} must be at least 16 bytes")
        self._keys = dict(keys)
        self._current = current

    @property
    def name(self) -> str:
        return f"signed+{self._inner.name}"

    @property
    def format(self) -> Format:
        return self._inner.format

    def seal(self, payload: bytes, subject: Subject) -> bytes:
        sealed = self._inner.seal(payload, subject)
        key_id = self._current.encode()
        mac = self._mac(self._current, sealed, subject)
        return self._MAGIC + bytes([len(key_id)]) + key_id + mac + sealed

    def open(self, payload: bytes, subject: Subject) -> bytes:
        start = len(self._MAGIC) + 1
        if len(payload) < start or not payload.startswith(self._MAGIC):
            raise DecodeError("the payload is not signed", reason="bad_signature")
        end = start + payload[start - 1]
        key_id = payload[start:end].decode("ascii", "replace")
        if key_id not in self._keys:
            message = f"signed with unknown key {validate.shown(key_id)}"
            raise DecodeError(message, reason="bad_signature")
        mac, sealed = payload[end : end + 32], payload[end + 32 :]
        if not hmac.compare_digest(mac, self._mac(key_id, sealed, subject)):
            raise DecodeError("the signature does not fit the task", reason="bad_signature")
        return self._inner.open(sealed, subject)

    def _mac(self, key_id: str, sealed: bytes, subject: Subject) -> bytes:
        # Each part is preceded by its length: no two subjects give the same bytes.
        parts = (key_id, *subject)
        bound = b"".join(len(raw).to_bytes(4, "big") + raw for raw in map(str.encode, parts))
        return hmac.digest(self._keys[key_id], self._MAGIC + bound + sealed, "sha256")


def resolve(codec: Codec | str) -> Codec:
    """The codec itself, or the one that `json` or `msgpack` names.

    Raises:
        ConfigError: any other name.
    """
    if not isinstance(codec, str):
        return codec
    if codec not in _BUILTIN:
        raise ConfigError(f"codec {validate.shown(codec)} is neither 'json' nor 'msgpack'")
    return _BUILTIN[codec]


def reader(mine: Codec, stored: str | None) -> Codec:
    """The codec for a payload that is stored as `stored`, in a task whose own codec is `mine`.

    The built-in formats are always readable, so that a task may change its codec while older
    rows are still in the log; a codec that is required is not got around by naming another.

    Raises:
        DecodeError: `bad_signature` where `mine` is required, else `undecodable`.
    """
    stored = stored or "json"
    if stored == mine.name:
        return mine
    if mine.require:
        message = f"the task came as {validate.shown(stored)}, {mine.name!r} is required"
        raise DecodeError(message, reason="bad_signature")
    if stored not in _BUILTIN:
        raise DecodeError(f"no codec is configured for {validate.shown(stored)}")
    return _BUILTIN[stored]


def opened(mine: Codec, record: Record, options: Options | None) -> tuple[bytes, Format]:
    """A stored payload without its seal, and how the values in it are encoded; `mine` is the
    codec of its task.

    Raises:
        DecodeError: `reason` is `payload_too_large`, `undecodable`, `bad_signature` or
            `invalid_name`.
    """
    if not validate.is_name(record.queue):
        message = f"queue {validate.shown(record.queue)} is no name"
        raise DecodeError(message, reason="invalid_name")
    payload = record.payload
    if len(payload) > PAYLOAD_BYTES_MAX:
        message = f"payload of {len(payload)} bytes, the limit is {PAYLOAD_BYTES_MAX}"
        raise DecodeError(message, reason="payload_too_large")
    stored_as = options.codec if options is not None else None
    if stored_as is None and mine is JSON:
        return payload, "json"
    codec = reader(mine, stored_as)
    made_by = options.schedule if options is not None else None
    task_id = record.task_id if made_by is None else f"schedule:{made_by}"
    return codec.open(payload, Subject(task_id, record.name, record.queue)), codec.format
