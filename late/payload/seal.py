"""The base of codecs that seal: a ring of keys, and two forms of a frame around the bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal, get_args

from late.errors import ConfigError, DecodeError
from late.model import validation as validate
from late.payload import terms
from late.payload.plain import Codec, Opening, Sealing, Subject, resolve
from late.payload.values import Format

BindOptions = Literal["read", "write", "require"]
"""The treatment of a task's options, headers and due times."""


class Seal(ABC):
    """The base of `Signed` and `Encrypted`: the keys, and the two forms of a frame.

        first:   magic, key id, protected bytes
        second:  magic, key id, terms, protected bytes

    Both cover the task's id, name and queue, the second also its terms (`late/payload/terms.py`).
    """

    _MAGIC: ClassVar[tuple[bytes, bytes]]
    _HOW: ClassVar[str]

    def __init__(
        self,
        inner: Codec | Format,
        keys: dict[str, bytes],
        current: str,
        require: bool,
        bind_options: BindOptions,
    ) -> None:
        if bind_options not in get_args(BindOptions):
            raise ConfigError(f"bind_options is one of {', '.join(get_args(BindOptions))}, got "
                              f"{validate.shown(bind_options)}")  # fmt: skip
        self._inner = resolve(inner)
        self.require = require
        self._keys = keys
        self._current = current
        self._bind = bind_options
        if binds(self._inner) and not self.binds:
            raise ConfigError("bind_options of the inner codec needs that of the outer one")

    @property
    def name(self) -> str:
        return f"{self._HOW}+{self._inner.name}"

    @property
    def format(self) -> Format:
        return self._inner.format

    @property
    def binds(self) -> bool:
        """True if it writes the second form."""
        return self._bind != "read"

    def seal(self, payload: bytes, subject: Subject) -> bytes:
        inside = self._inner.seal(payload, subject)
        key_id = self._current
        head = bytes([len(key_id)]) + key_id.encode()
        if self.binds and isinstance(subject, Sealing):
            kind, text = subject.terms
            parts: tuple[str, ...] = (key_id, *subject, kind.decode(), text)
            head += subject.terms.head()
            magic = self._MAGIC[1]
        else:
            parts, magic = (key_id, *subject), self._MAGIC[0]
        return magic + head + self._close(magic, parts, inside)

    def open(self, payload: bytes, subject: Subject) -> bytes:
        magic, key_id, body = _key_of(payload, self._MAGIC, self._keys, self._HOW)
        if magic == self._MAGIC[0]:
            if self._bind == "require":
                message = f"the payload is {self._HOW} without the task's options"
                raise DecodeError(message, reason="bad_signature")
            inside = self._reopen(magic, (key_id, *subject), body)
            return self._inner.open(inside, subject)
        if not isinstance(subject, Opening):
            message = f"the payload is {self._HOW} for a row, and none is given"
            raise DecodeError(message, reason="bad_signature")
        record, options = subject.record, subject.options
        kind, text, body = terms.split(body)
        task_id, *others = terms.expected(kind, text, record, options)
        parts = (key_id, task_id, subject.name, subject.queue, *others)
        inside = self._reopen(magic, parts, body)
        terms.check(kind, text, record, options)  # now that nobody else can have written them
        return self._inner.open(inside, subject)

    @abstractmethod
    def _close(self, magic: bytes, parts: tuple[str, ...], inside: bytes) -> bytes:
        """Protect `inside` for `parts`, the first of which is the key's id."""

    @abstractmethod
    def _reopen(self, magic: bytes, parts: tuple[str, ...], body: bytes) -> bytes:
        """Return what `_close` has protected for `parts`.

        Raises:
            DecodeError: `bad_signature`: it did not make `body` for them.
        """


def binds(codec: Codec) -> bool:
    """Tell whether a codec seals a task's options too."""
    return bool(getattr(codec, "binds", False))


def key_ring(
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


def _key_of(
    payload: bytes, magics: tuple[bytes, bytes], keys: Mapping[str, bytes], how: str
) -> tuple[bytes, str, bytes]:
    """Return the form of the seal, the id of the key that made it, and the bytes after that.

    Raises:
        DecodeError: `bad_signature`: `payload` has no such seal, or the key is unknown.
    """
    magic = payload[: len(magics[0])]
    start = len(magic) + 1
    if len(payload) < start or magic not in magics:
        raise DecodeError(f"the payload is not {how}", reason="bad_signature")
    end = start + payload[start - 1]
    key_id = payload[start:end].decode("ascii", "replace")
    if key_id not in keys:
        message = f"{how} with unknown key {validate.shown(key_id)}"
        raise DecodeError(message, reason="bad_signature")
    return magic, key_id, payload[end:]


def joined(parts: Iterable[str]) -> bytes:
    """Join the parts, each after its length. No two lists of parts give the same bytes."""
    return b"".join(len(raw).to_bytes(4, "big") + raw for raw in map(str.encode, parts))
