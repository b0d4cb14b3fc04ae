"""Open, check and convert the payload of a task to JSON, for consumers outside. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from late.errors import DecodeError
from late.model import validation as validate
from late.model.task import Options, Record
from late.payload import codec as codecs
from late.payload import values as payloads
from late.payload.codec import Codec

_object = msgspec.json.Decoder(dict[str, Any]).decode
_packed = msgspec.msgpack.Decoder(dict[str, Any]).decode


def decode_payload(codec: Codec, record: Record, options: Options | None) -> bytes:
    """Return the arguments as a JSON object.

    Args:
        codec: the app's codec, which seals payloads of tasks that are not registered.

    Raises:
        DecodeError: `reason` is `payload_too_large`, `undecodable`, `bad_signature` or
            `invalid_name`.
    """
    if not validate.is_name(record.name):
        raise DecodeError("the task has no valid name", reason="invalid_name")
    payload, form = codecs.opened(codec, record, options)
    if form == "json":
        payloads.unpack(payload, _object)
        return payload
    return msgspec.json.encode(payloads.unpack(payload, _packed, form))
