"""The messages between a worker and its child processes: msgpack frames over a socket pair.

Not pickle: a child that was taken over by what it ran must not be able to run code in the worker.
A frame is four bytes of length, big-endian, and one message.
"""

from __future__ import annotations

import msgspec

from late.handler.classify import Verdict
from late.model.task import Attempt

LENGTH_BYTES = 4


class Run(msgspec.Struct, frozen=True, tag=True):
    """Worker to child: run this attempt now."""

    attempt: Attempt
    module: str
    """The module that defines the handler's function; with `qualname` the way to the handler."""
    qualname: str
    started_at_us: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Child to worker: everything is imported."""


class Broken(msgspec.Struct, frozen=True, tag=True):
    """Child to worker: an import failed; the child ends."""

    error: str


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Child to worker: the handler says that it is alive."""


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Child to worker: how the attempt ended."""

    verdict: Verdict


FromChild = Ready | Broken | Beat | Reply

_encoder = msgspec.msgpack.Encoder()
decode_run = msgspec.msgpack.Decoder(Run).decode
decode_from_child = msgspec.msgpack.Decoder(FromChild).decode


def frame(message: Run | FromChild) -> bytes:
    """The bytes of one message."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
