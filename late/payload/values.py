"""Encode and decode payload bytes, within the limits of `reliability` 3.1.

A payload is one object, parameter name -> value, in JSON (the default) or msgpack. It is never
pickle, and nothing in it names or imports a class. msgspec's typed decoders build only the types in
the handler's signature.

The checks of the limits cost almost nothing for payloads within them. Arguments that are all text
and numbers of built-in types can break few limits, and are checked one by one. For others, every
violation leaves a trace in the encoded bytes that a search at the speed of C finds: more than 64
brackets, an escaped NUL, a `null` that may have been a NaN, 19 digits in a row. Only a payload with
such a trace is checked value by value, and that check decides, because a trace is no proof.
"""

from __future__ import annotations

import decimal
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import astuple

from late.errors import DecodeError, InvalidPayload, PayloadTooLarge
from late.payload import models

PAYLOAD_BYTES_MAX = 1024 * 1024
PAYLOAD_BYTES_WARN = 256 * 1024
RESULT_BYTES_MAX = 256 * 1024
DEPTH_MAX = 64
KEYS_MAX = 10_000

Format = Literal["json", "msgpack"]
T = TypeVar("T")

_json = msgspec.json.Encoder(enc_hook=models.encode).encode
_msgpack = msgspec.msgpack.Encoder(enc_hook=models.encode).encode
# Sets have no order, and dicts have that of insertion. For a digest both are sorted.
_json_sorted = msgspec.json.Encoder(enc_hook=models.encode, order="deterministic").encode
# To find 19 digits in a row, all digits are replaced by `0` and a search follows. A regular
# expression starts again at each byte, which took six times as long for a kilobyte of text.
# Searches use `find`: `in` tries first to convert the searched bytes to an int, and handles the
# error of that.
_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x5F for byte in range(256))
_LONG_INT = b"0" * 19
BACKSLASH = ord("\\")
_INT_LEAST, _INT_MOST = -(2**63), 2**64 - 1
SCALARS: frozenset[type] = frozenset((str, int, float, bool, type(None), msgspec.UnsetType))
"""The types of text and numbers, which JSON has too. Their values can break a limit only by a NUL,
a long int or a NaN."""
SIMPLE: frozenset[type] = SCALARS - {float}
"""Those that a decoder makes of nothing else: it also makes a float of a long int."""


def pack(values: msgspec.Struct | dict[str, Any], form: Format = "json") -> bytes:
    """Encode one payload object.

    Raises:
        InvalidPayload: a type has no encoding, or there are a NaN, an infinity, an int beyond 64
            bits, a lone surrogate, a NUL, more than 64 levels or more than 10,000 keys.
        PayloadTooLarge: the bytes are more than 1 MiB.
    """
    try:
        payload = _json(values) if form == "json" else _msgpack(values)
    except Exception as cause:  # Values of the caller's types may raise any error.
        raise InvalidPayload(f"arguments cannot be encoded: {_why(cause)}") from cause
    return _searched(values, payload, form)


def pack_call(values: msgspec.Struct, declared: Sequence[Set[type]]) -> tuple[bytes, bool]:
    """Encode one payload object as JSON, as `pack` does.

    For arguments that are text and numbers it takes a third of the time. They can break few limits,
    and are checked one by one. The bytes are searched if there are other types, or a backslash,
    which may belong to a NUL. Types are exact: a subclass may be encoded in any way.

    Args:
        declared: `late.handler.signature.scalars` of the struct's type.

    Returns:
        The bytes, and True if a decoder of the struct's type certainly returns all values
        unchanged.

    Raises:
        InvalidPayload, PayloadTooLarge: see `pack`.
    """
    try:
        payload = _json(values)
    except Exception:
        return pack(values), False  # `pack` raises with the reason.
    certain = True
    if len(payload) <= PAYLOAD_BYTES_MAX and BACKSLASH not in payload:
        for n, value in enumerate(astuple(values)):  # `zip` takes twice as long.
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
        # In the JSON a NaN is `null`, and that of a Decimal is text. Only the values show a NaN.
        doubtful = max(map(payload.find, (b"null", b"NaN", b"Inf"))) >= 0
        if not doubtful and is_harmless(payload):
            return payload
    try:
        _check(
            msgspec.to_builtins(
                values,
                builtin_types=(decimal.Decimal,),
                str_keys=True,
                enc_hook=models.encode,
            )
        )
    except Exception as cause:
        raise InvalidPayload(f"arguments cannot be encoded: {_why(cause)}") from cause
    return payload


