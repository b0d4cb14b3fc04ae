"""The outer layer of a payload: none, a signature, encryption, or a codec of the application.

A `Codec` seals encoded bytes for one task, and the worker opens them. `late.payload.values` makes
the bytes that are sealed.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping

from late.errors import ConfigError, DecodeError
from late.model import validation as validate
from late.model.task import Options, Record
from late.payload import terms
from late.payload.plain import (
    BUILTIN,
    JSON,
    MSGPACK,
    Codec,
    Opening,
    Plain,
    Sealing,
    Subject,
    resolve,
)
from late.payload.seal import BindOptions, Seal, binds, joined, key_ring
from late.payload.subject_keys import SubjectKeys
from late.payload.values import PAYLOAD_BYTES_MAX, Format

__all__ = [
    "JSON",
    "MSGPACK",
    "BindOptions",
    "Codec",
    "Encrypted",
    "Opening",
    "Plain",
    "Sealing",
    "Signed",
    "Subject",
    "binds",
    "opened",
    "owners",
    "reader",
    "resolve",
]


class Signed(Seal):
    """Signs every payload with HMAC-SHA256, so that write access to the table cannot run code.

    The signature covers the payload and the task's id, name and queue, so that it is not valid for
    another task. A tick of a schedule is bound to the schedule's name instead of an id. With
    `bind_options` the signature also covers the options, the headers and the due times.

    To rotate keys, add the new key everywhere, make it `current` everywhere, and remove the old one
    when no task signed with it is left. To introduce signatures, use `require=False`: it accepts
    unsigned tasks until all producers sign.

    Args:
        inner: the codec of the signed bytes: `"json"`, `"msgpack"` or another codec.
        keys: key id -> secret of at least 16 bytes.
        current: the id of the key that signs.
        require: refuse tasks that are not signed.
        bind_options: `"write"` covers options, headers and due times too, which older versions
            cannot read; `"require"` also refuses tasks without that. `"read"` accepts both.

    Raises:
        ConfigError: there is no key, a key is too short, or `current` or `bind_options` is unknown.
    """

    _MAGIC = (b"LS1", b"LS2")
    _HOW = "signed"

    def __init__(
        self,
        inner: Codec | Format = "json",
        *,
        keys: Mapping[str, bytes],
        current: str,
        require: bool = True,
        bind_options: BindOptions = "read",
    ) -> None:
        super().__init__(inner, key_ring(keys, current, least=16), current, require, bind_options)

    def _close(self, magic: bytes, parts: tuple[str, ...], inside: bytes) -> bytes:
        return self._mac(magic, parts, inside) + inside

    def _reopen(self, magic: bytes, parts: tuple[str, ...], body: bytes) -> bytes:
        mac, inside = body[:32], body[32:]
        if not hmac.compare_digest(mac, self._mac(magic, parts, inside)):
            raise DecodeError("the signature does not fit the task", reason="bad_signature")
        return inside

    def _mac(self, magic: bytes, parts: tuple[str, ...], inside: bytes) -> bytes:
        return hmac.digest(self._keys[parts[0]], magic + joined(parts) + inside, "sha256")


class Encrypted(Seal):
    """Encrypts every payload with AES-256-GCM.

    Read access to the table then shows no arguments, and write access cannot run code. As with
    `Signed`, a payload is bound to the task's id, name and queue; and also to the codec's name and
    the key's id. Each task is encrypted with its own key, which is derived from the configured key
    and from those values. So the number of tasks per configured key has no limit. Queue, name,
    options and headers stay readable, because the workers need them.

    A task with `subject=` is encrypted with the key of its subject instead of one of the ring, and
    its options are always bound.

    Rotation, introduction and `bind_options` are as for `Signed`. It needs
    `pip install "late-queue[crypto]"`.

    Args:
        inner: the codec of the encrypted bytes: `"json"`, `"msgpack"` or another codec.
        keys: key id -> secret of exactly 32 random bytes.
        current: the id of the key that encrypts.
        require: refuse tasks that are not encrypted.
        bind_options: see `Signed`.

    Raises:
        ConfigError: there is no key, a key has another length, `current` or `bind_options` is
            unknown, or the package `cryptography` is missing.
    """

    _MAGIC = (b"LE1", b"LE2")
    _OF_SUBJECT = b"LE3"
    _HOW = "encrypted"
    _NONCE_BYTES = 12

    def __init__(
        self,
        inner: Codec | Format = "json",
        *,
        keys: Mapping[str, bytes],
        current: str,
        require: bool = True,
        bind_options: BindOptions = "read",
    ) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ModuleNotFoundError as error:
            raise ConfigError(
                "encryption needs cryptography: install it with `pip install 'late-queue[crypto]'`"
            ) from error
        self._cipher, self._refusal = AESGCM, InvalidTag
        ring = key_ring(keys, current, least=32, most=32)
        super().__init__(inner, ring, current, require, bind_options)
        self.digest_key = hmac.digest(ring[current], b"late unique key", "sha256")
        """The key of the digest that is stored with a unique key. Without it, short arguments could
        be guessed from the digest."""

        self.subjects = SubjectKeys(ring, current, AESGCM, InvalidTag)
        """The keys of subjects, which the ring wraps."""

    def seal(self, payload: bytes, subject: Subject) -> bytes:
        if not isinstance(subject, Sealing) or subject.owner is None:
            return super().seal(payload, subject)
        inside = self._inner.seal(payload, subject)
        owner, secret = subject.owner
        kind, text = subject.terms
        bound = self._bound(self._OF_SUBJECT, (owner, *subject, kind.decode(), text))
        sealed = self._encrypt(hmac.digest(secret, bound, "sha256"), bound, inside)
        return self._head_of(owner) + subject.terms.head() + sealed

    def open(self, payload: bytes, subject: Subject) -> bytes:
        options = subject.options if isinstance(subject, Opening) else None
        if options is None or options.subject is None:
            return super().open(payload, subject)
        assert isinstance(subject, Opening)
        owner = options.subject
        secret = self.subjects.key(owner)
        head = self._head_of(owner)
        if not payload.startswith(head):
            message = "the payload was not encrypted for the task's subject"
            raise DecodeError(message, reason="bad_signature")
        kind, text, body = terms.split(payload[len(head) :])
        task_id, *others = terms.expected(kind, text, subject.record, options)
        parts = (owner, task_id, subject.name, subject.queue, *others)
        bound = self._bound(self._OF_SUBJECT, parts)
        inside = self._decrypt(hmac.digest(secret, bound, "sha256"), bound, body)
        terms.check(kind, text, subject.record, options)
        return self._inner.open(inside, subject)

    def _close(self, magic: bytes, parts: tuple[str, ...], inside: bytes) -> bytes:
        bound = self._bound(magic, parts)
        return self._encrypt(self._key(parts[0], bound), bound, inside)

    def _reopen(self, magic: bytes, parts: tuple[str, ...], body: bytes) -> bytes:
        bound = self._bound(magic, parts)
        return self._decrypt(self._key(parts[0], bound), bound, body)

    def _encrypt(self, key: bytes, bound: bytes, inside: bytes) -> bytes:
        nonce = os.urandom(self._NONCE_BYTES)
        return nonce + self._cipher(key).encrypt(nonce, inside, bound)

    def _decrypt(self, key: bytes, bound: bytes, body: bytes) -> bytes:
        nonce, sealed = body[: self._NONCE_BYTES], body[self._NONCE_BYTES :]
        try:
            return self._cipher(key).decrypt(nonce, sealed, bound)
        except (self._refusal, ValueError):  # A nonce that is too short raises ValueError.
            message = "the payload was not encrypted for this task"
            raise DecodeError(message, reason="bad_signature") from None

    def _key(self, key_id: str, bound: bytes) -> bytes:
        """Return the key of one task."""
        return hmac.digest(self._keys[key_id], bound, "sha256")

    def _bound(self, magic: bytes, parts: tuple[str, ...]) -> bytes:
        """Return the bytes that are authenticated with a payload. `parts` begin with a key's id."""
        key_id, *others = parts
        return magic + joined((key_id, self.name, *others))

    def _head_of(self, owner: str) -> bytes:
        return self._OF_SUBJECT + bytes([len(owner)]) + owner.encode()


def owners(codec: Codec) -> SubjectKeys | None:
    """Return the keys of subjects of a codec; None if it has none."""
    found = getattr(codec, "subjects", None)
    return found if isinstance(found, SubjectKeys) else None


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
    if stored not in BUILTIN:
        raise DecodeError(f"no codec is configured for {validate.shown(stored)}", elsewhere=True)
    return BUILTIN[stored]


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
    return codec.open(payload, Opening.of(record, options)), codec.format
