"""Keys of subjects: a tenant or a person has a data key, and without it nothing of theirs opens.

A data key is random. The database has it wrapped by a key of the codec's ring, in one row for each
subject. The row is the only copy, so whoever deletes the wrapped key has shredded every payload
under it (`docs/design/0046-subject-keys.md`). Nothing here knows a database.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from late.errors import DecodeError
from late.model.task import SUBJECT_DROPPED

KEYS_S = 10.0
"""The longest time for which a process uses a key that it has read, also after the drop."""
KEYS_MAX = 10_000
"""The most keys that one codec of a process keeps."""
_MAGIC = b"LK1"
_KEY_BYTES, _NONCE_BYTES = 32, 12
_ID = re.compile(r"[0-9a-f]{32}\Z")

Fetch = Callable[[Sequence[str]], Mapping[str, "str | None"]]
"""A function that reads subjects' wrapped keys. None stands for a key that was dropped."""


def subject_id(name: str) -> str:
    """Return the id of a subject: a digest of its name, so that the database has no name."""
    return hashlib.sha256(b"late subject\0" + name.encode()).hexdigest()[:32]


def is_subject_id(text: str) -> bool:
    """Tell whether a text of the database can be the id of a subject."""
    return _ID.match(text) is not None


class SubjectKeyNeeded(Exception):
    """The key of a subject is not in memory: load it by `keys.load`, and try again."""

    def __init__(self, keys: SubjectKeys, subject: str) -> None:
        super().__init__(f"the key of subject {subject} is not loaded")
        self.keys = keys
        self.subject = subject


class SubjectKeys:
    """Wraps and unwraps the keys of subjects, and keeps those that were used. Thread-safe.

    Args:
        ring: key id -> secret of 32 bytes.
        current: the id of the key that wraps.
        cipher, refusal: AES-GCM, and its error for a text that was altered.
    """

    def __init__(self, ring: Mapping[str, bytes], current: str, cipher: Any, refusal: Any) -> None:
        self._ring = ring
        self._current = current
        self._cipher, self._refusal = cipher, refusal
        self._kept: dict[str, tuple[float, bytes | DecodeError]] = {}
        self._wanted: set[str] = set()
        self._asking, self._loading = threading.Lock(), threading.Lock()

    def make(self, subject: str) -> str:
        """Return a new key for a subject, wrapped."""
        return self._wrapped(subject, os.urandom(_KEY_BYTES))

    def unwrap(self, subject: str, text: str) -> bytes:
        """Return the key in a wrapped text.

        Raises:
            DecodeError: `bad_signature`: it was not wrapped for this subject by a key of the ring.
        """
        key_id, sealed = self._parts(text)
        secret, bound = self._wrapping(key_id, subject)
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            found: bytes = self._cipher(secret).decrypt(nonce, rest, bound)
        except (self._refusal, ValueError):
            raise _refused("the key of the subject was wrapped for another one") from None
        return found

    def rewrap(self, subject: str, text: str) -> str | None:
        """Return the same key, wrapped by the ring's current one; None if it is already.

        Raises:
            DecodeError: see `unwrap`.
        """
        if self._parts(text)[0] == self._current:
            return None
        return self._wrapped(subject, self.unwrap(subject, text))

    def key(self, subject: str) -> bytes:
        """Return a key that was loaded in the last `KEYS_S` seconds.

        Raises:
            SubjectKeyNeeded: it was not.
            DecodeError: `subject_dropped`, or `bad_signature`: there is no key that opens.
        """
        if not is_subject_id(subject):
            raise _refused("the task's subject is no id")
        until, found = self._kept.get(subject, (0.0, b""))
        if until <= monotonic():
            raise SubjectKeyNeeded(self, subject)
        if isinstance(found, DecodeError):
            raise DecodeError(str(found), reason=found.reason) from None
        return found

    def load(self, subject: str, fetch: Fetch) -> None:
        """Load the key of a subject, and with it those that other threads wait for."""
        with self._asking:
            self._wanted.add(subject)
        with self._loading:
            if self._kept.get(subject, (0.0, b""))[0] > monotonic():
                return
            with self._asking:
                wanted = sorted(self._wanted)
                self._wanted.clear()
            # A key is valid from the time of the question: it may be dropped before the answer.
            until = monotonic() + KEYS_S
            self.learn(wanted, fetch(wanted), until)

    def learn(self, subjects: Sequence[str], found: Mapping[str, str | None], until: float) -> None:
        """Use what was `found` for `subjects` until that moment of the monotonic clock."""
        self._forget()
        for each in subjects:
            self.keep(each, self._opened(each, found), until)

    def keep(self, subject: str, found: bytes | DecodeError, until: float) -> None:
        """Use a key until that moment of the monotonic clock."""
        while len(self._kept) >= KEYS_MAX:
            self._kept.pop(next(iter(self._kept)))
        self._kept[subject] = until, found

    def _forget(self) -> None:
        now = monotonic()
        for subject in [each for each, (until, _) in self._kept.items() if until <= now]:
            del self._kept[subject]

    def _opened(self, subject: str, found: Mapping[str, str | None]) -> bytes | DecodeError:
        if subject not in found:
            return _refused("the key of the task's subject is not in the database")
        text = found[subject]
        if text is None:
            return DecodeError("the key of the task's subject was dropped", reason=SUBJECT_DROPPED)
        try:
            return self.unwrap(subject, text)
        except DecodeError as error:
            return error

    def _wrapped(self, subject: str, key: bytes) -> str:
        secret, bound = self._wrapping(self._current, subject)
        nonce = os.urandom(_NONCE_BYTES)
        head = _MAGIC + bytes([len(self._current)]) + self._current.encode()
        return base64.b64encode(
            head + nonce + self._cipher(secret).encrypt(nonce, key, bound)
        ).decode()

    def _parts(self, text: str) -> tuple[str, bytes]:
        """Return the id of the key that wrapped, and the bytes after it."""
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        start = len(_MAGIC) + 1
        if len(raw) < start or not raw.startswith(_MAGIC):
            raise _refused("the key of the subject is not wrapped")
        end = start + raw[start - 1]
        key_id = raw[start:end].decode("ascii", "replace")
        if key_id not in self._ring:
            raise _refused("the key of the subject is wrapped by a key that is not in the ring")
        return key_id, raw[end:]

    def _wrapping(self, key_id: str, subject: str) -> tuple[bytes, bytes]:
        """Return the key that wraps for one subject, and the bytes that are bound to it."""
        parts = (key_id.encode(), subject.encode())
        bound = _MAGIC + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._ring[key_id], bound, "sha256"), bound


def _refused(message: str) -> DecodeError:
    return DecodeError(message, reason="bad_signature")