def culprit(values: msgspec.Struct | dict[str, Any], form: Format) -> str:
    """Return ", parameter NAME" for the first value that `pack` refuses alone; else nothing."""
    fields = values if isinstance(values, dict) else msgspec.structs.asdict(values)
    for name, value in fields.items():
        try:
            pack({} if value is msgspec.UNSET else {name: value}, form)
        except InvalidPayload:
            return f", parameter {name!r}"
        except PayloadTooLarge:
            return ""
    return ""


def unpack(payload: bytes, decode: Callable[[bytes], T], form: Format = "json") -> T:
    """Decode one payload object with a typed decoder.

    Raises:
        DecodeError: `payload_too_large` if it is above 1 MiB, else `undecodable`.
    """
    if len(payload) > PAYLOAD_BYTES_MAX:
        message = f"payload of {len(payload)} bytes, the limit is {PAYLOAD_BYTES_MAX}"
        raise DecodeError(message, reason="payload_too_large")
    try:
        if form == "msgpack":
            _check(msgspec.msgpack.decode(payload))
        elif not is_harmless(payload):
            _check(msgspec.json.decode(payload))
        return decode(payload)
    except Exception as cause:  # Stored bytes may be hostile, and raise any error.
        # An object that does not fit these parameters may fit those of another version.
        fits = isinstance(cause, msgspec.ValidationError) and _is_object(payload, form)
        message = f"payload does not fit the task: {_why(cause)}"
        raise DecodeError(message, elsewhere=fits) from cause


def _is_object(payload: bytes, form: Format) -> bool:
    decode = msgspec.msgpack.decode if form == "msgpack" else msgspec.json.decode
    try:
        return isinstance(decode(payload), dict)
    except Exception:  # no types were asked for, and it cannot be read all the same
        return False


def result(value: object) -> bytes:
    """Encode a handler's return value as the JSON that is kept.

    Raises:
        DecodeError: `invalid_result`: it is not JSON, or is above 256 KiB. The task becomes a dead
            letter, because another attempt would return the same.
    """
    try:
        text = _json(value)
        if b"null" in text:  # As which NaN would be kept.
            _check_numbers(msgspec.to_builtins(value, enc_hook=models.encode))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise DecodeError(f"the result is not JSON: {error}", reason="invalid_result") from None
    return _sized(text)


def _check_numbers(tree: Any) -> None:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            waiting += node.values()
        elif isinstance(node, list | tuple | set | frozenset):
            waiting += node
        elif isinstance(node, float) and not math.isfinite(node):
            raise ValueError(f"{node} is not a number")


def given_result(text: bytes) -> bytes:
    """Check JSON that a service returned as its task's result, and return it unchanged.

    It is not decoded and encoded again, because that would lose digits.

    Raises:
        DecodeError: see `result`.
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
    """Hash a request, so that its repeat can be distinguished from another with its unique key.

    The hash is made before the seal, which is different for each task. A codec that hides values
    has a `key` for it.
    """
    state = hashlib.blake2b(name.encode() + b"\0", digest_size=16, key=key)
    state.update(_json_sorted(values))
    return state.hexdigest()


def is_harmless(payload: bytes) -> bool:
    """Tell whether these bytes of JSON certainly break no limit except that of the size."""
    size = len(payload)
    return (
        # Too many levels need more bytes than this, because each has two brackets.
        (size <= 2 * DEPTH_MAX or payload.count(b"[") + payload.count(b"{") <= DEPTH_MAX)
        and (size <= KEYS_MAX or payload.count(b":") <= KEYS_MAX)
        and (BACKSLASH not in payload or has_no_nul(payload))
        and payload.translate(_DIGITS).find(_LONG_INT) < 0
    )


def has_no_nul(payload: bytes) -> bool:
    """Tell whether these bytes of JSON certainly hold no NUL. Without a backslash there is none."""
    return payload.find(b"\\u0000") < 0


def fit(values: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Tell whether those of these values that are ints have at most 64 bits."""
    for name in names:
        value = values[name]
        if type(value) is int and not _INT_LEAST <= value <= _INT_MOST:
            return False
    return True


def _check(tree: Any) -> None:
    """Check decoded values one by one. It uses no recursion, because they may be too deep for it.

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
    """Return the library's reason, without the text of the payload that a UnicodeError quotes."""
    if isinstance(cause, UnicodeError):
        return f"{cause.reason}" if isinstance(cause, UnicodeEncodeError) else "no valid UTF-8"
    return str(cause)[:200] or type(cause).__name__
