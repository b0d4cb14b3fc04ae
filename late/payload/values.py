"""Payload bytes: encoding and decoding within the limits of `reliability` 3.1.

A payload is one object, parameter name to value, in JSON (the default) or msgpack: never pickle,
nothing that names a class or imports one. What may be rebuilt is what the handler's signature
says, by msgspec's typed decoders.

The limits cost next to nothing where they do not bite. Arguments that are all text and numbers of
the built-in types can break few of them, and are looked at one by one. Else every violation leaves
a trace in the encoded bytes that a C-speed search finds (more than 64 brackets, an escaped NUL, a
`null` that may have been a NaN, 19 digits in a row); only a payload with such a trace is walked
value by value. A trace is no proof: the walk decides.
"""

from __future__ import annotations

import decimal
import hashlib
import math
from collections.abc import Callable, Sequence, Set
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import astuple

from late.errors import DecodeError, InvalidPayload, PayloadTooLarge

PAYLOAD_BYTES_MAX = 1024 * 1024
PAYLOAD_BYTES_WARN = 256 * 1024
RESULT_BYTES_MAX = 256 * 1024
DEPTH_MAX = 64
KEYS_MAX = 10_000

Format = Literal["json", "msgpack"]
T = TypeVar("T")

_json = msgspec.json.Encoder().encode
_msgpack = msgspec.msgpack.Encoder().encode
# Sets have no order of their own and dicts that of insertion: for a digest both are sorted.
_json_sorted = msgspec.json.Encoder(order="deterministic").encode
# 19 digits in a row, found by a search once all digits are one: a regular expression tries anew at
# each byte, which took six times as long for a kilobyte of text. Searches are by `find`: `in` takes
# what it searches for a number first, and makes an error of bytes that nobody sees.
_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x5F for byte in range(256))
_LONG_INT = b"0" * 19
_BACKSLASH = ord("\\")
_INT_LEAST, _INT_MOST = -(2**63), 2**64 - 1
SCALARS: frozenset[type] = frozenset((str, int, float, bool, type(None), msgspec.UnsetType))
"""Text and numbers: JSON has them, and cannot hold in them what breaks a limit but for a NUL, a
long int, a NaN."""


def pack(values: msgspec.Struct | dict[str, Any], form: Format = "json") -> bytes:
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
    return _searched(values, payload, form)


def pack_call(values: msgspec.Struct, declared: Sequence[Set[type]]) -> tuple[bytes, bool]:
    """`pack` as JSON, in a third of the time for arguments that are text and numbers.

    Those can break few limits, and are looked at one by one; where the bytes have a backslash,
    which may be a NUL's, and for anything else they are searched. Types are exact: a subclass may
    be encoded as anything.

    Args:
        declared: `late.handler.signature.scalars` of the struct's type.

    Returns:
        The bytes, and whether a decoder of the struct's type is certain to give all values back.

    Raises:
        InvalidPayload, PayloadTooLarge: as `pack`.
    """
    try:
        payload = _json(values)
    except Exception:
        return pack(values), False  # which says why not
    certain = True
    if len(payload) <= PAYLOAD_BYTES_MAX and _BACKSLASH not in payload:
        for n, value in enumerate(astuple(values)):  # `zip` takes twice as long
            kind = type(value)
            if kind not in declared[n]:
                certain = False
                if kind not in SCALARS:
                    break
            if kind is int:
                if not _INT_LEAST <= value <= _INT_MOST:
                    break
            elif kind is float and not math.isfinite(value):
                break
        else:
            return payload, certain
    return _searched(values, payload, "json"), False


def _searched(values: msgspec.Struct | dict[str, Any], payload: bytes, form: Format) -> bytes:
    if len(payload) > PAYLOAD_BYTES_MAX:
        size = len(payload)
        raise PayloadTooLarge(f"arguments take {size} bytes, the limit is {PAYLOAD_BYTES_MAX}")
    if form == "json":
        # A NaN is `null` in JSON by now, a Decimal's is text: only the values themselves can tell.
        doubtful = max(map(payload.find, (b"null", b"NaN", b"Inf"))) >= 0
        if not doubtful and _is_harmless(payload):
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


def result(value: object) -> bytes:
    """Encode what a handler returned as the JSON that is kept.

    Raises:
        DecodeError: `invalid_result`: no JSON, or above 256 KiB. A dead letter, because another
            attempt would return the same.
    """
    try:
        text = _json(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise DecodeError(f"the result is not JSON: {error}", reason="invalid_result") from None
    return _sized(text)


def given_result(text: bytes) -> bytes:
    """JSON that a service gave as its task's result, as it came: decoding would lose digits.

    Raises:
        DecodeError: as `result`.
    """
    _sized(text)
    try:
        msgspec.json.decode(text)
    except (UnicodeError, RecursionError, msgspec.MsgspecError) as error:
        why = error if isinstance(error, msgspec.MsgspecError) else type(error).__name__
        raise DecodeError(f"the result is not JSON: {why}", reason="invalid_result") from None
    return text


def _sized(text: bytes) -> bytes:
    if len(text) > RESULT_BYTES_MAX:
        size, limit = len(text), RESULT_BYTES_MAX
        raise DecodeError(
            f"a result of {size} bytes, the limit is {limit}", reason="invalid_result"
        )
    return text


def digest(name: str, values: object, key: bytes = b"") -> str:
    """Hash a request: a repeat of it has the same hash, another one under its unique key has not.

    Taken before any sealing, which differs from task to task; keyed by a codec that hides values.
    """
    state = hashlib.blake2b(name.encode() + b"\0", digest_size=16, key=key)
    state.update(_json_sorted(values))
    return state.hexdigest()


def _is_harmless(payload: bytes) -> bool:
    """Tell whether no limit but the size can be broken by these bytes of JSON."""
    size = len(payload)
    return (
        # More levels than allowed take more bytes than that: each is opened and closed.
        (size <= 2 * DEPTH_MAX or payload.count(b"[") + payload.count(b"{") <= DEPTH_MAX)
        and (size <= KEYS_MAX or payload.count(b":") <= KEYS_MAX)
        and (_BACKSLASH not in payload or payload.find(b"\\u0000") < 0)
        and payload.translate(_DIGITS).find(_LONG_INT) < 0
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
