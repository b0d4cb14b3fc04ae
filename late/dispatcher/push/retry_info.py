"""The wait in gRPC's rich error model: `google.rpc.RetryInfo` in `grpc-status-details-bin`. Pure.

    Status    { repeated Any details = 3; }
    Any       { string type_url = 1; bytes value = 2; }
    RetryInfo { Duration retry_delay = 1; }

These three messages of two fields are read from the wire format, so that no package is needed for
them. A detail that cannot be read is ignored: the status still counts.
Source: https://google.aip.dev/193 and https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

HEADER = "grpc-status-details-bin"
_TYPE = b"/google.rpc.RetryInfo"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10


def after_s(status: bytes) -> float | None:
    """Read the seconds that a serialised `google.rpc.Status` asks to wait; None without any."""
    try:
        for detail in _bytes_of(status, 3):
            if b"".join(_bytes_of(detail, 1)).endswith(_TYPE):
                for value in _bytes_of(detail, 2):
                    for text in _bytes_of(value, 1):
                        delay = Duration.FromString(text)
                        return max(0.0, delay.seconds + delay.nanos / 1e9)
    except (ValueError, DecodeError):
        pass
    return None


def _bytes_of(message: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the content of the fields of this number that are texts, bytes or messages.

    Raises:
        ValueError: not a message.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind, size = tag & 7, 0
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("no such kind of field")
        if at + size > len(message):
            raise ValueError("cut off")
        if kind == _BYTES and tag >> 3 == wanted:
            yield message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    found = 0
    for place, byte in enumerate(message[at : at + _VARINT_BYTES_MAX]):
        found |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return found, at + place + 1
    raise ValueError("cut off")
