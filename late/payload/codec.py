"""The outer layer of a payload: none, a signature, encryption, or a codec of the application.

A `Codec` seals encoded bytes for one task, and the worker opens them. `late.payload.values` makes
the bytes that are sealed.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from late.errors import ConfigError, DecodeError
from late.model import validation as validate
from late.model.task import Options, Record
from late.payload.values import PAYLOAD_BYTES_MAX, Format


class Subject(NamedTuple):
    """The task of a payload. A codec that signs binds the payload to it."""

    task_id: str
    """The id; `schedule:<name>` for a tick, whose id is made long after its payload."""
    name: str
    queue: str


class Codec(Protocol):
    """The outer layer of a payload. Pure: any thread may call it, any number of times."""

    @property
    def name(self) -> str:
        """The name that is stored with each task, by which the worker finds the codec."""

    @property
    def format(self) -> Format:
        """The encoding of the values inside."""

    @property
    def require(self) -> bool:
        """True if a task stored under another codec's name is refused."""

    def seal(self, payload: bytes, subject: Subject) -> bytes:
        """Return the bytes to store."""

    def open(self, payload: bytes, subject: Subject) -> bytes:
        """Return the bytes from which `seal` made `payload`.

        Raises:
            DecodeError: `seal` did not make `payload` for this subject.
        """


class Plain(msgspec.Struct, frozen=True):
    """The codec without an outer layer: the stored bytes are the encoded values."""

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
    """Signs every payload with HMAC-SHA256, so that write access to the table cannot run code.

    The signature covers the payload and the task's id, name and queue, so that it is not valid for
    another task. A tick of a schedule is bound to the schedule's name instead of an id.

    To rotate keys, add the new key everywhere, make it `current` everywhere, and remove the old one
    when no task signed with it is left. To introduce signatures, use `require=False`: it accepts
    unsigned tasks until all producers sign.

    Args:
        inner: the codec of the signed bytes: `"json"`, `"msgpack"` or another codec.
        keys: key id -> secret of at least 16 bytes.
        current: the id of the key that signs.
        require: refuse tasks that are not signed.

    Raises:
        ConfigError: there is no key, a key is too short, or `current` is unknown.
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
        self._keys = _ring(keys, current, least=16)
        self._current = current

    @property
    def name(self) -> str:
        return f"signed+{self._inner.name}"

    @property
    def format(self) -> Format:
        return self._inner.format

    def seal(self, payload: bytes, subject: Subject) -> bytes:
        sealed = self._inner.seal(payload, subject)
        mac = self._mac(self._current, sealed, subject)
        return _labelled(self._MAGIC, self._current) + mac + sealed

    def open(self, payload: bytes, subject: Subject) -> bytes:
        key_id, body = _key_of(payload, self._MAGIC, self._keys, "signed")
        mac, sealed = body[:32], body[32:]
        if not hmac.compare_digest(mac, self._mac(key_id, sealed, subject)):
            raise DecodeError("the signature does not fit the task", reason="bad_signature")
        return self._inner.open(sealed, subject)

    def _mac(self, key_id: str, sealed: bytes, subject: Subject) -> bytes:
        bound = _bound((key_id, *subject))
        return hmac.digest(self._keys[key_id], self._MAGIC + bound + sealed, "sha256")


class Encrypted:
    """Encrypts every payload with AES-256-GCM.

    Read access to the table then shows no arguments, and write access cannot run code. As with
    `Signed`, a payload is bound to the task's id, name and queue; and also to the codec's name and
    the key's id. Each task is encrypted with its own key, which is derived from the configured key
    and from those values. So the number of tasks per configured key has no limit. Queue, name,
    options and headers stay readable, because the workers need them.

    Rotation and introduction are as for `Signed`. It needs `pip install "late[crypto]"`.

    Args:
        inner: the codec of the encrypted bytes: `"json"`, `"msgpack"` or another codec.
        keys: key id -> secret of exactly 32 random bytes.
        current: the id of the key that encrypts.
        require: refuse tasks that are not encrypted.

    Raises:
        ConfigError: there is no key, a key has another length, `current` is unknown, or the package
            `cryptography` is missing.
    """

    _MAGIC = b"LE1"
    _NONCE_BYTES = 12

    def __init__(
        self,
        inner: Codec | Format = "json",
        *,
        keys: Mapping[str, bytes],
        current: str,
        require: bool = True,
    ) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ModuleNotFoundError as error:
            raise ConfigError(
                "encryption needs cryptography: install it with `pip install 'late[crypto]'`"
            ) from error
        self._cipher, self._refusal = AESGCM, InvalidTag
        self._inner = resolve(inner)
        self.require = require
        self._keys = _ring(keys, current, least=32, most=32)
        self._current = current
        self.digest_key = hmac.digest(self._keys[current], b"late unique key", "sha256")
        """The key of the digest that is stored with a unique key. Without it, short arguments could
        be guessed from the digest."""

    @property
    def name(self) -> str:
        return f"encrypted+{self._inner.name}"

    @property
    def format(self) -> Format:
        return self._inner.format

    def seal(self, payload: bytes, subject: Subject) -> bytes:
        inside = self._inner.seal(payload, subject)
        key, bound = self._key(self._current, subject)
        nonce = os.urandom(self._NONCE_BYTES)
        sealed = self._cipher(key).encrypt(nonce, inside, bound)
        return _labelled(self._MAGIC, self._current) + nonce + sealed

    def open(self, payload: bytes, subject: Subject) -> bytes:
        key_id, body = _key_of(payload, self._MAGIC, self._keys, "encrypted")
        key, bound = self._key(key_id, subject)
        nonce, sealed = body[: self._NONCE_BYTES], body[self._NONCE_BYTES :]
        try:
            inside = self._cipher(key).decrypt(nonce, sealed, bound)
        except (self._refusal, ValueError):  # A nonce that is too short raises ValueError.
            message = "the payload was not encrypted for this task"
            raise DecodeError(message, reason="bad_signature") from None
        return self._inner.open(inside, subject)

    def _key(self, key_id: str, subject: Subject) -> tuple[bytes, bytes]:
        """Return the key of one task, and the bytes that are authenticated with its payload."""
        bound = self._MAGIC + _bound((key_id, self.name, *subject))
        return hmac.digest(self._keys[key_id], bound, "sha256"), bound


def _ring(
    keys: Mapping[str, bytes], current: str, *, least: int, most: int | None = None
) -> dict[str, bytes]:
    if current not in keys:
        raise ConfigError(f"the current key {validate.shown(current)} is not in the key ring")
    for key_id, secret in keys.items():
        if not isinstance(key_id, str) or not validate.is_name(key_id):
            raise ConfigError(f"key id {validate.shown(key_id)} is no name")
        if not isinstance(secret, bytes):
            raise ConfigError(f"key {key_id!r} must be bytes, it is {type(secret).__name__}")
        if len(secret) < least:
            raise ConfigError(f"key {key_id!r} must be at least {least} bytes")
        if most is not None and len(secret) > most:
            raise ConfigError(f"key {key_id!r} must be {most} bytes, it has {len(secret)}")
    return dict(keys)


def _labelled(magic: bytes, key_id: str) -> bytes:
    """Return the beginning of a sealed payload: the kind of its seal, and the key's id."""
    return magic + bytes([len(key_id)]) + key_id.encode()


