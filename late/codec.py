"""Payload bytes: encoding, the limits of `reliability` 3.1, and the hook for signing.

A payload is one object, parameter name to value, in JSON (the default) or msgpack: never pickle,
nothing that names a class or imports one. What may be rebuilt is what the handler's signature
says, by msgspec's typed decoders.

The limits cost next to nothing where they do not bite. Every violation leaves a trace in the
encoded bytes that a C-speed search finds (more than 64 brackets, an escaped NUL, a `null` that
may have been a NaN, 19 digits in a row); only a payload with such a trace is walked value by
value. A trace is no proof: the walk decides.

A `Codec` adds a second layer to the bytes, sealed for one task and opened by the worker:
`Signed` is one, encryption can be another without a change here.
"""

from __future__ import annotations

import decimal
import hashlib
import hmac
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from late import validate
from late.errors import ConfigError, DecodeError, InvalidPayload, PayloadTooLarge

PAYLOAD_BYTES_MAX = 1024 * 1024
PAYLOAD_BYTES_WARN = 256 * 1024
DEPTH_MAX = 64
KEYS_MAX = 10_000

Format = Literal["json", "msgpack"]
T = TypeVar("T")

_json = msgspec.json.Encoder().encode
_msgpack = msgspec.msgpack.Encoder().encode
# Sets have no order of their own and dicts that of insertion: for a digest both are sorted.
_json_sorted = msgspec.json.Encoder(order="deterministic").encode
_LONG_INT = re.compile(rb"[0-9]{19}")
_INT_LEAST, _INT_MOST = -(2**63), 2**64 - 1


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


def pack(values: object, form: Format = "json") -> bytes:
    """Encode one payload object.

    Raises:
        InvalidPayload: a type that has no encoding, NaN or infinity, an int beyond 64 bits, a
            lone surrogate, NUL, more than 64 levels or 10,000 keys.
        PayloadTooLarge: above 1 MiB.
    """
    try:
        payload = _json(values) if form == "json" else _msgpack(values)
    except Exception as cause:  # values are the caller's: anything may go wrong in them
        raise InvalidPayload(f"arguments cannot be encoded: {_why(cause)}") from cause
    if len(payload) > PAYLOAD_BYTES_MAX:
        size = len(payload)
        raise PayloadTooLarge(f"arguments take {size} bytes, the limit is {PAYLOAD_BYTES_MAX}")
    # A NaN is `null` in JSON by now, a Decimal's is text: only the values themselves can tell.
    doubtful = b"null" in payload or b"NaN" in payload or b"Inf" in payload
    if form == "json" and not doubtful and _is_harmless(payload):
        return payload
    try:
        _check(msgspec.to_builtins(values, builtin_types=(decimal.Decimal,), str_keys=True))
    except Exception as cause:
        raise InvalidPayload(f"arguments cannot be encoded: {_why(cause)}") from cause
    return payload


def unpack(payload: bytes, decode: Callable[[bytes], T], form: Format = "json") -> T:
    """Decode one payload object with a typed decoder.

    Raises:
        DecodeError: `payload_too_large` above 1 MiB, else `undecodable`.
    """
    if len(payload) > PAYLOAD_BYTES_MAX:
        message = f"payload of {len(payload)} bytes, the limit is {PAYLOAD_BYTES_MAX}"
        raise DecodeError(message, reason="payload_too_large")
    try:
        if form == "msgpack":
            _check(msgspec.msgpack.decode(payload))
        elif not _is_harmless(payload):
            _check(msgspec.json.decode(payload))
        return decode(payload)
    except Exception as cause:  # stored bytes are hostile until they have been decoded
        raise DecodeError(f"payload does not fit the task: {_why(cause)}") from cause


def digest(name: str, values: object) -> str:
    """What tells a repeat of the same request from another one under the same unique key.

    Taken before any sealing, which differs from task to task.
    """
    state = hashlib.blake2b(name.encode() + b"\0", digest_size=16)
    state.update(_json_sorted(values))
    return state.hexdigest()


def _is_harmless(payload: bytes) -> bool:
    """Whether no limit but the size can be broken by these bytes of JSON."""
    return (
        payload.count(b"[") + payload.count(b"{") <= DEPTH_MAX
        and payload.count(b":") <= KEYS_MAX
        and b"\\u0000" not in payload
        and _LONG_INT.search(payload) is None
    )


def _check(tree: Any) -> None:
    """Walk decoded values; a loop and not a recursion, as the depth is what is in doubt.

    Raises:
        ValueError: a limit is broken.
    """
    keys = 0
    waiting: list[tuple[Any, int]] = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        match node:
            case str():
                if "\0" in node:
                    raise ValueError("text holds a NUL character")
            case bool() | None:
                pass
            case int():
                if not _INT_LEAST <= node <= _INT_MOST:
                    raise ValueError("an int is beyond 64 bits")
            case float():
                if not math.isfinite(node):
                    raise ValueError(f"{node} is not a number")
            case decimal.Decimal():
                if not node.is_finite():
                    raise ValueError(f"{node} is not a number")
            case dict() | list() | tuple() | set() | frozenset():
                if depth > DEPTH_MAX:
                    raise ValueError(f"more than {DEPTH_MAX} levels")
                if isinstance(node, dict):
                    keys += len(node)
                    waiting += [(key, depth + 1) for key in node]
                    node = node.values()
                if keys > KEYS_MAX:
                    raise ValueError(f"more than {KEYS_MAX} keys")
                waiting += [(item, depth + 1) for item in node]


def _why(cause: Exception) -> str:
    """The library's reason, without the text that a UnicodeError would quote from the payload."""
    if isinstance(cause, UnicodeError):
        return f"{cause.reason}" if isinstance(cause, UnicodeEncodeError) else "no valid UTF-8"
    return str(cause)[:200] or type(cause).__name__