def _key_of(payload: bytes, magic: bytes, keys: Mapping[str, bytes], how: str) -> tuple[str, bytes]:
    """Return the id of the key that sealed `payload`, and the bytes after the label.

    Raises:
        DecodeError: `bad_signature`: `payload` has no such seal, or the key is unknown.
    """
    start = len(magic) + 1
    if len(payload) < start or not payload.startswith(magic):
        raise DecodeError(f"the payload is not {how}", reason="bad_signature")
    end = start + payload[start - 1]
    key_id = payload[start:end].decode("ascii", "replace")
    if key_id not in keys:
        message = f"{how} with unknown key {validate.shown(key_id)}"
        raise DecodeError(message, reason="bad_signature")
    return key_id, payload[end:]


def _bound(parts: Iterable[str]) -> bytes:
    """Join the parts, each after its length. No two lists of parts give the same bytes."""
    return b"".join(len(raw).to_bytes(4, "big") + raw for raw in map(str.encode, parts))


def resolve(codec: Codec | str) -> Codec:
    """Return the codec itself, or the one with the name `json` or `msgpack`.

    Raises:
        ConfigError: the name is another one.
    """
    if not isinstance(codec, str):
        return codec
    if codec not in _BUILTIN:
        raise ConfigError(f"codec {validate.shown(codec)} is neither 'json' nor 'msgpack'")
    return _BUILTIN[codec]


def reader(mine: Codec, stored: str | None) -> Codec:
    """Return the codec for a payload that is stored as `stored`, in a task with the codec `mine`.

    The built-in formats are always readable, so that a task may change its codec while older rows
    are still in the log. But if `mine` is required, a row with the name of another codec is
    refused.

    Raises:
        DecodeError: `bad_signature` if `mine` is required, else `undecodable`.
    """
    stored = stored or "json"
    if stored == mine.name:
        return mine
    if mine.require:
        message = f"the task came as {validate.shown(stored)}, {mine.name!r} is required"
        raise DecodeError(message, reason="bad_signature")
    if stored not in _BUILTIN:
        raise DecodeError(f"no codec is configured for {validate.shown(stored)}", elsewhere=True)
    return _BUILTIN[stored]


def opened(mine: Codec, record: Record, options: Options | None) -> tuple[bytes, Format]:
    """Return a stored payload without its seal, and the encoding of the values in it.

    Args:
        mine: the codec of its task.

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
